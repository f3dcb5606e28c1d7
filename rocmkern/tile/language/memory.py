"""Global memory: views of tensors, tiles that are read from them and written to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.tile.codes import OF_8_BITS, small_float
from rocmkern.tile.formats import RUN
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.language.kinds import (
    DTYPES,
    NONE,
    QUANTIZED,
    STORABLE,
    ConfigKind,
    TensorKind,
    TileKind,
    flag,
    index_of,
    integers,
    literal,
    match,
    refuse,
    same_rows,
    show,
    storable,
    valid_rows,
    want,
    whole_runs,
)
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.rows import picked
from rocmkern.tile.language.values import Index, Quantized, Rows, Tensor, Tile, dtype_name

# ------------------------------------------------------------------------------------------------------------- views


def _rows(x: Any, start: Any, stop: Any) -> Any:
    integers(start=start, stop=stop)
    return want(TensorKind, x, "the tensor")


@operation(_rows)
def rows(x: Tensor, start: int, stop: int) -> Tensor:
    """``x[start:stop]``: a tensor with fewer rows."""
    return x[start:stop]


@operation(lambda x: want(TensorKind, x, "the tensor"))
def reread(x: Tensor) -> Tensor:
    """The same tensor. Where that saves registers, its address, shape and strides are read here once more.

    For an argument of the kernel that is seldom needed within a loop: what is known of it before the loop, and all that
    follows from it, would take scalar registers around the loop, and on AMD these are few. A part of a tensor stays as
    it is: ``T.reread(x)[i]``, not ``T.reread(x[i])``.
    """
    return x


NEEDS = "needs a contiguous tensor with 1 axis, in rows of whole 16 bytes"


def _scratch_rows(x: Any, n: Any) -> Any:
    count = literal(n, "n")
    if not isinstance(x, TensorKind) or x.ndim != 1 or count * DTYPES[x.dtype] % 16:
        refuse(f"{NEEDS}, got {show(x)} and n={count}")
    return TensorKind(x.dtype, 2)


@operation(_scratch_rows)
def scratch_rows(x: Tensor, n: int) -> Tensor:
    """Rows of ``n`` elements (known when the kernel is compiled), one after the other in a contiguous ``x``.

    A shape that is known saves instructions. x begins at a multiple of 16 bytes, as what is allocated does, and so does
    each row; where kernels are compiled, nobody looks.
    """
    if x.strides[0] != x.itemsize or x.ctypes.data % 16:
        refuse(f"{NEEDS}, got strides {x.strides} and an address of {x.ctypes.data % 16} bytes more and n={n}")
    return x[: x.size // n * n].reshape(-1, n)


def _transposed(x: Any, swap: Any) -> Any:
    if not isinstance(x, TensorKind) or x.ndim != 2:
        refuse(f"the tensor must have 2 axes, got {show(x)}")
    flag(swap, "swap")
    return x


@operation(_transposed)
def transposed(x: Tensor, swap: bool) -> Tensor:
    """A tensor with 2 axes, the axes swapped if ``swap``, which is known when the kernel is compiled."""
    return x.T if swap else x


# -------------------------------------------------------------------------------------------------------------- tiles


def _zeros(cfg: Any, m: Any, n: Any) -> Any:
    return TileKind(literal(m, "m"), literal(n, "n"), want(ConfigKind, cfg, "cfg").hw)


@operation(_zeros)
def zeros(cfg: Config, m: int, n: int) -> Tile:
    """A tile of zeros: an accumulator."""
    return np.zeros((m, n), np.float32)


@operation(lambda tile: want(TileKind, tile))
def copy(tile: Tile) -> Tile:
    """The same values once more, for where two operations would use them up."""
    return tile.copy()


def gathered(x: Any, index: tuple[np.ndarray | int, ...], col0: int, n: int, valid: np.ndarray) -> np.ndarray:
    """What `load_tile` reads."""
    if isinstance(x, Quantized) and col0 % n:
        refuse(
            f"a quantized source of {x.format.name} is read {RUN} columns at a time, from multiples of the width on; "
            f"got {n} columns from {col0} on"
        )
    out = np.zeros((len(valid), n), np.float32)
    stop = max(col0, min(col0 + n, x.shape[-1]))
    if stop > col0:
        out[valid, : stop - col0] = x[(*picked(index, valid), slice(col0, stop))].astype(np.float32)
    return out


def _load_tile(cfg: Any, x: Any, index: Any, col0: Any, n: Any, valid: Any) -> Any:
    index_of(x, index, 1, valid_rows(valid).m)
    integers(col0=col0)
    whole_runs(x, literal(n, "n"))
    return TileKind(valid.m, literal(n, "n"), want(ConfigKind, cfg, "cfg").hw)


@operation(_load_tile)
def load_tile(cfg: Config, x: Tensor | Quantized, index: Index, col0: int, n: int, valid: Rows) -> Tile:
    """``x[index, col0 : col0 + n]`` per row; rows that are not ``valid`` and columns past the end are 0.

    ``x`` is a tensor or a quantized source.

    ``index`` has one entry (rows or scalar) for every axis of ``x`` but the last.
    """
    return gathered(x, index, col0, n, valid)


def _load_columns(cfg: Any, m: Any, x: Any, col0: Any, n: Any) -> Any:
    if want(TensorKind, x, "the tensor").ndim != 1:
        refuse(f"the tensor must have 1 axis, got {show(x)}")
    integers(col0=col0)
    return TileKind(literal(m, "m"), literal(n, "n"), want(ConfigKind, cfg, "cfg").hw)


@operation(_load_columns)
def load_columns(cfg: Config, m: int, x: Tensor, col0: int, n: int) -> Tile:
    """``m`` rows that are alike: ``x[col0 : col0 + n]`` of a tensor with 1 axis. Columns past the end are 0."""
    return gathered(x, (), col0, n, np.ones(m, bool))


def _store_tile(x: Any, index: Any, col0: Any, tile: Any, valid: Any) -> Any:
    index_of(x, index, 1, valid_rows(valid).m)
    integers(col0=col0)
    want(TensorKind, x, "the tensor")
    if x.dtype not in (*STORABLE, *QUANTIZED):
        refuse(f"a tile can be stored as floats or int8, not as {x.dtype}")
    same_rows(want(TileKind, tile, "tile"), valid)
    return NONE


@operation(_store_tile)
def store_tile(x: Tensor, index: Index, col0: int, tile: Tile, valid: Rows) -> None:
    """Round ``tile`` to ``x``'s dtype (to nearest even) and write it, but no row that is not ``valid``.

    ``index`` is as in `load_tile`; columns past the end of ``x`` are not written either. In dtypes of 8 bits (int8,
    float8_e4m3fn, float8_e5m2) what is beyond the largest finite number, infinity too, becomes that one; NaN becomes 0
    in int8.
    """
    _scatter(x, index, col0, tile, valid)


def _scatter(
    x: np.ndarray, index: tuple[np.ndarray | int, ...], col0: int, tile: np.ndarray, valid: np.ndarray
) -> None:
    stop = max(col0, min(col0 + tile.shape[1], x.shape[-1]))
    if stop > col0:
        x[(*picked(index, valid), slice(col0, stop))] = _converted(tile[valid, : stop - col0], x.dtype)


def _converted(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float32 values in the dtype of a tensor, as `store_tile` says."""
    if dtype == np.int8:
        return np.nan_to_num(np.clip(np.rint(values), -128, 127), nan=0).astype(np.int8)
    if dtype_name(dtype) in OF_8_BITS:
        largest = small_float(OF_8_BITS[dtype_name(dtype)]).largest
        return np.clip(values, -largest, largest).astype(dtype)
    return values.astype(dtype)


