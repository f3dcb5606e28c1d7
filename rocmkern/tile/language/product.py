"""Products of matrices, in all orientations, and of rows with a vector."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.tile.language.kernel import Config, rows_at_once
from rocmkern.tile.language.kinds import (
    ConfigKind,
    OperandKind,
    RowsKind,
    StageKind,
    TensorKind,
    TileKind,
    flag,
    index_of,
    integers,
    literal,
    refuse,
    show,
    valid_rows,
    want,
    whole_runs,
)
from rocmkern.tile.language.memory import gathered
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.values import Index, Operand, Quantized, Rows, Stage, Tensor, Tile

# ----------------------------------------------------------------------------------------------------------- operands


def _load_operand(cfg: Any, x: Any, index: Any, col0: Any, k: Any, valid: Any) -> Any:
    want(TensorKind, x, "the tensor")
    index_of(x, index, 1, valid_rows(valid).m)
    integers(col0=col0)
    return OperandKind(valid.m, literal(k, "k"), x.dtype, want(ConfigKind, cfg, "cfg").hw)


@operation(_load_operand)
def load_operand(cfg: Config, x: Tensor, index: Index, col0: int, k: int, valid: Rows) -> Operand:
    """As `load_tile` of a tensor, as the left operand of a product."""
    return gathered(x, index, col0, k, valid)


def _operand(tile: Any, like: Any) -> Any:
    want(TileKind, tile, "the tile")
    return OperandKind(tile.m, tile.n, want(StageKind, like, "like").dtype, tile.hw)


@operation(_operand, consumes=("tile",))
def operand(tile: Tile, like: Stage) -> Operand:
    """Make a tile (consumed) the left operand of a product with ``like``; a target may round it to ``like``'s dtype."""
    return tile


# ------------------------------------------------------------------------------------------------ products of matrices


def _sides(a: Any, b: Any, cls: type) -> None:
    """What both sides of a product must be."""
    want(cls, a, "the left side")
    want(StageKind, b, "the right side")
    if a.dtype != b.dtype:
        refuse(f"the left side has dtype {a.dtype}, the right side {b.dtype}")


def _left_shape(a: Any, b: Any) -> tuple[int, int]:
    """Shape of a left side that is an operand or a stage."""
    _sides(a, b, StageKind if isinstance(a, StageKind) else OperandKind)
    return (a.n if isinstance(a, StageKind) else a.m), a.k


def _product(left: tuple[int, int], right: tuple[int, int], hw: tuple[str | int, ...], acc: Any) -> TileKind:
    (m, k1), (k2, n) = left, right
    if k1 != k2:
        refuse(f"the inner dimensions {k1} and {k2} do not match")
    if acc is not None:
        want(TileKind, acc, "acc")
        if (acc.m, acc.n, acc.hw) != (m, n, hw):
            refuse(f"{show(acc)} cannot take a product of shape [{m}, {n}]")
    return TileKind(m, n, hw)


def _plus(product: np.ndarray, acc: np.ndarray | None) -> np.ndarray:
    return product if acc is None else acc + product


