"""First half of a gated MLP: ``out = activation(x @ w_gate^T + b_gate) * (x @ w_up^T + b_up)``.

With the activation SiLU this is SwiGLU, with GELU it is GEGLU (Shazeer, 2020). Neither product is ever written.

Shapes (any strides)::

    x [A, B, M, K]   w_gate, w_up [N, K]   b_gate, b_up [1, N] or [0, 0]   out [A, B, M, N]

Mapping. A block computes ``block_m`` rows and the same ``block_n`` columns of both products, ``block_k`` of K at a
time; windows of ``num_stages`` steps ahead are on their way. Its grid index is (row block and column block, B, A), see
`product_block`.

Shared memory: windows of x and of each weight, ``(block_m + 2 * block_n) * block_k`` elements in use and as many for
each step on its way.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.activations.kernels.activations import activate
from rocmkern.ops.linear.kernels.product_block import product_block


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows and ``block_n`` columns of a block, ``block_k`` of K in a step.

    ``group_m``: see `product_block`.
    """

    block_m: int = 16
    block_n: int = 16
    block_k: int = 16
    group_m: int = 0


@T.kernel
def gated_mlp(
    cfg,
    x: T.Tensor[4],
    w_gate: T.Tensor[2],
    w_up: T.Tensor[2],
    b_gate: T.Tensor[2].optional("x"),
    b_up: T.Tensor[2].optional("x"),
    out: T.Out[4],
    activation: T.Int,
):
    outer = T.block_id(cfg, 2)
    inner = T.block_id(cfg, 1)
    row_blocks = (x.shape[2] + cfg.block_m - 1) // cfg.block_m
    column_blocks = (out.shape[3] + cfg.block_n - 1) // cfg.block_n
    row_block, column_block = product_block(cfg, T.block_id(cfg, 0), row_blocks, column_blocks)
    row0, col0 = row_block * cfg.block_m, column_block * cfg.block_n
    row = T.row_index(cfg, cfg.block_m) + row0
    valid = row < x.shape[2]

    left = T.stage(cfg, x[outer, inner], cfg.block_m, cfg.block_k)
    gate_weights = T.stage(cfg, w_gate, cfg.block_n, cfg.block_k)
    up_weights = T.stage(cfg, w_up, cfg.block_n, cfg.block_k)
    for ahead in range(0, cfg.num_stages * cfg.block_k, cfg.block_k):
        left = T.fetch(left, row0, ahead)
        gate_weights = T.fetch(gate_weights, col0, ahead)
        up_weights = T.fetch(up_weights, col0, ahead)
    gate = T.zeros(cfg, cfg.block_m, cfg.block_n)
    up = T.zeros(cfg, cfg.block_m, cfg.block_n)
    for k0 in range(0, x.shape[3], cfg.block_k):
        left = T.acquire(left)
        gate_weights = T.acquire(gate_weights)
        up_weights = T.acquire(up_weights)
        left = T.fetch(left, row0, k0 + cfg.num_stages * cfg.block_k)
        gate_weights = T.fetch(gate_weights, col0, k0 + cfg.num_stages * cfg.block_k)
        up_weights = T.fetch(up_weights, col0, k0 + cfg.num_stages * cfg.block_k)
        gate = T.dot_nt(left, gate_weights, gate)
        up = T.dot_nt(left, up_weights, up)
        left = T.release(left)
        gate_weights = T.release(gate_weights)
        up_weights = T.release(up_weights)
    T.finish(left)
    T.finish(gate_weights)
    T.finish(up_weights)

    if b_gate.shape[0] > 0:
        gate = gate + T.load_tile(cfg, b_gate, (0,), col0, cfg.block_n, valid)
    if b_up.shape[0] > 0:
        up = up + T.load_tile(cfg, b_up, (0,), col0, cfg.block_n, valid)
    T.store_tile(out[outer, inner], (row,), col0, activate(gate, activation) * up, valid)