# -------------------------------------------------------------------------------------------------------------- pairs


def _same_shape(x: np.ndarray, y: np.ndarray) -> None:
    if (x.shape, x.dtype) != (y.shape, y.dtype):
        refuse(f"{x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)} do not match")


def _load_pair(cfg: Any, x: Any, y: Any, index: Any, col0: Any, n: Any, valid: Any) -> Any:
    _same_tensors(x, y)
    tile = _load_tile(cfg, x, index, col0, n, valid)
    return tile, tile


def _same_tensors(x: Any, y: Any) -> None:
    match(want(TensorKind, x, "the tensor"), y)


@operation(_load_pair)
def load_pair(cfg: Config, x: Tensor, y: Tensor, index: Index, col0: int, n: int, valid: Rows) -> tuple[Tile, Tile]:
    """`load_tile` of two tensors of one shape, which may lie in memory by turns: an element of x, one of y, and so on.

    Where they do, they are read together.
    """
    _same_shape(x, y)
    return gathered(x, index, col0, n, valid), gathered(y, index, col0, n, valid)


def _store_pair(x: Any, y: Any, index: Any, col0: Any, a: Any, b: Any, valid: Any) -> Any:
    _same_tensors(x, y)
    index_of(x, index, 1, valid_rows(valid).m)
    integers(col0=col0)
    storable(x)
    for tile in (a, b):
        same_rows(want(TileKind, tile, "the tile"), valid)
    return NONE


@operation(_store_pair)
def store_pair(x: Tensor, y: Tensor, index: Index, col0: int, a: Tile, b: Tile, valid: Rows) -> None:
    """`store_tile` of a to x and of b to y, which may lie in memory by turns, as in `load_pair`."""
    _same_shape(x, y)
    _scatter(x, index, col0, a, valid)
    _scatter(y, index, col0, b, valid)
