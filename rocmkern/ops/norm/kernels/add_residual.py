"""``out = x + residual``.

Shapes (any strides): x, residual, out [A, B, R, N]. Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a
time; out may be x or residual. Grid: (row block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def add_residual(cfg, x: T.Tensor[4], residual: T.Tensor[4], out: T.Out[4]):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]
    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, x[a, b], (row,), n0, cfg.block_n, valid)
        u = T.load_tile(cfg, residual[a, b], (row,), n0, cfg.block_n, valid)
        T.store_tile(out[a, b], (row,), n0, t + u, valid)
