"""Python's operators: arithmetic of rows and of tiles, comparisons of rows, elements and parts of tensors.

``+ - *`` of a tile with a tile of the same shape, with rows (one number for each of its rows) or with a number consume
the tiles. Rows go together with rows of the same kind and with numbers, which are converted to that kind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.tile.language.kinds import (
    RowsKind,
    ScalarKind,
    TensorKind,
    TileKind,
    float_rows,
    is_int,
    is_rows,
    is_scalar,
    join,
    refuse,
    same_rows,
    same_tile,
    show,
)
from rocmkern.tile.language.operation import operator_of

TILE_OPERATORS = "tiles have + - * only: multiply by a reciprocal, T.reciprocal_or_zero(rows) or 1 / a number"
TILE_COMPARISONS = "tiles are not compared: compare rows, or use T.maximum, T.pad_columns or a mask"

_OF_TILES = {operator.add: "+", operator.sub: "-", operator.mul: "*"}
_OF_INTEGERS = (operator.floordiv, operator.mod)
_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
#: What neither tiles nor rows have, and what is said of it.
_OF_NEITHER = (operator.pow, operator.matmul, operator.neg, operator.abs, operator.or_, operator.xor, operator.invert)


def in_rows(x: Any, dtype: np.dtype) -> Any:
    """A number in rows of an element type; rows as they are. Integers wrap around."""
    if isinstance(x, np.ndarray):
        return x
    return np.array(x, np.int64).astype(np.int32) if dtype == np.int32 else dtype.type(x)


def sides(a: Any, b: Any) -> tuple[Any, Any]:
    """Both sides of what rows are combined by, of one element type."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a, b
    dtype = (a if isinstance(a, np.ndarray) else b).dtype
    return in_rows(a, dtype), in_rows(b, dtype)


def _arithmetic(op: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def rule(a: Any, b: Any) -> Any:
        if isinstance(a, TileKind) or isinstance(b, TileKind):
            return _tile_with(op, a, b)
        rows = join(a, b)
        if rows.kind == "i1":
            refuse(f"needs rows of f32 or i32, got {show(rows)}")
        if op in _OF_INTEGERS and rows.kind != "i32":
            refuse(f"needs rows of i32, got {show(rows)}")
        if op is operator.truediv and rows.kind != "f32":
            refuse(f"needs rows of f32, got {show(rows)}")
        return rows

    def meaning(a: Any, b: Any) -> Any:
        if getattr(a, "ndim", 0) == 2:
            return op(a, b[:, None] if getattr(b, "ndim", 0) == 1 else in_rows(b, a.dtype))
        return op(*sides(a, b))

    return rule, meaning


def _tile_with(op: Callable[..., Any], a: Any, b: Any) -> Any:
    """The rule of an operator of which one side is a tile."""
    if op not in _OF_TILES:
        refuse(TILE_OPERATORS)
    if not isinstance(a, TileKind):
        refuse(f"cannot combine {show(a)} with {show(b)}: write the tile on the left")
    if isinstance(b, TileKind):
        return same_tile(a, b)
    if is_rows(b, "f32"):
        same_rows(a, b)
    elif isinstance(b, RowsKind):
        float_rows(b)
    elif not is_scalar(b):
        refuse(f"cannot combine {show(a)} with {show(b)}")
    return a


def _comparison(op: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def rule(a: Any, b: Any) -> Any:
        if isinstance(a, TileKind) or isinstance(b, TileKind):
            refuse(TILE_COMPARISONS)
        rows = join(a, b)
        return RowsKind(rows.m, "i1", rows.hw)

    return rule, lambda a, b: op(*sides(a, b))


def _both(a: Any, b: Any) -> Any:
    if not (is_rows(a, "i1") and is_rows(b, "i1") and a.m == b.m):
        refuse(f"needs two rows of i1, got {show(a)} and {show(b)}")
    return a


def _element(x: Any, index: Any) -> Any:
    if not isinstance(x, TensorKind):
        refuse(f"{show(x)} has no elements to pick")
    entries = index if isinstance(index, tuple) else (index,)
    if not all(is_int(entry) for entry in entries) or len(entries) > x.ndim:
        refuse(f"{show(x)} takes up to {x.ndim} integer indices, got {', '.join(map(show, entries))}")
    if len(entries) < x.ndim:
        return TensorKind(x.dtype, x.ndim - len(entries))
    if x.dtype not in ("int32", "int64", "float32"):
        refuse(f"a single element can be read from int32, int64 and float32 tensors, not from {show(x)}")
    return ScalarKind(x.dtype)


def _none_of(*kinds: Any) -> Any:
    if any(isinstance(kind, TileKind) for kind in kinds):
        refuse(TILE_OPERATORS)
    refuse(f"{' and '.join(map(show, kinds))}: there is no such operator")


def _declare() -> None:
    for op in (operator.add, operator.sub, operator.mul, operator.truediv, *_OF_INTEGERS):
        consumed = ("a", "b") if op in _OF_TILES else ()
        operator_of(op, *_arithmetic(op), consumes=consumed, by=_OF_TILES.get(op, ""))
    for op in _COMPARISONS:
        operator_of(op, *_comparison(op))
    operator_of(operator.and_, _both, lambda a, b: a & b)
    operator_of(operator.getitem, _element, lambda x, index: x[index])
    for op in _OF_NEITHER:
        one = op in (operator.neg, operator.abs, operator.invert)
        operator_of(op, _none_of, (lambda a: a) if one else (lambda a, b: a))


_declare()
