"""Rows: one number per tile row (``f32``, ``i32`` or ``i1``): made, chosen from, read from tensors, written to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.tile.language.expression import apply
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.language.kinds import (
    NONE,
    ConfigKind,
    RowsKind,
    ScalarKind,
    float_rows,
    index_of,
    is_int,
    is_rows,
    is_scalar,
    join,
    literal,
    refuse,
    same_rows,
    show,
    storable,
    valid_rows,
    want,
)
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.operators import in_rows, sides
from rocmkern.tile.language.values import Index, Rows, Tensor

# --------------------------------------------------------------------------------------------------------------- made


def _row_index(cfg: Any, m: Any) -> Any:
    return RowsKind(literal(m, "m"), "i32", want(ConfigKind, cfg, "cfg").hw)


@operation(_row_index)
def row_index(cfg: Config, m: int) -> Rows:
    """``0, 1, ..., m - 1``: the index of each tile row (int32)."""
    return np.arange(m, dtype=np.int32)


def _full_rows(cfg: Any, m: Any, value: Any) -> Any:
    if not is_scalar(value):
        refuse(f"value must be a number, got {show(value)}")
    return RowsKind(literal(m, "m"), "i32" if is_int(value) else "f32", want(ConfigKind, cfg, "cfg").hw)


@operation(_full_rows)
def full_rows(cfg: Config, m: int, value: float) -> Rows:
    """Rows that all hold ``value``: float32, or int32 (the nearest that it holds) for an integer."""
    if isinstance(value, (int, np.integer)):
        limits = np.iinfo(np.int32)
        return np.full(m, min(max(value, limits.min), limits.max), np.int32)
    return np.full(m, value, np.float32)


def _ordered_float(order: Any) -> Any:
    if not is_int(order):
        refuse(f"needs an integer, got {show(order)}")
    return ScalarKind("float64")


@operation(_ordered_float)
def ordered_float(order: int) -> float:
    """The float32 number at a place in their order: of two places the higher one has the larger number.

    It is the number whose bits, as an int32, are ``order``, or ``order ^ 0x7fffffff`` if that is negative. So 0 is 0.0,
    2139095040 is infinity and -2139095041 minus infinity; beyond these there is NaN.
    """
    bits = order if order >= 0 else order ^ 0x7FFFFFFF
    return float(np.array(bits, np.int32).view(np.float32))


# ------------------------------------------------------------------------------------------------------------- chosen


def _where(condition: Any, a: Any, b: Any) -> Any:
    if not is_rows(condition, "i1"):
        refuse(f"the condition must be rows of i1 (a comparison), got {show(condition)}")
    if is_scalar(a) and is_scalar(b):
        return RowsKind(condition.m, "i32" if is_int(a) and is_int(b) else "f32", condition.hw)
    rows = join(a, b)
    if rows.m != condition.m:
        refuse(f"{show(condition)} and {show(rows)} do not match")
    return rows


@operation(_where, scalar=lambda condition, a, b: apply("select", condition, a, b))
def where(condition: Rows, a: Rows | float, b: Rows | float) -> Rows:
    """Rows: ``a`` where ``condition`` holds, else ``b``. Also of numbers in a function of `map`."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.where(condition, *sides(a, b))
    whole = all(isinstance(x, int | np.integer) for x in (a, b))
    return np.where(condition, *(in_rows(x, np.dtype(np.int32 if whole else np.float32)) for x in (a, b)))


@operation(join, scalar=lambda a, b: apply("minimum", a, b))
def minimum(a: Rows | float, b: Rows | float) -> Rows:
    """Rows: the smaller of two; a NaN in one of them is ignored. Also of numbers in a function of `map`."""
    return np.fmin(*sides(a, b))


@operation(join, scalar=lambda a, b: apply("maximum", a, b))
def maximum(a: Rows | float, b: Rows | float) -> Rows:
    """Rows: the larger of two; a NaN in one of them is ignored. Also of numbers in a function of `map`."""
    return np.fmax(*sides(a, b))


# ---------------------------------------------------------------------------------------------------- read and written


def picked(index: tuple[np.ndarray | int, ...], valid: np.ndarray) -> tuple[np.ndarray, ...]:
    """The entries of an index, rows or numbers, in the rows that are valid."""
    return tuple(np.broadcast_to(np.asarray(i), valid.shape)[valid] for i in index)


def _load_rows(x: Any, index: Any, valid: Any) -> Any:
    index_of(x, index, 0, valid_rows(valid).m)
    return RowsKind(valid.m, "f32", valid.hw)


@operation(_load_rows)
def load_rows(x: Tensor, index: Index, valid: Rows) -> Rows:
    """One float32 per row: ``x[index]`` where ``valid``, else 0. ``index`` has one entry (rows or scalar) per axis."""
    out = np.zeros(valid.shape, np.float32)
    out[valid] = x[picked(index, valid)]
    return out


def _load_integers(x: Any, index: Any, valid: Any) -> Any:
    index_of(x, index, 0, valid_rows(valid).m)
    if x.dtype not in ("int32", "int64"):
        refuse(f"needs a tensor of int32 or int64, got {show(x)}")
    return RowsKind(valid.m, "i32", valid.hw)


@operation(_load_integers)
def load_integers(x: Tensor, index: Index, valid: Rows) -> Rows:
    """One int32 per row: ``x[index]`` of an int32 or int64 tensor where ``valid``, else 0.

    ``index`` is as in `load_rows`. A number that int32 does not hold becomes the nearest that it holds.
    """
    out = np.zeros(valid.shape, np.int32)
    limits = np.iinfo(np.int32)
    out[valid] = np.clip(x[picked(index, valid)], limits.min, limits.max)
    return out


def _store_rows(x: Any, index: Any, values: Any, valid: Any) -> Any:
    index_of(x, index, 0, valid_rows(valid).m)
    if not (is_rows(values, "i32") and x.dtype == "int32"):
        float_rows(values)
        storable(x)
    same_rows(values, valid)
    return NONE


@operation(_store_rows)
def store_rows(x: Tensor, index: Index, values: Rows, valid: Rows) -> None:
    """``x[index] = values`` where ``valid``, rounded to ``x``'s dtype (to nearest even); int32 rows go to int32."""
    x[picked(index, valid)] = values[valid].astype(x.dtype)
