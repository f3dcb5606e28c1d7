"""Rotary position embedding (Su et al., RoFormer, 2021): turn each pair of a head by an angle of its position.

For the pair i of a row at position p, with the frequency f_i::

    out[0]_i = factor * (x[0]_i cos(p f_i) - x[1]_i sin(p f_i))
    out[1]_i = factor * (x[1]_i cos(p f_i) + x[0]_i sin(p f_i))

Which elements make a pair is a matter of views: x[0] and x[1] are the two halves of the rotated part, or its even and
odd elements. Frequencies are in turns, times 2 ** 64, modulo 2 ** 64, so that the angle
modulo one turn is an exact integer product (`rocmkern.tile._lowering.shared.angles`).

Shapes (any strides)::

    x, out [2, B, H, S, P] (or S, H)   positions [B, S]   frequencies [P]

out may be x. ``direction`` is 1, or -1 for the inverse rotation.

Mapping: a tile has ``block_m`` rows and ``block_n`` pairs, and a block goes through ``share`` tiles. With
``rows_are_heads`` its rows are heads at one position, whose angles are found once for all of them, and the block goes
through positions. Else they are positions, and it goes through heads. Axes J and R are S and H, or H and S::

    x, out [2, B, J, R, P]

Grid: (row block, group of ``share``, batch). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether rows are heads; whether the elements
    of a pair are neighbours, and it pays to read them together."""

    block_m: int = 16
    block_n: int = 64
    rows_are_heads: bool = False
    neighbours: bool = False


@T.device
def angles(cfg, position, frequencies, n0, factor, direction):
    cos, sin = T.rotations(cfg, position, frequencies, n0, cfg.block_n)
    return cos * factor, sin * (factor * direction)


@T.device
def load(cfg, x, y, row, n0, valid):
    if cfg.neighbours:
        return T.load_pair(cfg, x, y, (row,), n0, cfg.block_n, valid)
    return T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid), T.load_tile(cfg, y, (row,), n0, cfg.block_n, valid)


@T.device
def store(cfg, x, y, row, n0, a, b, valid):
    if cfg.neighbours:
        T.store_pair(x, y, (row,), n0, a, b, valid)
    else:
        T.store_tile(x, (row,), n0, a, valid)
        T.store_tile(y, (row,), n0, b, valid)


@T.kernel
def rope(
    cfg,
    x: T.Tensor[5],
    out: T.Out[5],
    positions: T.Tensor[2],
    frequencies: T.Tensor[1],
    factor: T.Float,
    direction: T.Float,
    share: T.Int,
):
    batch = T.block_id(cfg, 2)
    first = T.block_id(cfg, 1) * share
    last = min(first + share, x.shape[2])
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[3]
    for n0 in range(0, x.shape[4], cfg.block_n):
        if not cfg.rows_are_heads:
            position = T.load_integers(positions[batch], (row,), valid)
            cos, sin = angles(cfg, position, frequencies, n0, factor, direction)
        for j in range(first, last):
            a, b = load(cfg, x[0, batch, j], x[1, batch, j], row, n0, valid)
            if cfg.rows_are_heads:
                position = T.full_rows(cfg, cfg.block_m, positions[batch, j])
                cos, sin = angles(cfg, position, frequencies, n0, factor, direction)
            a, b = T.rotate(a, b, cos, sin)
            store(cfg, out[0, batch, j], out[1, batch, j], row, n0, a, b, valid)
