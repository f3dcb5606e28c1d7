"""`gated_mlp` of one row: ``out = activation(x @ w_gate^T + b_gate) * (x @ w_up^T + b_up)``.

Shapes (x, biases, out: any strides)::

    x [A, B, 1, K]   w_gate, w_up [N, K]   b_gate, b_up [1, N] or [0, 0]   out [A, B, 1, N]

Mapping, as `row_product`: the tile rows of a block are ``block_n`` rows of both weights, along lanes; it walks along K,
``block_k`` at a time. Grid: (row block of the weights, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.activations.kernels.activations import activate


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_n`` rows of the weights of a block, ``block_k`` of K in a step."""

    block_n: int = 16
    block_k: int = 64


@T.kernel
def gated_row(
    cfg,
    x: T.Tensor[4],
    w_gate: T.Tensor[2],
    w_up: T.Tensor[2],
    b_gate: T.Tensor[2].optional("x"),
    b_up: T.Tensor[2].optional("x"),
    out: T.Out[4],
    activation: T.Int,
):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_n) + T.block_id(cfg, 0) * cfg.block_n
    valid = row < w_up.shape[0]

    every_wave = T.row_index(cfg, cfg.waves) >= 0
    gate = T.full_rows(cfg, cfg.block_n, 0.0)
    up = T.full_rows(cfg, cfg.block_n, 0.0)
    for k0 in range(0, x.shape[3], cfg.block_k):
        numbers = T.load_tile(cfg, x[a, b], (0,), k0, cfg.block_k, every_wave)
        gate = gate + T.load_rowdot(w_gate, (row,), k0, numbers, valid)
        up = up + T.load_rowdot(w_up, (row,), k0, numbers, valid)

    if b_gate.shape[0] > 0:
        gate = gate + T.load_rows(b_gate, (0, row), valid)
    if b_up.shape[0] > 0:
        up = up + T.load_rows(b_up, (0, row), valid)
    T.store_rows(out, (a, b, 0, row), activate(gate, activation) * up, valid)
