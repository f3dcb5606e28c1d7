"""Merge two attention results over disjoint sets of keys (cascade inference; Flash-Decoding, Dao et al., 2023).

With the log-sum-exp of each::

    lse = ln(exp(lse1) + exp(lse2))     out = exp(lse1 - lse) o1 + exp(lse2 - lse) o2

A side that saw no key has lse = -inf and no weight; if both did, out = 0 and lse = -inf.

Shapes (any strides)::

    o1, o2, out [B, H, S, D]   lse1, lse2, lse [B, H, S] float32

Mapping: a block takes ``block_m`` rows of one (batch, head), ``block_n`` columns at a time.
Grid: (row block, head, batch). No shared memory.
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
def merge_attention(
    cfg,
    o1: T.Tensor[4],
    lse1: T.Tensor[3],
    o2: T.Tensor[4],
    lse2: T.Tensor[3],
    out: T.Out[4],
    lse: T.Out[3],
):
    batch = T.block_id(cfg, 2)
    head = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]

    x1 = T.load_rows(lse1[batch, head], (row,), valid)
    x2 = T.load_rows(lse2[batch, head], (row,), valid)
    m = T.maximum(x1, x2)
    base = T.where(m == T.NEG_INF, 0.0, m)
    w1 = T.exp2((x1 - base) * LOG2_E)
    w2 = T.exp2((x2 - base) * LOG2_E)
    total = w1 + w2
    inverse = T.reciprocal_or_zero(total)

    # A side without weight is not read: whatever it holds, NaN included, must not reach the result.
    read1 = valid & (x1 != T.NEG_INF)
    read2 = valid & (x2 != T.NEG_INF)
    for n0 in range(0, out.shape[3], cfg.block_n):
        a = T.load_tile(cfg, o1[batch, head], (row,), n0, cfg.block_n, read1) * (w1 * inverse)
        b = T.load_tile(cfg, o2[batch, head], (row,), n0, cfg.block_n, read2) * (w2 * inverse)
        T.store_tile(out[batch, head], (row,), n0, a + b, valid)
    T.store_rows(lse[batch, head], (row,), m + T.log2(total) * LN_2, valid)
