"""Softmax over the last axis: ``out = exp(x - max(x)) / sum(exp(x - max(x)))``.

A row that is -inf throughout gives zeros. Two passes over memory: the first keeps a running maximum and sum (Milakov
and Gimelshein, 2018), the second writes.

Shapes (any strides)::

    x, out [A, B, R, N]

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time. Grid: (row block, B, A). No local memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def softmax(cfg, x: T.Tensor[4], out: T.Out[4]):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    n_columns = x.shape[3]
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[2]

    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.pad_columns(T.load_tile(cfg, x[a, b], (row,), n0, cfg.block_n, valid), n0, n_columns, T.NEG_INF)
        new = T.maximum(m, T.rowmax(t))
        base = T.where(new == T.NEG_INF, 0.0, new)
        l = l * T.exp2((m - base) * LOG2_E) + T.rowsum(T.exp2((t - base) * LOG2_E))
        m = new

    base = T.where(m == T.NEG_INF, 0.0, m)
    inverse = T.reciprocal_or_zero(l)
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.load_tile(cfg, x[a, b], (row,), n0, cfg.block_n, valid)
        T.store_tile(out[a, b], (row,), n0, T.exp2((t - base) * LOG2_E) * inverse, valid)
