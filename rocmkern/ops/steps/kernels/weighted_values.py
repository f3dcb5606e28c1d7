"""Attention output from probabilities: ``out = p @ v`` with grouped heads.

A probability of exactly 0 (a masked key) contributes nothing, even where v is NaN or infinite.

Shapes (any strides)::

    p [B, Hq, Sq, Sk]   v [B, Hkv, Sk, Dv]   out [B, Hq, Sq, Dv]

Query head h reads value head ``h // (Hq // Hkv)``. Mapping: a block takes ``block_m`` queries of one (batch, head) and
walks over the keys, ``block_n`` at a time. Grid: (query block, query head, batch). Shared memory: one window of values,
``block_n * value_dim`` elements.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` queries, ``block_n`` keys, ``value_dim`` an upper bound of Dv."""

    block_m: int = 16
    block_n: int = 16
    value_dim: int = 64


@T.kernel
def weighted_values(cfg, p: T.Tensor[4], v: T.Tensor[4], out: T.Out[4]):
    batch = T.block_id(cfg, 2)
    head = T.block_id(cfg, 1)
    kv_head = head // (p.shape[1] // v.shape[1])
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < p.shape[2]

    acc = T.zeros(cfg, cfg.block_m, cfg.value_dim)
    values = T.stage(cfg, v[batch, kv_head], cfg.block_n, cfg.value_dim)
    values = T.fetch(values, 0)
    for n0 in range(0, v.shape[2], cfg.block_n):
        values = T.fetch(T.acquire(values), n0 + cfg.block_n)
        weights = T.load_operand(cfg, p[batch, head], (row,), n0, cfg.block_n, valid)
        acc = T.dot_nn_where(weights, values, acc)
        values = T.release(values)
    T.finish(values)
    T.store_tile(out[batch, head], (row,), 0, acc, valid)
