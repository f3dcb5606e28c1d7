"""``out = min(max(x, low), high)``; NaN stays NaN, and where low is above high it is high.

Shapes (any strides): x, out [A, B, R, N]. A bound that there is not is an infinite one. Mapping: a block takes
``block_m`` rows, ``block_n`` columns at a time; out may be x. Grid: (row block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


def between(x: float, low: float, high: float) -> float:
    """Comparisons, because `minimum` and `maximum` ignore NaN."""
    raised = T.where(x < low, low, x)
    return T.where(raised > high, high, raised)


@T.kernel
def clamp(cfg, x: T.Tensor[4], out: T.Out[4], low: T.Float, high: T.Float):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]
    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, x[a, b], (row,), n0, cfg.block_n, valid)
        T.store_tile(out[a, b], (row,), n0, T.map(between, t, low, high), valid)
