"""``out = FILL IN``.

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


def of_number(x):
    """FILL IN: one number of the result, in float32; see `rocmkern.tile.map`."""
    return x


@T.kernel
def new_operation(cfg, x: T.Tensor[4], out: T.Out[4]):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]
    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, x[a, b], (row,), n0, cfg.block_n, valid)
        T.store_tile(out[a, b], (row,), n0, T.map(of_number, t), valid)
