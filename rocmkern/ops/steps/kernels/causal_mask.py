"""The additive mask of a causal or windowed attention: 0 where key j is visible to query i, -inf elsewhere.

Key j is visible iff ``i + offset - left <= j <= i + offset + right``; offset is Sk - Sq for the bottom-right alignment
and 0 for the top-left one.

Shape: out [Sq, Sk]. Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time. Grid: (row block, 1, 1).
No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def causal_mask(cfg, out: T.Out[2], left: T.Int, right: T.Int, offset: T.Int):
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[0]
    for n0 in range(0, out.shape[1], cfg.block_n):
        visible = T.zeros(cfg, cfg.block_m, cfg.block_n)
        t = T.mask_outside(visible, n0, row + (offset - left), row + (offset + right))
        T.store_tile(out, (row,), n0, t, valid)
