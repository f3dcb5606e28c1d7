"""Rotate new keys and write them and their values into a cache, at a slot each.

With L rows a page, slot s is row ``s % L`` of page ``s // L``. A token whose slot is -1 is not written; nor is one
whose slot is not in the cache, and 1 is written to ``error`` [1] then. Rotation and frequencies are those of `rope`.
Caches of 8 bits hold numbers that are to be multiplied by a scale of their head, and are rounded and bounded by the
store.

Shapes (any strides)::

    k [2, Hkv, T, P]   v [Hkv, T, Dv]   positions, slots [T]   frequencies [P]
    keys [2, pages, L, Hkv, P]   values [pages, L, Hkv, Dv]   key_scale, value_scale [Hkv]

Mapping: a block takes ``block_m`` tokens and ``heads`` heads, ``block_n`` columns at a time. Grid: (row block, head
group). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether what is stored has a scale."""

    block_m: int = 16
    block_n: int = 64
    scaled: bool = False


@T.device
def inverse(scale, head, valid):
    return T.reciprocal_or_zero(T.load_rows(scale, (head,), valid))


@T.kernel
def rope_append_kv(
    cfg,
    k: T.Tensor[4],
    v: T.Tensor[3],
    keys: T.InOut[5],
    values: T.InOut[4],
    positions: T.Tensor[1],
    slots: T.Tensor[1],
    frequencies: T.Tensor[1],
    key_scale: T.Tensor[1].optional("float32"),
    value_scale: T.Tensor[1].optional("float32"),
    error: T.Out[1],
    factor: T.Float,
    heads: T.Int,
):
    first = T.block_id(cfg, 1) * heads
    last = min(first + heads, v.shape[0])
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < v.shape[1]
    position = T.load_integers(positions, (row,), valid)
    slot = T.load_integers(slots, (row,), valid)
    length = values.shape[1]
    written = valid & (slot >= 0) & (slot < values.shape[0] * length)
    wrong = T.where(written, 0, 1) == 1
    T.store_rows(error, (0,), T.full_rows(cfg, cfg.block_m, 1.0), valid & wrong & (slot != -1))
    page = slot // length
    line = slot % length
    for n0 in range(0, k.shape[3], cfg.block_n):
        cos, sin = T.rotations(cfg, position, frequencies, n0, cfg.block_n)
        cos = cos * factor
        sin = sin * factor
        for head in range(first, last):
            a = T.load_tile(cfg, k[0, head], (row,), n0, cfg.block_n, written)
            b = T.load_tile(cfg, k[1, head], (row,), n0, cfg.block_n, written)
            a, b = T.rotate(a, b, cos, sin)
            if cfg.scaled:
                a = a * inverse(key_scale, head, valid)
            T.store_tile(keys[0], (page, line, head), n0, a, written)
            if cfg.scaled:
                b = b * inverse(key_scale, head, valid)
            T.store_tile(keys[1], (page, line, head), n0, b, written)
    for n0 in range(0, v.shape[2], cfg.block_n):
        for head in range(first, last):
            t = T.load_tile(cfg, v[head], (row,), n0, cfg.block_n, written)
            if cfg.scaled:
                t = t * inverse(value_scale, head, valid)
            T.store_tile(values, (page, line, head), n0, t, written)
