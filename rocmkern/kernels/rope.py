"""Rotary position embedding (Su et al., RoFormer, 2021): turn each pair of a head by an angle of its position.

For the pair i of a row at position p, with the frequency f_i::

    out[0]_i = factor * (x[0]_i cos(p f_i) - x[1]_i sin(p f_i))
    out[1]_i = factor * (x[1]_i cos(p f_i) + x[0]_i sin(p f_i))

Which elements make a pair is a matter of views: x[0] and x[1] are the two halves of the rotated part, or its even and
odd elements. Frequencies are in turns, times 2 ** 64, modulo 2 ** 64, so that the angle
modulo one turn is an exact integer product (`rocmkern.tile.angles`).

Shapes (any strides)::

    x, out [2, B, H, S, P]   positions [B, S]   frequencies [P]

out may be x. ``direction`` is 1, or -1 for the inverse rotation.

Mapping: a block takes ``block_m`` rows and ``heads`` heads, so that angles are found once for several heads, and
``block_n`` pairs at a time. Grid: (row block, head group, batch). No local memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def rope(
    cfg,
    x: T.Tensor[5],
    out: T.Out[5],
    positions: T.Tensor[2],
    frequencies: T.Tensor[1],
    factor: T.Float,
    direction: T.Float,
    heads: T.Int,
):
    batch = T.block_id(cfg, 2)
    first = T.block_id(cfg, 1) * heads
    last = min(first + heads, x.shape[2])
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[3]
    position = T.load_integers(positions[batch], (row,), valid)
    for n0 in range(0, x.shape[4], cfg.block_n):
        cos, sin = T.rotations(cfg, position, frequencies, n0, cfg.block_n)
        cos = cos * factor
        sin = sin * (factor * direction)
        for head in range(first, last):
            a = T.load_tile(cfg, x[0, batch, head], (row,), n0, cfg.block_n, valid)
            b = T.load_tile(cfg, x[1, batch, head], (row,), n0, cfg.block_n, valid)
            a, b = T.rotate(a, b, cos, sin)
            T.store_tile(out[0, batch, head], (row,), n0, a, valid)
            T.store_tile(out[1, batch, head], (row,), n0, b, valid)