def _multiplied(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """``left @ right``, row by row and of one layout: the bits of BLAS may depend on both the place and the strides."""
    return np.matmul(np.ascontiguousarray(left)[:, None, :], np.ascontiguousarray(right))[:, 0]


def _plain(side: np.ndarray | Stage) -> np.ndarray:
    return side.data if isinstance(side, Stage) else side


def _dot_nt(a: Any, b: Any, acc: Any = None) -> Any:
    return _product(_left_shape(a, b), (b.k, b.n), a.hw, acc)


@operation(_dot_nt, consumes=("acc",))
def dot_nt(a: Operand | Stage, b: Stage, acc: Tile | None = None) -> Tile:
    """``a @ b.T``, plus ``acc`` if given (consumed): [M, K] x [N, K] -> [M, N]."""
    return _plus(_multiplied(_plain(a), b.data.T), acc)


def _dot_nn(a: Any, b: Any, acc: Any = None) -> Any:
    return _product(_left_shape(a, b), (b.n, b.k), a.hw, acc)


@operation(_dot_nn, consumes=("acc",))
def dot_nn(a: Operand | Stage, b: Stage, acc: Tile | None = None) -> Tile:
    """``a @ b``, plus ``acc`` if given (consumed): [M, K] x [K, N] -> [M, N]."""
    return _plus(_multiplied(_plain(a), b.data), acc)


def _dot(a: Any, b: Any, transposed: Any, acc: Any = None) -> Any:
    return (_dot_nt if flag(transposed, "transposed") else _dot_nn)(a, b, acc)


@operation(_dot, consumes=("acc",))
def dot(a: Operand | Stage, b: Stage, transposed: bool, acc: Tile | None = None) -> Tile:
    """`dot_nt` where ``transposed`` (known when the kernel is compiled), else `dot_nn` (consumes acc)."""
    return _plus(_multiplied(_plain(a), b.data.T if transposed else b.data), acc)


def _dot_tn(a: Any, b: Any, acc: Any = None) -> Any:
    _sides(a, b, StageKind)
    return _product((a.k, a.n), (b.n, b.k), a.hw, acc)


@operation(_dot_tn, consumes=("acc",))
def dot_tn(a: Stage, b: Stage, acc: Tile | None = None) -> Tile:
    """``a.T @ b``, plus ``acc`` if given (consumed): [K, M] x [K, N] -> [M, N]."""
    return _plus(_multiplied(a.data.T, b.data), acc)


def _dot_nn_where(a: Any, b: Any, acc: Any) -> Any:
    _sides(a, b, OperandKind)
    return _product((a.m, a.k), (b.n, b.k), a.hw, acc)


@operation(_dot_nn_where, consumes=("acc",))
def dot_nn_where(a: Operand, b: Stage, acc: Tile) -> Tile:
    """As `dot_nn`, but where ``a`` is 0 the product is 0 even if ``b`` is NaN or infinite there (consumes acc).

    This keeps what is masked out of the result, whatever it holds.
    """
    right = b.data
    finite = np.isfinite(right)
    total = acc + _multiplied(a, np.where(finite, right, np.float32(0)))
    for j in np.flatnonzero(~finite.all(axis=1)):
        seen = a[:, j] != 0
        total[seen] += np.where(finite[j], np.float32(0), a[seen, j, None] * right[j])
    return total


# --------------------------------------------------------------------------------------------------- products of rows


def _load_rowdot(x: Any, index: Any, col0: Any, tile: Any, valid: Any) -> Any:
    index_of(x, index, 1, valid_rows(valid).m)
    integers(col0=col0)
    if valid.m % want(TileKind, tile, "tile").m:
        refuse(f"{show(tile)} does not divide {show(valid)}")
    whole_runs(x, tile.n)
    return RowsKind(valid.m, "f32", valid.hw)


@operation(_load_rowdot)
def load_rowdot(x: Tensor | Quantized, index: Index, col0: int, tile: Tile, valid: Rows) -> Rows:
    """`rowdot` of ``tile`` and a tile that is loaded from there, which need not be kept. Does not consume.

    ``x``, ``index``, ``col0`` and ``valid`` are as in `load_tile`. The tile may have a fraction of the rows: then they
    take turns, row ``r`` of ``x`` meets row ``r % m`` of m. Of a quantized source, scales may be applied to sums of
    products, and both sides may be rounded to its dtype.
    """
    (rows, columns), m = tile.shape, len(valid)
    return (gathered(x, index, col0, columns, valid) * np.tile(tile, (m // rows, 1))).sum(axis=1, dtype=np.float32)


def _matvec(cfg: Any, x: Any, index: Any, col0: Any, n: Any, vector: Any, valid: Any) -> Any:
    index_of(x, index, 1, valid_rows(valid).m)
    integers(col0=col0)
    whole_runs(x, literal(n, "n"))
    if want(TensorKind, vector, "vector").ndim != 1:
        refuse(f"the vector must have one axis, got {show(vector)}")
    if valid.m % rows_at_once(want(ConfigKind, cfg, "cfg").cfg):
        refuse(f"{show(valid)} for {cfg.cfg.waves} waves")
    return RowsKind(valid.m, "f32", valid.hw)


@operation(_matvec)
def matvec(cfg: Config, x: Tensor | Quantized, index: Index, col0: int, n: int, vector: Tensor, valid: Rows) -> Rows:
    """Products of rows of x with a vector: the sum of ``x[row, c] * vector[c]`` over ``n`` columns c from ``col0`` on.

    ``x``, ``index``, ``col0``, ``n`` and ``valid`` are as in `load_tile`; the vector is as long as a row of x, and
    there are as many rows as `rows_at_once` says, or a multiple of that. Of a quantized source, scales may be applied
    to sums of products, and both sides may be rounded to its dtype.
    """
    if len(vector) != x.shape[-1]:
        refuse(f"a vector of {len(vector)} elements for rows of {x.shape[-1]}")
    numbers = gathered(vector, (), col0, n, np.ones(1, bool))
    return (gathered(x, index, col0, n, valid) * numbers).sum(axis=1, dtype=np.float32)
