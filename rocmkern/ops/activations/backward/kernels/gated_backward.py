"""Gradients of gated activations ``f(gate) * up``, f being SiLU, GELU or GELU's tanh form (Shazeer, 2020)::

    dgate = dout * f'(gate) * up
    dup   = dout * f(gate)

    SiLU    f'(x) = s + x s (1 - s)                      s = 1 / (1 + exp(-x))
    GELU    f'(x) = Phi(x) + x phi(x)                    of the normal distribution
    tanh    f'(x) = s + x s (1 - s) 2 c (1 + 3 a x^2)    s = 1 / (1 + exp(-2 z)), z = c (x + a x^3)

with ``c = sqrt(2 / pi)`` and ``a = 0.044715``. 1 - s is computed as a quotient of its own: it does not cancel. What
lies beyond where f' has become 0 or 1 counts as the border, so that infinity times 0 does not occur.

Shapes (any strides): dout, gate, up, dgate, dup [A, B, R, N]. Mapping: a block takes ``block_m`` rows, ``block_n``
columns at a time; a result may be one of the inputs, because each block reads what it overwrites first. Grid: (row
block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634
ROOT_HALF = 0.7071067811865476
INVERSE_ROOT_2_PI = 0.3989422804014327
ROOT_2_OVER_PI = 0.7978845608028654
CUBE = 0.044715


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; SiLU unless ``gelu`` or ``gelu_tanh``."""

    block_m: int = 16
    block_n: int = 64
    gelu: bool = False
    gelu_tanh: bool = False


def bounded(x, most):
    """x between -most and most; NaN stays NaN."""
    return T.where(x < -most, -most, T.where(x > most, most, x))


def of_sigmoid(x, exponent, inner):
    """``s + x s (1 - s) inner`` with s the logistic function of an exponent."""
    e = T.exp2(abs(exponent) * -LOG2_E)
    share = 1.0 / (1.0 + e)
    s = T.where(exponent < 0.0, e * share, share)
    rest = T.where(exponent < 0.0, share, e * share)
    return s + x * s * rest * inner


def silu_slope(x):
    x = bounded(x, 120.0)
    return of_sigmoid(x, x, 1.0)


def gelu_slope(x):
    x = bounded(x, 20.0)
    density = T.exp2(x * x * (-0.5 * LOG2_E)) * INVERSE_ROOT_2_PI
    return 0.5 + 0.5 * T.erf(x * ROOT_HALF) + x * density


def gelu_tanh_slope(x):
    x = bounded(x, 20.0)
    square = x * x
    exponent = x * (1.0 + CUBE * square) * (2.0 * ROOT_2_OVER_PI)
    return of_sigmoid(x, exponent, (1.0 + 3.0 * CUBE * square) * (2.0 * ROOT_2_OVER_PI))


@T.kernel
def gated_backward(
    cfg, dout: T.Tensor[4], gate: T.Tensor[4], up: T.Tensor[4], dgate: T.Out[4], dup: T.Out[4]
):  # fmt: skip
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < dout.shape[2]
    for n0 in range(0, dout.shape[3], cfg.block_n):
        d = T.load_tile(cfg, dout[a, b], (row,), n0, cfg.block_n, valid)
        t = T.load_tile(cfg, gate[a, b], (row,), n0, cfg.block_n, valid)
        u = T.load_tile(cfg, up[a, b], (row,), n0, cfg.block_n, valid)
        slope = T.copy(t)
        if cfg.gelu:
            slope = T.map(gelu_slope, slope)
            t = T.gelu(t)
        elif cfg.gelu_tanh:
            slope = T.map(gelu_tanh_slope, slope)
            t = T.gelu_tanh(t)
        else:
            slope = T.map(silu_slope, slope)
            t = T.silu(t)
        T.store_tile(dgate[a, b], (row,), n0, slope * T.copy(d) * u, valid)
        T.store_tile(dup[a, b], (row,), n0, t * d, valid)
