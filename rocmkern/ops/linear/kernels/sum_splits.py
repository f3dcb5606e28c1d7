"""Add up the partial sums of a product that was split over K: ``out = activation(sum_s parts[s] + bias)``.

Shapes (any strides)::

    parts [splits, A, B, M, N] float32   bias [M, N] or [0, 0]   out [A, B, M, N]

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time. Grid: (row block and column block, B, A). No
shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.activations.kernels.activations import activate


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def sum_splits(cfg, parts: T.Tensor[5], bias: T.Tensor[2].optional("out"), out: T.Out[4], activation: T.Int):
    outer = T.block_id(cfg, 2)
    inner = T.block_id(cfg, 1)
    row_blocks = (out.shape[2] + cfg.block_m - 1) // cfg.block_m
    col0 = T.block_id(cfg, 0) // row_blocks * cfg.block_n
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) % row_blocks * cfg.block_m
    valid = row < out.shape[2]

    total = T.zeros(cfg, cfg.block_m, cfg.block_n)
    for split in range(parts.shape[0]):
        total = total + T.load_tile(cfg, parts[split, outer, inner], (row,), col0, cfg.block_n, valid)
    if bias.shape[0] > 0:
        total = total + T.load_tile(cfg, bias, (row,), col0, cfg.block_n, valid)
    T.store_tile(out[outer, inner], (row,), col0, activate(total, activation), valid)
