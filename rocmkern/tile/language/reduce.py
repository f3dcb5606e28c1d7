"""Reductions: over the columns of a tile, over rows of a tile or of rows, over the block."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.tile.language.kinds import (
    RowsKind,
    ScalarKind,
    TileKind,
    float_rows,
    literal,
    refuse,
    same_rows,
    same_tile,
    want,
)
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.values import Rows, Tile

# ------------------------------------------------------------------------------------------------------- over columns


def _reduced(tile: Any) -> Any:
    return RowsKind(want(TileKind, tile).m, "f32", tile.hw)


@operation(_reduced)
def rowmax(tile: Tile) -> Rows:
    """Largest value of each row; NaN is ignored. Does not consume."""
    return np.fmax.reduce(tile, axis=1)


@operation(_reduced)
def rowsum(tile: Tile) -> Rows:
    """Sum of each row. Does not consume."""
    return tile.sum(axis=1, dtype=np.float32)


def _rowdot(a: Any, b: Any) -> Any:
    return _reduced(same_tile(a, b))


@operation(_rowdot)
def rowdot(a: Tile, b: Tile) -> Rows:
    """Sum over each row of the products ``a * b``. Does not consume."""
    return (a * b).sum(axis=1, dtype=np.float32)


def _square_step(tile: Any, scale: Any, total: Any) -> Any:
    rows = _reduced(tile)
    for each in (scale, total):
        same_rows(tile, float_rows(each))
    return rows, rows


@operation(_square_step)
def square_step(tile: Tile, scale: Rows, total: Rows) -> tuple[Rows, Rows]:
    """One step of a sum of squares that neither overflows nor vanishes: take in some more columns. Does not consume.

    The sum is that of scaled values, as an online softmax keeps its denominator::

        scale' = min(scale, u)
        total' = total * (scale' / scale) ** 2 + rowsum((tile * scale') ** 2)

    u is a power of two that suits the row of the tile: 1 if its squares, as they are, neither overflow nor vanish, or
    what brings its largest absolute value to 1 or up to 2. A target chooses where both will do.

    Parameters
    ----------
    tile : Tile, [M, N]
    scale, total : rows, float32
        Running scale, a power of two, at first the largest one that is of use, up to 2 ** 100; running sum, at first 0.

    Returns
    -------
    scale, total
    """
    largest = np.fmax.reduce(np.abs(tile), axis=1)
    fitting = np.clip(np.exp2(1 - np.frexp(largest)[1].astype(np.float64)), 2.0**-126, 2.0**127)
    fitting = np.where(largest == 0, 2.0**127, np.where(np.isfinite(largest), fitting, 1.0))
    new = np.fmin(scale, fitting).astype(np.float32)
    scaled = tile * new[:, None]
    before = np.where(scale == new, total, total * (new / scale) ** 2)
    return new, (before + (scaled * scaled).sum(axis=1, dtype=np.float32)).astype(np.float32)


# ---------------------------------------------------------------------------------------------------------- over rows


def _repeat_rows(x: Any, count: Any) -> Any:
    rows = want(RowsKind, x)
    return RowsKind(rows.m * literal(count, "count"), rows.kind, rows.hw)


@operation(_repeat_rows)
def repeat_rows(x: Rows, count: int) -> Rows:
    """Rows one after the other ``count`` times: row ``k * m + r`` of the result is row ``r`` of the ``m`` rows.

    On a GPU the rows must lie along lanes; so must they for `fold_sum` and `fold_max`.
    """
    return np.tile(x, count)


def _fold_max(x: Any, m: Any) -> Any:
    return RowsKind(_parts(float_rows(x), m), "f32", x.hw)


def _fold_sum(x: Any, m: Any) -> Any:
    return TileKind(_parts(x, m), x.n, x.hw) if isinstance(x, TileKind) else _fold_max(x, m)


def _parts(x: Any, m: Any) -> int:
    part = literal(m, "m")
    if part < 1 or x.m % part:
        refuse(f"{x.m} rows are no multiple of {part}")
    return part


def _folded(x: np.ndarray, m: int) -> np.ndarray:
    return x.reshape(-1, m, *x.shape[1:])


@operation(_fold_sum)
def fold_sum(x: Tile | Rows, m: int) -> Tile | Rows:
    """Add up every ``m``-th row of a tile or of float32 rows: row ``r`` is the sum of rows ``r``, ``r + m``, ...

    ``m`` is a multiple of the rows that the lanes of the block hold side by side.
    """
    return _folded(x, m).sum(axis=0, dtype=np.float32)


@operation(_fold_max)
def fold_max(x: Rows, m: int) -> Rows:
    """The largest of every ``m``-th of float32 rows, as in `fold_sum`; NaN is ignored."""
    return np.fmax.reduce(_folded(x, m), axis=0)


# ------------------------------------------------------------------------------------------------------ over the block


def _of_block(x: Any) -> Any:
    float_rows(x)
    return ScalarKind("float64")


@operation(_of_block)
def total(x: Rows) -> float:
    """Sum of float32 rows over the block, in float32: a number, the same everywhere."""
    return float(x.sum(dtype=np.float32))


@operation(_of_block)
def largest(x: Rows) -> float:
    """Largest of the block's float32 rows; NaN is ignored. A number, the same everywhere."""
    return float(np.fmax.reduce(x))
