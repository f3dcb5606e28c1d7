"""Attention scores: ``scores = scale * q @ k^T`` with grouped heads.

Shapes (any strides)::

    q [B, Hq, Sq, D]   k [B, Hkv, Sk, D]   out [B, Hq, Sq, Sk]

Query head h reads key head ``h // (Hq // Hkv)``. Mapping: a block takes ``block_m`` queries of one (batch, head) and
walks over the keys, ``block_n`` at a time. Grid: (query block, query head, batch). Shared memory: one window of keys,
``block_n * head_dim`` elements.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` queries, ``block_n`` keys, ``head_dim`` an upper bound of D."""

    block_m: int = 16
    block_n: int = 16
    head_dim: int = 64


@T.kernel
def qk_scores(cfg, q: T.Tensor[4], k: T.Tensor[4], out: T.Out[4], scale: T.Float):
    batch = T.block_id(cfg, 2)
    head = T.block_id(cfg, 1)
    kv_head = head // (q.shape[1] // k.shape[1])
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < q.shape[2]

    q_tile = T.load_operand(cfg, q[batch, head], (row,), 0, cfg.head_dim, valid)
    keys = T.stage(cfg, k[batch, kv_head], cfg.block_n, cfg.head_dim)
    keys = T.fetch(keys, 0)
    for n0 in range(0, k.shape[2], cfg.block_n):
        keys = T.fetch(T.acquire(keys), n0 + cfg.block_n)
        s = T.dot_nt(q_tile, keys) * scale
        keys = T.release(keys)
        T.store_tile(out[batch, head], (row,), n0, s, valid)
    T.finish(keys)
