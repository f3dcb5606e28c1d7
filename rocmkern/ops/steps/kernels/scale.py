"""``out = x * factor``.

Shapes (any strides): x, out [A, B, R, N]. Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time; out
may be x. Grid: (row block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def scale(cfg, x: T.Tensor[4], out: T.Out[4], factor: T.Float):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[2]
    for n0 in range(0, x.shape[3], cfg.block_n):
        t = T.load_tile(cfg, x[a, b], (row,), n0, cfg.block_n, valid)
        T.store_tile(out[a, b], (row,), n0, t * factor, valid)
