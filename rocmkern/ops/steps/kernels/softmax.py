"""Softmax over the last axis: ``out = exp(x - max(x)) / sum(exp(x - max(x)))``.

A row that is -inf throughout gives zeros. A row that a tile holds is read once. Else there are two passes over memory:
the first keeps a running maximum and sum (Milakov and Gimelshein, 2018), the second writes.

Shapes (any strides)::

    x, out [A, B, R, N]

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time. Grid: (row block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether a tile holds whole rows."""

    block_m: int = 16
    block_n: int = 64
    single: bool = False


@T.device
def store_single(cfg, x, out, row, valid):
    t = T.pad_columns(T.load_tile(cfg, x, (row,), 0, cfg.block_n, valid), 0, x.shape[1], T.NEG_INF)
    m = T.rowmax(t)
    t = T.exp2((t - T.where(m == T.NEG_INF, 0.0, m)) * LOG2_E)
    inverse = T.reciprocal_or_zero(T.rowsum(t))
    T.store_tile(out, (row,), 0, t * inverse, valid)


@T.device
def store_in_tiles(cfg, x, out, row, valid):
    n_columns = x.shape[1]
    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.pad_columns(T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid), n0, n_columns, T.NEG_INF)
        new = T.maximum(m, T.rowmax(t))
        base = T.where(new == T.NEG_INF, 0.0, new)
        l = l * T.exp2((m - base) * LOG2_E) + T.rowsum(T.exp2((t - base) * LOG2_E))
        m = new

    base = T.where(m == T.NEG_INF, 0.0, m)
    inverse = T.reciprocal_or_zero(l)
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid)
        T.store_tile(out, (row,), n0, T.exp2((t - base) * LOG2_E) * inverse, valid)


@T.kernel
def softmax(cfg, x: T.Tensor[4], out: T.Out[4]):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[2]
    if cfg.single:
        store_single(cfg, x[a, b], out[a, b], row, valid)
    else:
        store_in_tiles(cfg, x[a, b], out[a, b], row, valid)
