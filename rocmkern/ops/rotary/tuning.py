"""Block sizes of rotary embeddings for each architecture, as data, and the rules that pick among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocmkern.architectures import architecture, tuned
from rocmkern.ops.rotary.kernels import rope
from rocmkern.tile.language.kernel import VECTOR_WIDTH


@dataclass(frozen=True)
class Rotary:
    """Block sizes of one architecture.

    Attributes
    ----------
    rows, pairs, waves : int
        Of a block, which holds four tiles.
    rotated_rows : tuple of int
        Rows of a lane to choose from where the rows are heads; none: they are positions.
    """

    rows: int
    pairs: int
    waves: int
    rotated_rows: tuple[int, ...] = ()


SIZES = {
    "python": Rotary(16, 64, 1),
    "cpu": Rotary(8, 64, 1),
    "amd": Rotary(64, 16, 4),
    "nvidia": Rotary(64, 16, 4, rotated_rows=(2, 4)),
}
#: Lanes of a row to choose from.
_ROTATED_LANES = (4, 8, 16)


def rotation(arch: str, heads: int, pairs: int, interleaved: bool) -> rope.Config:
    """Variant of ``rope`` for so many heads, with so many pairs each."""
    rows = tuned(SIZES, arch).rotated_rows
    return heads_as_rows(arch, heads, pairs, interleaved, rows) if rows else rotary(rope.Config, arch)


def heads_as_rows(arch: str, heads: int, pairs: int, interleaved: bool, rows: tuple[int, ...]) -> rope.Config:
    """`rotation` where the rows are heads, so many to a lane, which share angles; a block is one wave.

    An H200 took 22 us for 4096 positions of 32 heads of 128 elements with 1 to 8 rows a lane, but for 8 heads 9.6 us
    with 2 rows a lane and 13.6 us with 8.
    """
    lanes = next((n for n in _ROTATED_LANES if n * VECTOR_WIDTH >= pairs), _ROTATED_LANES[-1])
    at_once = architecture(arch).wave // lanes
    block_m = at_once * next((n for n in rows if n * at_once >= heads), rows[-1])
    block: dict[str, Any] = {"block_m": block_m, "block_n": lanes * VECTOR_WIDTH, "threads_per_row": lanes}
    return rope.Config(arch=arch, **block, rows_are_heads=True, neighbours=interleaved)


def rotary(config: type, arch: str, **features: Any) -> Any:
    """Variant of a rotary embedding: ``config`` is its kernel's Config."""
    sizes = tuned(SIZES, arch)
    return config(arch=arch, waves=sizes.waves, block_m=sizes.rows, block_n=sizes.pairs, **features)
