"""Rotations of pairs by angles that are exact at every position."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.tile.language.kernel import Config
from rocmkern.tile.language.kinds import (
    TensorKind,
    TileKind,
    integers,
    literal,
    refuse,
    rows_of,
    same_tile,
    show,
)
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.values import Rows, Tensor, Tile


def _rotations(cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any) -> Any:
    rows_of(position, "i32", "position")
    if not (isinstance(frequencies, TensorKind) and (frequencies.dtype, frequencies.ndim) == ("int64", 1)):
        refuse(f"frequencies must be a tensor of int64 with 1 axis, got {show(frequencies)}")
    integers(col0=col0)
    tile = TileKind(position.m, literal(n, "n"), position.hw)
    return tile, tile


@operation(_rotations)
def rotations(cfg: Config, position: Rows, frequencies: Tensor, col0: int, n: int) -> tuple[Tile, Tile]:
    """Cosine and sine of the angles ``position[r] * frequencies[col0 + c]``; the unit is 2 ** -64 of a turn.

    The product is taken modulo one turn, in integers, so that no angle is too large to be exact: the absolute error
    is below 2e-7 at every position. Columns past the end of ``frequencies`` have angle 0. At angle 0 the results are
    1 and 0.

    Parameters
    ----------
    position : rows, int32
    frequencies : tensor, int64, [N]
        Frequencies in turns, times 2 ** 64, modulo 2 ** 64.
    col0, n : int
        First column and number of columns.

    Returns
    -------
    cos, sin : Tile, [M, n]
    """
    turns = np.zeros(n, np.int64)
    part = frequencies[col0 : col0 + n]
    turns[: len(part)] = part
    phase = position.astype(np.int64)[:, None] * turns[None, :]
    angle = phase.astype(np.float64) * (2 * np.pi / 2.0**64)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _rotate(a: Any, b: Any, cos: Any, sin: Any) -> Any:
    for other in (b, cos, sin):
        same_tile(a, other)
    return a, a


@operation(_rotate, consumes=("a", "b"))
def rotate(a: Tile, b: Tile, cos: Tile, sin: Tile) -> tuple[Tile, Tile]:
    """``a * cos - b * sin`` and ``b * cos + a * sin``: rotate the points (a, b) (consumes a and b).

    Where ``sin`` is 0 they are ``a * cos`` and ``b * cos``, whatever the other one is.
    """
    return np.where(sin == 0, a * cos, a * cos - b * sin), np.where(sin == 0, b * cos, b * cos + a * sin)
