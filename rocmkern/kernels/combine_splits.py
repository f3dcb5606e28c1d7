"""Join the partial results of an attention that was split over the keys.

For partial outputs o_s (each normalised by its own denominator) with log-sum-exp lse_s::

    lse = ln(sum_s exp(lse_s))          out = sum_s exp(lse_s - lse) o_s

A part that saw no key has lse_s = -inf and no weight; if none saw any, out = 0 and lse = -inf.

Shapes::

    parts [splits, B, H, S, D] float32   part_lse [splits, B, H, S] float32   out [B, H, S, D]   lse [B, H, S]

Mapping: a block takes ``block_m`` rows of one (batch, head) and walks over the splits twice: first for the maximum and
the sum, then for the output, ``block_n`` columns at a time. Grid: (row block, head, batch). No local memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def combine_splits(
    cfg,
    parts: T.Tensor[5],
    part_lse: T.Tensor[4],
    out: T.Out[4],
    lse: T.Out[3],
):
    splits = parts.shape[0]
    batch = T.block_id(cfg, 2)
    head = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]

    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    for split in range(splits):
        x = T.load_rows(part_lse[split, batch, head], (row,), valid) * LOG2_E
        new = T.maximum(m, x)
        base = T.where(new == T.NEG_INF, 0.0, new)
        l = l * T.exp2(m - base) + T.exp2(x - base)
        m = new
    base = T.where(m == T.NEG_INF, 0.0, m)
    inverse = T.reciprocal_or_zero(l)

    for n0 in range(0, out.shape[3], cfg.block_n):
        acc = T.zeros(cfg, cfg.block_m, cfg.block_n)
        for split in range(splits):
            x = T.load_rows(part_lse[split, batch, head], (row,), valid) * LOG2_E
            weight = T.exp2(x - base) * inverse
            acc = acc + T.load_tile(cfg, parts[split, batch, head], (row,), n0, cfg.block_n, valid) * weight
        T.store_tile(out[batch, head], (row,), n0, acc, valid)
    if lse.shape[0] > 0:
        T.store_rows(lse[batch, head], (row,), (m + T.log2(l)) * LN_2, valid)
