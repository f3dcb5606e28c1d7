"""Rows of a table: ``out[r] = table[indices[r]]``. Exact.

Shapes (any strides)::

    table [V, N]   indices [R], int32 or int64   out [R, N]   error [1], float32

An index outside 0 .. V - 1 gives a row of zeros and writes 1 to ``error``, which nothing else writes.

Mapping: a block copies ``block_m`` rows, ``block_n`` columns at a time. Grid: (row block, 1, 1). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def embedding(cfg, table: T.Tensor[2], indices: T.Tensor[1], out: T.Out[2], error: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[0]
    index = T.load_integers(indices, (row,), valid)
    inside = (index >= 0) & (index < table.shape[0])
    outside = T.where(inside, 0, 1) == 1
    T.store_rows(error, (0,), T.full_rows(cfg, cfg.block_m, 1.0), valid & outside)
    for n0 in range(0, out.shape[1], cfg.block_n):
        t = T.load_tile(cfg, table, (index,), n0, cfg.block_n, valid & inside)
        T.store_tile(out, (row,), n0, t, valid)
