"""Join the partial results of an attention that was split over the keys.

For partial outputs o_s (each normalised by its own denominator) with log-sum-exp lse_s::

    lse = ln(sum_s exp(lse_s))          out = sum_s exp(lse_s - lse) o_s

A part that saw no key has lse_s = -inf and no weight; if none saw any, out = 0 and lse = -inf.

Shapes::

    parts [splits, B, H, S, D] float32   part_lse [splits, B, H, S] float32
    out [B, H, S, D]   lse [B, H, S], or [B, 0, 0] where nobody asks for it

Mapping: a block takes ``block_m`` rows of one (batch, head), with all their columns, and ``splits`` parts per step: its
tile rows are the rows of the first part, then those of the second one, and so on, so that a lane has all parts of what
it adds up and reads them at once. There is a running maximum as in `flash_attention`, but of natural logarithms: a
binary one may be beyond float32 where they are not. Grid: (row block, head, batch). No local memory.

With ``cfg.joins`` `flash_attention` does the same itself, in the last of the blocks that have parts of the rows.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows of ``columns`` columns at most, ``splits`` parts per step."""

    block_m: int = 2
    columns: int = 64
    splits: int = 4

    @property
    def part_rows(self) -> int:
        """Tile rows of a step."""
        return self.block_m * self.splits


@T.device
def join_parts(cfg, parts, part_lse, out, lse, batch, head, row, valid):
    """Join the parts of the rows (head, row) of a batch."""
    block_m, count = cfg.block_m, cfg.splits
    heads, rows, exist = T.repeat_rows(head, count), T.repeat_rows(row, count), T.repeat_rows(valid, count)
    m = T.full_rows(cfg, block_m, T.NEG_INF)
    l = T.full_rows(cfg, block_m, 0.0)
    acc = T.zeros(cfg, block_m, cfg.columns)
    for first in range(0, parts.shape[0], count):
        split = T.row_index(cfg, cfg.part_rows) // block_m + first
        exists = exist & (split < parts.shape[0])
        x = T.where(exists, T.load_rows(part_lse, (split, batch, heads, rows), exists), T.NEG_INF)
        part = T.load_tile(cfg, parts, (split, batch, heads, rows), 0, cfg.columns, exists)
        new = T.maximum(m, T.fold_max(x, block_m))
        base = T.where(new == T.NEG_INF, 0.0, new)
        weight = T.exp2((x - T.repeat_rows(base, count)) * LOG2_E)
        shrink = T.exp2((m - base) * LOG2_E)
        l = l * shrink + T.fold_sum(weight, block_m)
        acc = acc * shrink + T.fold_sum(part * weight, block_m)
        m = new
    T.store_tile(out[batch], (head, row), 0, acc * T.reciprocal_or_zero(l), valid)
    if lse.shape[1] > 0:
        T.store_rows(lse[batch], (head, row), m + T.log2(l) * LN_2, valid)


@T.kernel
def combine_splits(
    cfg,
    parts: T.Tensor[5],
    part_lse: T.Tensor[4],
    out: T.Out[4],
    lse: T.Out[3],
):
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    head = row * 0 + T.block_id(cfg, 1)
    join_parts(cfg, parts, part_lse, out, lse, T.block_id(cfg, 2), head, row, row < out.shape[2])
