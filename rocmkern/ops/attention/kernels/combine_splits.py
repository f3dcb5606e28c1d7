"""Join the partial results of an attention that was split over the keys.

For partial outputs o_s (each normalised by its own denominator) with log-sum-exp lse_s::

    lse = ln(sum_s exp(lse_s))          out = sum_s exp(lse_s - lse) o_s

A part that saw no key has lse_s = -inf and no weight; if none saw any, out = 0 and lse = -inf.

Shapes::

    parts [splits * B * H * S * pitch] float32: rows of D columns padded to ``cfg.columns``, then lse_s
    out [B, H, S, D]   lse [B, H, S], if somebody asks for it

Mapping: a block takes ``block_m`` rows of one (batch, head), with all their columns, and ``splits`` parts per step: its
tile rows are the rows of the first part, then those of the second one, and so on, so that a lane has all parts of what
it adds up and reads them at once. There is a running maximum as in `flash_attention`, but of natural logarithms: a
binary one may be beyond float32 where they are not. Grid: (row block, head, batch). No shared memory.

With ``cfg.joins`` `flash_attention` does the same itself, in the last of the blocks that have parts of the rows.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows of ``columns`` columns at most, ``splits`` parts per step.

    Behind its columns a row of parts has the logarithm of their weight, and with ``sums`` another factor of it: parts
    are numerators then, and it is their denominator.
    """

    block_m: int = 2
    columns: int = 64
    splits: int = 4
    sums: bool = False

    @property
    def part_rows(self) -> int:
        """Tile rows of a step."""
        return self.block_m * self.splits

    @property
    def pitch(self) -> int:
        """Elements from one row of parts to the next: a multiple of 16 bytes."""
        return self.columns + 4


@T.device
def join_parts(cfg, parts, place, step, splits, factor, valid):
    """Maximum, denominator and numerators of rows whose first part is row ``place`` of parts, the next ``step`` below.

    Weights are 2 to the power of ``factor`` times their logarithms.
    """
    block_m, count = cfg.block_m, cfg.splits
    places, exist = T.repeat_rows(place, count), T.repeat_rows(valid, count)
    # The difference is known when this is compiled.
    number = (T.row_index(cfg, cfg.part_rows) - T.repeat_rows(T.row_index(cfg, block_m), count)) // block_m
    m = T.full_rows(cfg, block_m, T.NEG_INF)
    l = T.full_rows(cfg, block_m, 0.0)
    acc = T.zeros(cfg, block_m, cfg.columns)
    for first in range(0, splits, count):
        # Where there are no more, the last part is read again, and each copy of it has its share of the weight: reads
        # that all lanes do alike are all on their way before one of them is waited for.
        split, last = number + first, splits - 1
        copies = T.full_rows(cfg, cfg.part_rows, float(max(first + count - last, 1)))
        at = places + T.minimum(split, last) * step
        part = T.load_tile(cfg, parts, (at,), 0, cfg.columns, exist)
        x = T.load_rows(parts, (at, cfg.columns), exist)
        sums = T.full_rows(cfg, cfg.part_rows, 1.0)
        if cfg.sums:
            sums = T.load_rows(parts, (at, cfg.columns + 1), exist)
        new = T.maximum(m, T.fold_max(x, block_m))
        base = T.where(new == T.NEG_INF, 0.0, new)
        weight = T.exp2((x - T.repeat_rows(base, count)) * factor)
        weight = T.where(split < last, weight, weight * T.reciprocal_or_zero(copies))
        shrink = T.exp2((m - base) * factor)
        l = l * shrink + T.fold_sum(weight * sums, block_m)
        acc = acc * shrink + T.fold_sum(part * weight, block_m)
        m = new
    return m, l, acc


@T.kernel
def combine_splits(
    cfg,
    parts: T.Tensor[1],
    out: T.Out[4],
    lse: T.Out[3].optional("float32"),
    splits: T.Int,
):
    rows, heads = out.shape[2], out.shape[1]
    batch, head = T.block_id(cfg, 2), T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < rows
    place = row + (batch * heads + head) * rows
    step = out.shape[0] * heads * rows
    m, l, acc = join_parts(cfg, T.scratch_rows(parts, cfg.pitch), place, step, splits, LOG2_E, valid)
    index = row * 0 + head, row
    T.store_tile(out[batch], index, 0, acc * T.reciprocal_or_zero(l), valid)
    if lse.shape[1] > 0:
        T.store_rows(lse[batch], index, m + T.log2(l) * LN_2, valid)
