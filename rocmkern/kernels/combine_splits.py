"""Join the partial results of an attention that was split over the keys.

For partial outputs o_s (each normalised by its own denominator) with log-sum-exp lse_s::

    lse = ln(sum_s exp(lse_s))          out = sum_s exp(lse_s - lse) o_s

A part that saw no key has lse_s = -inf and no weight; if none saw any, out = 0 and lse = -inf.

Shapes::

    parts [B, H, S, D, splits] float32   part_lse [B, H, S, splits] float32   out [B, H, S, D]   lse [B, H, S]

Mapping: a tile row is a column of the output, and a tile column a split, so that the parts are read many at a time. A
block takes ``block_m`` columns of one (batch, head, row) and ``block_n`` splits per step, with a running maximum as in
`flash_attention`, but of natural logarithms: a binary one may be beyond float32 where they are not. Grid: (row x block
of columns, head, batch). No local memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` columns of the output by ``block_n`` splits."""

    block_m: int = 16
    block_n: int = 16


@T.kernel
def combine_splits(
    cfg,
    parts: T.Tensor[5],
    part_lse: T.Tensor[4],
    out: T.Out[4],
    lse: T.Out[3],
):
    splits = parts.shape[4]
    batch = T.block_id(cfg, 2)
    head = T.block_id(cfg, 1)
    blocks = (out.shape[3] + cfg.block_m - 1) // cfg.block_m
    row = T.block_id(cfg, 0) // blocks
    first = T.block_id(cfg, 0) % blocks * cfg.block_m
    column = T.row_index(cfg, cfg.block_m) + first
    valid = column < out.shape[3]

    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    acc = T.full_rows(cfg, cfg.block_m, 0.0)
    for s0 in range(0, splits, cfg.block_n):
        part = T.load_tile(cfg, parts[batch, head, row], (column,), s0, cfg.block_n, valid)
        x = T.load_tile(cfg, part_lse[batch, head], (row,), s0, cfg.block_n, valid)
        x = T.pad_columns(x, s0, splits, T.NEG_INF)
        new = T.maximum(m, T.rowmax(x))
        base = T.where(new == T.NEG_INF, 0.0, new)
        weight = T.exp2((x - base) * LOG2_E)
        shrink = T.exp2((m - base) * LOG2_E)
        l = l * shrink + T.rowsum(weight)
        acc = acc * shrink + T.rowdot(weight, part)
        m = new
    T.store_rows(out[batch, head, row], (column,), acc * T.reciprocal_or_zero(l), valid)
    if lse.shape[0] > 0:
        T.store_rows(lse[batch, head], (row,), m + T.log2(l) * LN_2, column == 0)
