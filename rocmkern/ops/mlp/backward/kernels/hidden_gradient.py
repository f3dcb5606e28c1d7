"""Gradients of the two products of a gated MLP, for that of what they become: ``h = activation(gate) * up``.

::

    dgate = dh * up * activation'(gate)     dup = dh * activation(gate)

Slopes: `rocmkern.ops.linear.backward.kernels.activation_gradient`.

Shapes (any strides): gate, up, dh, h, dgate, dup [A, B, R, N]; dgate may be gate, and dup up or dh, because each block
reads what it overwrites first. h, which the gradient of the last weights needs, may be absent. Mapping: a block takes
``block_m`` rows, ``block_n`` columns at a time. Grid: (row block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.activations.kernels.activations import activate
from rocmkern.ops.linear.backward.kernels.activation_gradient import through_activation


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def hidden_gradient(
    cfg,
    gate: T.Tensor[4],
    up: T.Tensor[4],
    dh: T.Tensor[4],
    h: T.Out[4].optional("dh"),
    dgate: T.Out[4],
    dup: T.Out[4],
    activation: T.Int,
):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < dh.shape[2]
    for n0 in range(0, dh.shape[3], cfg.block_n):
        t = T.load_tile(cfg, gate[a, b], (row,), n0, cfg.block_n, valid)
        u = T.load_tile(cfg, up[a, b], (row,), n0, cfg.block_n, valid)
        d = T.load_tile(cfg, dh[a, b], (row,), n0, cfg.block_n, valid)
        acted = activate(T.copy(t), activation)
        if h.shape[2] > 0:
            T.store_tile(T.reread(h)[a, b], (row,), n0, T.copy(acted) * T.copy(u), valid)
        T.store_tile(T.reread(dup)[a, b], (row,), n0, acted * T.copy(d), valid)
        T.store_tile(T.reread(dgate)[a, b], (row,), n0, through_activation(t, d * u, activation), valid)
