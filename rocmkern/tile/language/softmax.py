"""The online softmax: scores are taken in some columns at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.tile.language.kernel import NEG_INF
from rocmkern.tile.language.kinds import RowsKind, TileKind, float_rows, is_scalar, refuse, same_rows, show, want
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.values import Rows, Tile


def _scale(scale: Any) -> None:
    if not is_scalar(scale):
        refuse(f"scale must be a number, got {show(scale)}")


def _softmax_step(s: Any, scale: Any, m: Any, l: Any, acc: Any) -> Any:
    want(TileKind, s, "s")
    want(TileKind, acc, "acc")
    _scale(scale)
    for other in (float_rows(m), float_rows(l), acc):
        same_rows(s, other)
    return s, m, l, acc


@operation(_softmax_step, consumes=("s", "acc"))
def softmax_step(s: Tile, scale: float, m: Rows, l: Rows, acc: Tile) -> tuple[Tile, Rows, Rows, Tile]:
    """One step of the online softmax in base 2: take in the scores ``s`` of some more columns (consumes s and acc).

    With ``base`` the running maximum (0 for a row that has seen only ``-inf``)::

        m'   = max(m, rowmax(s))
        p    = 2 ** ((s - base) * scale)
        l'   = l * 2 ** ((m - base) * scale) + rowsum(p)
        acc' = acc * 2 ** ((m - base) * scale)

    A target may take another base, and return it as m', as long as no exponent exceeds 8 (in base 2): an older, smaller
    maximum, or that of these scores alone. The quotient ``acc / l`` and ``m * scale + log2(l)`` do not depend on it.

    Parameters
    ----------
    s : Tile, [M, N]
        Scores; ``-inf`` where masked.
    scale : float
        Positive factor that turns scores into base-2 exponents.
    m, l : rows, float32
        Running maximum (of unscaled scores) and running denominator.
    acc : Tile, [M, D]
        Running numerator.

    Returns
    -------
    p, m, l, acc
    """
    scale = np.float32(scale)
    new = np.fmax(m, np.fmax.reduce(s, axis=1))
    base = np.where(new == NEG_INF, np.float32(0), new)
    p = np.exp2((s - base[:, None]) * scale)
    shrink = np.exp2((m - base) * scale)
    return p, new, l * shrink + p.sum(1, dtype=np.float32), acc * shrink[:, None]


def _softmax_end(scale: Any, m: Any, l: Any, acc: Any) -> Any:
    want(TileKind, acc, "acc")
    _scale(scale)
    for rows in (m, l):
        same_rows(acc, float_rows(rows))
    return RowsKind(acc.m, "f32", acc.hw), RowsKind(acc.m, "f32", acc.hw), acc


@operation(_softmax_end, consumes=("acc",))
def softmax_end(scale: float, m: Rows, l: Rows, acc: Tile) -> tuple[Rows, Rows, Tile]:
    """The end of the online softmax: m, l and acc of all columns (consumes acc).

    They are what the last `softmax_step` gave, and are used after this operation only: before, a target may have them
    in parts, each for some of the columns.

    Parameters
    ----------
    scale, m, l, acc
        As in `softmax_step`.

    Returns
    -------
    m, l, acc
    """
    return m, l, acc
