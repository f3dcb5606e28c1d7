"""Repeat key-value heads for grouped attention: ``out[b, h] = x[b, h // n_rep]``. Exact.

Shapes (any strides)::

    x [B, Hkv, S, D]   out [B, Hkv * n_rep, S, D]

Mapping: a block copies ``block_m`` rows of one output head, ``block_n`` columns at a time. Grid: (row block, output
head, batch). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def repeat_kv(cfg, x: T.Tensor[4], out: T.Out[4], n_rep: T.Int):
    batch = T.block_id(cfg, 2)
    head = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[2]
    for n0 in range(0, x.shape[3], cfg.block_n):
        t = T.load_tile(cfg, x[batch, head // n_rep], (row,), n0, cfg.block_n, valid)
        T.store_tile(out[batch, head], (row,), n0, t, valid)
