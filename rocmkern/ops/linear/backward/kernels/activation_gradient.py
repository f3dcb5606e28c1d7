"""Gradient of what an activation was given: ``out = dout * activation'(x)``.

Slopes: `rocmkern.ops.activations.backward.kernels.gated_backward`; that of relu is 1 where x > 0 or NaN, else 0, and
what dout is there does not count.

Shapes (any strides): x, dout, out [A, B, R, N]; out may be x. Mapping: a block takes ``block_m`` rows, ``block_n``
columns at a time. Grid: (row block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.activations.backward.kernels.gated_backward import below, gelu_slope, gelu_tanh_slope, silu_slope
from rocmkern.ops.activations.kernels.activations import GELU, GELU_TANH, RELU, SILU


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


def through_relu(x, dout):
    return T.where(x <= 0.0, 0.0, dout)


@T.device
def through_activation(x, dout, activation):
    """Gradient of what an activation, by its number, was given (consumes both tiles)."""
    if activation == SILU:
        f = T.silu(T.map(below, T.copy(x)))
        dout = dout * T.map(silu_slope, x, f)
    elif activation == GELU:
        f = T.gelu(T.map(below, T.copy(x)))
        dout = dout * T.map(gelu_slope, x, f)
    elif activation == GELU_TANH:
        f = T.gelu_tanh(T.map(below, T.copy(x)))
        dout = dout * T.map(gelu_tanh_slope, x, f)
    elif activation == RELU:
        dout = T.map(through_relu, x, dout)
    return dout


@T.kernel
def activation_gradient(cfg, x: T.Tensor[4], dout: T.Tensor[4], out: T.Out[4], activation: T.Int):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]
    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, x[a, b], (row,), n0, cfg.block_n, valid)
        d = T.load_tile(cfg, dout[a, b], (row,), n0, cfg.block_n, valid)
        T.store_tile(out[a, b], (row,), n0, through_activation(t, d, activation), valid)
