"""The tile language: every name a kernel may use, defined by NumPy.

A kernel is a plain Python function over *tiles*. Run as it is, it computes with the definitions below: that is the
``python`` target, and these definitions are the meaning of every operation. The other targets lower the same names to
machine code (`cpu.py`, `hip/`, `cuda/`); `types.py` holds the rules of which types go together.

Things a kernel handles
-----------------------
tensor
    An array argument of the kernel, in global memory: ``x.shape``, ``x[i, j]`` (leading integer indices give a
    sub-tensor, a full index gives a scalar), `rows`.
quantized source
    A tensor of bytes that is read as rows of elements: `quantized`, for `load_tile` and `stage`.
rows
    One number per tile row (``int32``, ``float32`` or ``bool``), with Python's operators. NumPy arrays here.
tile
    ``[M, N]`` float32 values that belong to the block: `Tile`. How it is spread over lanes is its type's business.
operand
    A tile that is ready to be the left side of a product: `Operand`.
stage
    A window of ``[N, K]`` elements of a 2-D tensor in shared memory, filled by `fetch`, used between `acquire` and
    `release`: `Stage`. One window may be in use while the next ones, ``cfg.num_stages`` of them, are on their way.
    Either side of a product may be one.

Rules
-----
* Control flow is uniform: conditions are scalars, the same for the whole block.
* An operation that *consumes* an argument may reuse its storage (`CONSUMES` lists them all). What was consumed is dead:
  using it again raises here, and `check.py` finds it before a kernel is compiled.
* Shapes are compile-time: they come from the configuration ``cfg``, the first argument of every kernel.
* Reading past the end of a tensor gives zeros, never a fault, and is never written back.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rocmkern.architectures import architecture
from rocmkern.runtime.errors import TileError
from rocmkern.runtime.mutex import Mutex
from rocmkern.tile.codes import OF_8_BITS, small_float
from rocmkern.tile.formats import RUN, format_named

NEG_INF = float("-inf")
#: Columns side by side in a lane where rows lie along lanes: 16 bytes of a half type.
VECTOR_WIDTH = 8

# --------------------------------------------------------------------------------------- kernels and their arguments


@dataclass(frozen=True)
class Config:
    """What is fixed when a kernel is compiled; every kernel derives its own from this.

    Attributes
    ----------
    arch : str
        Architecture: ``"python"``, ``"cpu"``, ``"gfx1100"``, ``"sm_90"``, ...
    waves : int
        Waves (warps) per block; 1 where a block is one thread.
    threads_per_row : int
        For kernels without products: on a GPU a tile row lies along so many lanes, ``vector_width`` columns side by
        side in each, so that loads and stores are as wide as they can be. It is a power of two, and the lanes are a
        part of a wave, a wave, or all waves of the block; a tile has a multiple of the rows that the lanes of the block
        hold, and of the columns that those of a row hold. 0: rows lie as products need them.
    vector_width : int
        Columns side by side in a lane where rows lie along lanes: 8, or a multiple of it; on NVIDIA GPUs also 4.
    split_kv : bool
        On an NVIDIA GPU all waves of a block have all of its rows: for few rows in an online softmax over many keys, of
        which each wave has its own until `softmax_end`; and for `matvec`, where each has columns of its own.
    wave_rows : int
        Tile rows that lie side by side in a wave: 16, or 8 on AMD GPUs with waves of 32 for products by FMAs.
    resident : int
        Blocks that a multiprocessor should hold at once, which bounds the registers of a lane on NVIDIA GPUs; 0: the
        compiler chooses.
    num_stages : int
        Windows of a stage that may be on their way at once. A target may allow only 1.
    overlaps : bool
        On an NVIDIA GPU that can (sm_90 and later), blocks may be brought in while the launch before this one on its
        stream still runs, for whose end they then wait first of all. So a launch that needs the results of the one
        before it starts sooner.
    """

    arch: str = "python"
    waves: int = 1
    threads_per_row: int = 0
    vector_width: int = VECTOR_WIDTH
    split_kv: bool = False
    wave_rows: int = 16
    resident: int = 0
    num_stages: int = 1
    overlaps: bool = False


def rows_at_once(cfg: Config) -> int:
    """Rows that lie side by side in a block where they lie along lanes; elsewhere one for each wave."""
    return max(1, cfg.waves * architecture(cfg.arch).wave // cfg.threads_per_row) if cfg.threads_per_row else cfg.waves


@dataclass(frozen=True)
class Parameter:
    """Kind of a kernel argument: a tensor of ``ndim`` axes, a 64-bit integer, or a float32.

    ``output`` says that the kernel writes the tensor: all of it, and does not read what was there, unless ``partial``
    says that it does or writes parts of it only. ``absent`` is set where a launch may leave the tensor out: see
    `optional`.
    """

    kind: str
    ndim: int = 0
    output: bool = False
    partial: bool = False
    absent: str = ""

    def optional(self, dtype: str) -> Parameter:
        """The same for a tensor that a launch may leave out: then all its axes have length 0, and so have its parts.

        Parameters
        ----------
        dtype : str
            Element type that it has then: a name, or that of another tensor argument, which has the same.
        """
        return replace(self, absent=dtype)


class _TensorParameters:
    def __init__(self, output: bool, partial: bool = False):
        self.output, self.partial = output, partial

    def __getitem__(self, ndim: int) -> Parameter:
        return Parameter("tensor", ndim, self.output, self.partial)


Tensor = _TensorParameters(output=False)
Out = _TensorParameters(output=True)
InOut = _TensorParameters(output=True, partial=True)
Int = Parameter("int")
Float = Parameter("float")

DEVICE_FUNCTIONS: list[Callable] = []


def kernel(fn: Callable) -> Callable:
    """Mark a function as a kernel: ``fn(cfg, *arguments)``, arguments annotated by `Tensor`, `Out`, `Int`, `Float`.

    The function itself is returned: it stays a plain Python function.
    """
    parameters = list(inspect.signature(fn, eval_str=True).parameters.values())[1:]
    for p in parameters:
        if not isinstance(p.annotation, Parameter):
            raise TileError(
                f"kernel {fn.__name__}: argument {p.name} needs an annotation T.Tensor[ndim], T.Int, T.Float"
            )
    fn.parameters = tuple((p.name, p.annotation) for p in parameters)  # type: ignore[attr-defined]
    return fn


def device(fn: Callable) -> Callable:
    """Mark a function on tiles as callable from kernels. It stays a plain Python function."""
    DEVICE_FUNCTIONS.append(fn)
    return fn


_block = threading.local()


def block_id(cfg: Config, axis: int) -> int:
    """Index of this block along grid ``axis`` (0, 1 or 2)."""
    return _block.index[axis]


def set_block(index: tuple[int, int, int]) -> None:
    """Set this thread's block index (the python target's launcher)."""
    _block.index = index


# ------------------------------------------------------------------------------------------------------- tile values


TILE_OPERATORS = "tiles have + - * only: multiply by a reciprocal, T.reciprocal_or_zero(rows) or 1 / a number"
TILE_COMPARISONS = "tiles are not compared: compare rows, or use T.maximum, T.pad_columns or a mask"


class _Owned:
    """A value that an operation may consume; afterwards every use raises."""

    __slots__ = ("_array", "_dead")

    def __init__(self, array: np.ndarray):
        self._array = array
        self._dead: str | None = None

    @property
    def data(self) -> np.ndarray:
        if self._dead:
            raise TileError(f"this {type(self).__name__.lower()} was consumed by {self._dead} and cannot be used again")
        return self._array

    def consume(self, by: str) -> np.ndarray:
        array = self.data
        self._dead = by
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape


def _show(x: Any) -> str:
    """A value in the words of an error message."""
    if isinstance(x, _Owned):
        return f"{'a tile' if isinstance(x, Tile) else 'an operand'} {list(x.shape)}"
    if isinstance(x, Stage):
        return f"a stage [{x.n}, {x.k}] of {x.source.dtype.name}"
    if isinstance(x, np.ndarray) and x.ndim == 1:
        kind = {"float32": "f32", "int32": "i32", "bool": "i1"}.get(x.dtype.name, x.dtype.name)
        return f"{len(x)} rows of {kind}"
    if isinstance(x, Quantized):
        return f"a quantized source of {x.format.name}"
    return f"a tensor with {x.ndim} axes" if isinstance(x, np.ndarray) else f"{type(x).__name__} {x!r}"


def _want(cls: type, x: Any, what: str) -> Any:
    if not isinstance(x, cls):
        raise TileError(f"{what} must be {(cls.__doc__ or '').splitlines()[0].split('.')[0]}, got {_show(x)}")
    return x


def _match(by: str, x: Any, *others: Any) -> None:
    """Every other tile, and rows among the others, must have as many rows as ``x``."""
    m = len(x) if isinstance(x, np.ndarray) else x.shape[0]
    for y in others:
        if isinstance(y, np.ndarray | Tile) and y.shape[:1] != (m,):
            raise TileError(f"{by}: {_show(x)} and {_show(y)} do not match")


def _want_tensor(by: str, x: Any) -> None:
    if not isinstance(x, np.ndarray):
        raise TileError(f"{by}: the tensor must be a tensor, got {_show(x)}")


def _check_index(by: str, x: np.ndarray, index: tuple, axes: int, valid: np.ndarray) -> None:
    if len(index) != axes:
        raise TileError(f"{by}: {_show(x)} needs {axes} index entries, got {len(index)}")
    _match(by, valid, *index)


def _other(x: Any, tile: Tile, by: str) -> Any:
    """Right-hand side of a tile operator: a tile (consumed), rows (broadcast over columns) or a scalar."""
    if isinstance(x, Tile):
        if x.shape != tile.shape:
            raise TileError(f"{by}: {_show(tile)} and {_show(x)} do not match")
        return x.consume(by)
    if isinstance(x, np.ndarray):
        _match(by, tile, x)
        return x.astype(np.float32)[:, None]
    if isinstance(x, Operand | Stage):
        raise TileError(f"{by}: cannot combine {_show(tile)} with {_show(x)}")
    return np.float32(x)


class Tile(_Owned):
    """``[M, N]`` float32 values. ``+ - *`` with a tile, with rows, or with a scalar consume the tiles involved."""

    __slots__ = ()
    __array_ufunc__ = None  # rows on the left: NumPy must leave the operator to us

    def __add__(self, other: Any) -> Tile:
        return Tile(self.consume("+") + _other(other, self, "+"))

    def __sub__(self, other: Any) -> Tile:
        return Tile(self.consume("-") - _other(other, self, "-"))

    def __mul__(self, other: Any) -> Tile:
        return Tile(self.consume("*") * _other(other, self, "*"))

    def _reflected(self, other: Any) -> Tile:
        raise TileError(f"cannot combine {_show(other)} with {_show(self)}: write the tile on the left")

    __radd__ = __rsub__ = __rmul__ = _reflected


def _refuse_operators() -> None:
    """The operators that tiles do not have are refused in the words of the machine targets."""

    def refusing(name: str, why: str) -> Callable:
        def method(self: Tile, *others: Any) -> Any:
            raise TileError(f"{name}: {why}")

        return method

    for name in ("truediv", "floordiv", "mod", "pow", "matmul"):
        for method in (f"__{name}__", f"__r{name}__"):
            setattr(Tile, method, refusing(name, TILE_OPERATORS))
    for name in ("neg", "abs"):
        setattr(Tile, f"__{name}__", refusing(name, TILE_OPERATORS))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Tile, f"__{name}__", refusing(name, TILE_COMPARISONS))


_refuse_operators()


class Operand(_Owned):
    """``[M, K]`` left operand of a product."""

    __slots__ = ()


class Stage:
    """A window of ``n`` rows and ``k`` columns of ``source``: fetched, acquired, released. Use the functions below."""

    __slots__ = ("_dead", "acquired", "fetched", "k", "n", "num_stages", "paged", "pages", "source", "window")

    def __init__(self, source: np.ndarray, n: int, k: int, paged: bool, num_stages: int):
        self.source, self.n, self.k, self.num_stages = source, n, k, num_stages
        self.paged = paged  # whether `paged` says where the rows are
        self.pages: tuple[np.ndarray, np.ndarray, int] | None = None
        self.fetched: tuple[tuple[int, int], ...] = ()  # first row and column of each window that is on its way
        self.acquired = False
        self.window = np.full((n, k), np.nan, np.float32)  # poison until acquired
        self._dead: str | None = None

    def consume(self, by: str) -> Stage:
        """The same stage under a new name; this name is dead."""
        self._check_alive()
        new = Stage.__new__(Stage)
        for name in Stage.__slots__:
            setattr(new, name, getattr(self, name))
        self._dead = by
        return new

    def _check_alive(self) -> None:
        if self._dead:
            raise TileError(f"this stage was consumed by {self._dead} and cannot be used again: use what that returned")

    def rows(self, row0: int, col0: int) -> np.ndarray:
        """The window that starts at a row and a column of the source, as far as it exists."""
        columns = slice(col0, col0 + self.k)
        if self.pages is None:
            return self.source[row0 : row0 + self.n, columns]
        cache, table, stop = self.pages
        row = np.arange(row0, max(row0, min(row0 + self.n, stop)))
        return cache[table[row // cache.shape[1]], row % cache.shape[1], columns]

    @property
    def data(self) -> np.ndarray:
        self._check_alive()
        if not self.acquired:
            raise TileError("this stage is not acquired: call acquire() before the product and release() after it")
        return self.window

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.k


class Quantized:
    """A quantized source. Two-dimensional indices, rows first, give float32 elements."""

    ndim = 2

    def __init__(self, blocks: np.ndarray, format: str, like: np.ndarray):
        self.blocks, self.format = blocks, format_named(format)
        if blocks.dtype != np.uint8 or blocks.ndim != 2:
            raise TileError(f"quantized: blocks must be uint8 with 2 axes, got {blocks.dtype} with {blocks.ndim}")
        self.dtype = like.dtype
        self.shape = blocks.shape[0], self.format.columns(blocks.shape[1])

    def __getitem__(self, index: tuple) -> np.ndarray:
        rows, columns = index
        blocks = self.blocks[rows]
        count = blocks.shape[1] // self.format.nbytes
        blocks = blocks[:, : count * self.format.nbytes].reshape(len(blocks), count, self.format.nbytes)
        if not blocks.size:
            return np.zeros((len(blocks), len(range(*columns.indices(self.shape[1])))), np.float32)
        first, last = columns.start // self.format.elements, -(-columns.stop // self.format.elements)
        values = self.format.decode(blocks[:, first:last]).reshape(len(blocks), -1)
        offset = first * self.format.elements
        return values[:, columns.start - offset : columns.stop - offset]


def quantized(x: np.ndarray, format: str, like: np.ndarray, alignment: int = 1) -> Any:
    """Read a tensor of bytes as rows of elements.

    Parameters
    ----------
    x : tensor, uint8 [R, bytes]
        Rows of whole blocks; bytes of a row lie side by side. What is left after the last whole block is not read.
    format : str
        One of `formats.FORMATS`, known when the kernel is compiled. ``""``: x is returned as it is, so that one kernel
        text serves quantized and plain matrices.
    like : tensor
        Products with a stage of the result, `load_rowdot` and `matvec` take elements of this tensor's dtype; a target
        may round to it there. `load_tile` gives them exactly.
    alignment : int
        Rows start at addresses that are multiples of so many bytes, which a target may rely on: 1, 2, 4, 8 or 16, known
        when the kernel is compiled.

    Returns
    -------
    quantized source, [R, elements]
        For `load_tile` and `stage`, in widths that are multiples of `formats.RUN`, from columns that are multiples of
        the width.
    """
    if alignment not in (1, 2, 4, 8, 16):
        raise TileError(f"quantized: the alignment must be 1, 2, 4, 8 or 16, got {alignment}")
    return Quantized(x, format, like) if format else x


def _check_columns(by: str, x: Any, col0: int, width: int) -> None:
    if isinstance(x, Quantized) and (width % RUN or col0 % width):
        raise TileError(
            f"{by}: {_show(x)} is read {RUN} columns at a time, from multiples of the width on; got {width} columns "
            f"from {col0} on"
        )


# -------------------------------------------------------------------------------------------------------------- rows


def row_index(cfg: Config, m: int) -> np.ndarray:
    """``0, 1, ..., m - 1``: the index of each tile row (int32)."""
    return np.arange(m, dtype=np.int32)


def full_rows(cfg: Config, m: int, value: float) -> np.ndarray:
    """Rows that all hold ``value``: float32, or int32 (the nearest that it holds) for an integer."""
    if isinstance(value, (int, np.integer)):
        limits = np.iinfo(np.int32)
        return np.full(m, min(max(value, limits.min), limits.max), np.int32)
    return np.full(m, value, np.float32)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Rows: ``a`` where ``condition`` holds, else ``b``."""
    _match("where", condition, a, b)
    r = np.where(condition, a, b)
    return r.astype({"float64": np.float32, "int64": np.int32}.get(r.dtype.name, r.dtype))


def minimum(a: Any, b: Any) -> Any:
    """Rows: the smaller of two; a NaN in one of them is ignored."""
    return _same_kind("minimum", np.fmin, a, b)


def maximum(a: Any, b: Any) -> Any:
    """Rows: the larger of two; a NaN in one of them is ignored."""
    return _same_kind("maximum", np.fmax, a, b)


def _same_kind(by: str, combine: Callable, a: Any, b: Any) -> np.ndarray:
    rows, other = (a, b) if isinstance(a, np.ndarray) else (b, a)
    _match(by, rows, other)
    return combine(a, b).astype(rows.dtype)


def reciprocal_or_zero(x: np.ndarray) -> np.ndarray:
    """Rows: ``1 / x``, and 0 where ``x`` is 0 (a row that sees nothing)."""
    with np.errstate(divide="ignore"):
        return np.where(x == 0, np.float32(0), np.float32(1) / x)


def log2(x: np.ndarray) -> np.ndarray:
    """Rows: base-2 logarithm; ``-inf`` at 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log2(x)


def sqrt(x: np.ndarray) -> np.ndarray:
    """Rows: square root; NaN below 0."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(x)


def load_rows(x: np.ndarray, index: tuple, valid: np.ndarray) -> np.ndarray:
    """One float32 per row: ``x[index]`` where ``valid``, else 0. ``index`` has one entry (rows or scalar) per axis."""
    _check_index("load_rows", x, index, x.ndim, valid)
    out = np.zeros(valid.shape, np.float32)
    out[valid] = x[_pick(index, valid)]
    return out


def load_integers(x: np.ndarray, index: tuple, valid: np.ndarray) -> np.ndarray:
    """One int32 per row: ``x[index]`` of an int32 or int64 tensor where ``valid``, else 0.

    ``index`` is as in `load_rows`. A number that int32 does not hold becomes the nearest that it holds.
    """
    _check_index("load_integers", x, index, x.ndim, valid)
    if x.dtype.name not in ("int32", "int64"):
        raise TileError(f"load_integers: needs a tensor of int32 or int64, got {x.dtype.name}")
    out = np.zeros(valid.shape, np.int32)
    limits = np.iinfo(np.int32)
    out[valid] = np.clip(x[_pick(index, valid)], limits.min, limits.max)
    return out


def store_rows(x: np.ndarray, index: tuple, values: np.ndarray, valid: np.ndarray) -> None:
    """``x[index] = values`` where ``valid``, rounded to ``x``'s dtype (to nearest even); int32 rows go to int32."""
    _check_index("store_rows", x, index, x.ndim, valid)
    _match("store_rows", valid, values)
    if values.dtype != np.int32 or x.dtype != np.int32:
        if values.dtype != np.float32:
            raise TileError(f"store_rows: {_show(values)} cannot be stored as {x.dtype.name}")
        _check_storable("store_rows", x)
    x[_pick(index, valid)] = values[valid].astype(x.dtype)


def last_to_arrive(cfg: Config, counters: np.ndarray, index: int, count: int) -> bool:
    """Whether this block is the last of ``count`` that call this with the same element of ``counters`` (int32).

    What the other blocks wrote to global memory before is there for the last one to read. The counter has to be 0
    before the first one arrives, and is 0 again when the last one has.
    """
    _want_tensor("last_to_arrive", counters)
    if counters.dtype != np.int32 or counters.ndim != 1:
        raise TileError(f"last_to_arrive: counters must be int32 with 1 axis, got {counters.ndim} of {counters.dtype}")
    with _arriving:
        counters[index] = (counters[index] + 1) % count
        return bool(counters[index] == 0)


_arriving = Mutex()


def repeat_rows(x: np.ndarray, count: int) -> np.ndarray:
    """Rows one after the other ``count`` times: row ``k * m + r`` of the result is row ``r`` of the ``m`` rows.

    On a GPU the rows must lie along lanes; so must they for `fold_sum` and `fold_max`.
    """
    if not isinstance(x, np.ndarray) or x.ndim != 1:
        raise TileError(f"repeat_rows: needs rows, got {_show(x)}")
    return np.tile(x, count)


def fold_sum(x: Any, m: int) -> Any:
    """Add up every ``m``-th row of a tile or of float32 rows: row ``r`` is the sum of rows ``r``, ``r + m``, ...

    ``m`` is a multiple of the rows that the lanes of the block hold side by side.
    """
    if isinstance(x, Tile):
        return Tile(_folded("fold_sum", x.data, m).sum(axis=0, dtype=np.float32))
    return _folded("fold_sum", _float_rows("fold_sum", x), m).sum(axis=0, dtype=np.float32)


def fold_max(x: np.ndarray, m: int) -> np.ndarray:
    """The largest of every ``m``-th of float32 rows, as in `fold_sum`; NaN is ignored."""
    return np.fmax.reduce(_folded("fold_max", _float_rows("fold_max", x), m), axis=0)


def _folded(by: str, x: np.ndarray, m: int) -> np.ndarray:
    if m < 1 or len(x) % m:
        raise TileError(f"{by}: {len(x)} rows are no multiple of {m}")
    return x.reshape(-1, m, *x.shape[1:])


def total(x: np.ndarray) -> float:
    """Sum of float32 rows over the block, in float32: a number, the same everywhere."""
    return float(_float_rows("total", x).sum(dtype=np.float32))


def largest(x: np.ndarray) -> float:
    """Largest of the block's float32 rows; NaN is ignored. A number, the same everywhere."""
    return float(np.fmax.reduce(_float_rows("largest", x)))


def _float_rows(by: str, x: Any) -> np.ndarray:
    if not isinstance(x, np.ndarray) or x.ndim != 1 or x.dtype != np.float32:
        raise TileError(f"{by}: needs rows of f32, got {_show(x)}")
    return x


def ordered_float(order: int) -> float:
    """The float32 number at a place in their order: of two places the higher one has the larger number.

    It is the number whose bits, as an int32, are ``order``, or ``order ^ 0x7fffffff`` if that is negative. So 0 is 0.0,
    2139095040 is infinity and -2139095041 minus infinity; beyond these there is NaN.
    """
    bits = order if order >= 0 else order ^ 0x7FFFFFFF
    return float(np.array(bits, np.int32).view(np.float32))


def _check_storable(by: str, x: np.ndarray) -> None:
    if x.dtype.kind in "biu":
        raise TileError(f"{by}: values can be stored as float32, float16 or bfloat16, not as {x.dtype.name}")


def _check_storable_tile(x: np.ndarray) -> None:
    if x.dtype.kind in "biu" and not _is_of_8_bits(x.dtype):
        raise TileError(f"store_tile: a tile can be stored as floats or int8, not as {x.dtype.name}")


def _is_of_8_bits(dtype: np.dtype) -> bool:
    return dtype == np.int8 or dtype.name in OF_8_BITS


def _converted(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """float32 values in the dtype of a tensor, as `store_tile` says."""
    if dtype == np.int8:
        return np.nan_to_num(np.clip(np.rint(values), -128, 127), nan=0).astype(np.int8)
    if _is_of_8_bits(dtype):
        largest = small_float(OF_8_BITS[dtype.name]).largest
        return np.clip(values, -largest, largest).astype(dtype)
    return values.astype(dtype)


def _pick(index: tuple, valid: np.ndarray) -> tuple:
    return tuple(np.broadcast_to(np.asarray(i), valid.shape)[valid] for i in index)


# ------------------------------------------------------------------------------------------------------------- tiles


def zeros(cfg: Config, m: int, n: int) -> Tile:
    """A tile of zeros: an accumulator."""
    return Tile(np.zeros((m, n), np.float32))


def _gather(x: np.ndarray, index: tuple, col0: int, n: int, valid: np.ndarray) -> np.ndarray:
    out = np.zeros((len(valid), n), np.float32)
    stop = max(col0, min(col0 + n, x.shape[-1]))
    if stop > col0:
        out[valid, : stop - col0] = x[(*_pick(index, valid), slice(col0, stop))].astype(np.float32)
    return out


def load_tile(cfg: Config, x: np.ndarray, index: tuple, col0: int, n: int, valid: np.ndarray) -> Tile:
    """``x[index, col0 : col0 + n]`` per row; rows that are not ``valid`` and columns past the end are 0.

    ``x`` is a tensor or a quantized source.

    ``index`` has one entry (rows or scalar) for every axis of ``x`` but the last.
    """
    _check_index("load_tile", x, index, x.ndim - 1, valid)
    _check_columns("load_tile", x, col0, n)
    return Tile(_gather(x, index, col0, n, valid))


def store_tile(x: np.ndarray, index: tuple, col0: int, tile: Tile, valid: np.ndarray) -> None:
    """Round ``tile`` to ``x``'s dtype (to nearest even) and write it, but no row that is not ``valid``.

    ``index`` is as in `load_tile`; columns past the end of ``x`` are not written either. In dtypes of 8 bits (int8,
    float8_e4m3fn, float8_e5m2) what is beyond the largest finite number, infinity too, becomes that one; NaN becomes 0
    in int8.
    """
    _check_index("store_tile", x, index, x.ndim - 1, valid)
    _match("store_tile", _want(Tile, tile, "store_tile: tile"), valid)
    _check_storable_tile(x)
    stop = max(col0, min(col0 + tile.shape[1], x.shape[-1]))
    if stop > col0:
        x[(*_pick(index, valid), slice(col0, stop))] = _converted(tile.data[valid, : stop - col0], x.dtype)


def load_pair(
    cfg: Config, x: np.ndarray, y: np.ndarray, index: tuple, col0: int, n: int, valid: np.ndarray
) -> tuple[Tile, Tile]:
    """`load_tile` of two tensors of one shape, which may lie in memory by turns: an element of x, one of y, and so on.

    Where they do, they are read together.
    """
    _check_pair("load_pair", x, y)
    return load_tile(cfg, x, index, col0, n, valid), load_tile(cfg, y, index, col0, n, valid)


def store_pair(x: np.ndarray, y: np.ndarray, index: tuple, col0: int, a: Tile, b: Tile, valid: np.ndarray) -> None:
    """`store_tile` of a to x and of b to y, which may lie in memory by turns, as in `load_pair`."""
    _check_pair("store_pair", x, y)
    store_tile(x, index, col0, a, valid)
    store_tile(y, index, col0, b, valid)


def _check_pair(by: str, x: np.ndarray, y: np.ndarray) -> None:
    for tensor in (x, y):
        _want_tensor(by, tensor)
    if (x.shape, x.dtype) != (y.shape, y.dtype):
        raise TileError(f"{by}: {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)} do not match")


def rowmax(tile: Tile) -> np.ndarray:
    """Largest value of each row; NaN is ignored. Does not consume."""
    return np.fmax.reduce(_want(Tile, tile, "rowmax: the argument").data, axis=1)


def rowsum(tile: Tile) -> np.ndarray:
    """Sum of each row. Does not consume."""
    return _want(Tile, tile, "rowsum: the argument").data.sum(axis=1, dtype=np.float32)


def rowdot(a: Tile, b: Tile) -> np.ndarray:
    """Sum over each row of the products ``a * b``. Does not consume."""
    _match("rowdot", _want(Tile, a, "rowdot: the argument"), _want(Tile, b, "rowdot: the argument"))
    if a.shape != b.shape:
        raise TileError(f"rowdot: {_show(a)} and {_show(b)} do not match")
    with np.errstate(over="ignore", invalid="ignore"):
        return (a.data * b.data).sum(axis=1, dtype=np.float32)


def load_rowdot(x: np.ndarray, index: tuple, col0: int, tile: Tile, valid: np.ndarray) -> np.ndarray:
    """`rowdot` of ``tile`` and a tile that is loaded from there, which need not be kept. Does not consume.

    ``x``, ``index``, ``col0`` and ``valid`` are as in `load_tile`. The tile may have a fraction of the rows: then they
    take turns, row ``r`` of ``x`` meets row ``r % m`` of m. Of a quantized source, scales may be applied to sums of
    products, and both sides may be rounded to its dtype.
    """
    _check_index("load_rowdot", x, index, x.ndim - 1, valid)
    (rows, columns), m = _want(Tile, tile, "load_rowdot: tile").shape, len(valid)
    if m % rows:
        raise TileError(f"load_rowdot: {_show(tile)} does not divide {_show(valid)}")
    _check_columns("load_rowdot", x, col0, columns)
    return rowdot(Tile(_gather(x, index, col0, columns, valid)), Tile(np.tile(tile.data, (m // rows, 1))))


def matvec(
    cfg: Config, x: np.ndarray, index: tuple, col0: int, n: int, vector: np.ndarray, valid: np.ndarray
) -> np.ndarray:
    """Products of rows of x with a vector: the sum of ``x[row, c] * vector[c]`` over ``n`` columns c from ``col0`` on.

    ``x``, ``index``, ``col0``, ``n`` and ``valid`` are as in `load_tile`; the vector is as long as a row of x, and
    there are as many rows as `rows_at_once` says, or a multiple of that. Of a quantized source, scales may be applied
    to sums of products, and both sides may be rounded to its dtype.
    """
    _want_tensor("matvec: vector", vector)
    if vector.ndim != 1 or len(valid) % rows_at_once(cfg):
        raise TileError(f"matvec: rows for {cfg.waves} waves and a vector; got {_show(valid)} and {vector.ndim} axes")
    _check_index("matvec", x, index, x.ndim - 1, valid)
    if len(vector) != x.shape[-1]:
        raise TileError(f"matvec: a vector of {len(vector)} elements for rows of {x.shape[-1]}")
    numbers = load_tile(cfg, vector, (), col0, n, np.ones(rows_at_once(cfg), bool))
    return load_rowdot(x, index, col0, numbers, valid)


def exp2(x: Any) -> Any:
    """``2 ** x`` of rows, or of a tile (consumed)."""
    with np.errstate(over="ignore", under="ignore"):
        return Tile(np.exp2(x.consume("exp2"))) if isinstance(x, Tile) else np.exp2(x)


def copy(tile: Tile) -> Tile:
    """The same values once more, for where two operations would use them up."""
    return Tile(_want(Tile, tile, "copy: the argument").data.copy())


def tanh(tile: Tile) -> Tile:
    """Hyperbolic tangent (consumes)."""
    return Tile(np.tanh(_want(Tile, tile, "tanh: the argument").consume("tanh")))


def absolute(tile: Tile) -> Tile:
    """Absolute value (consumes)."""
    return Tile(np.abs(_want(Tile, tile, "absolute: the argument").consume("absolute")))


def rounded(tile: Tile, like: np.ndarray) -> Tile:
    """The values as they would come back from ``like``: rounded to its dtype, to nearest even (consumes the tile)."""
    _check_storable("rounded", like)
    values = _want(Tile, tile, "rounded: the argument").consume("rounded")
    with np.errstate(over="ignore"):
        return Tile(values.astype(like.dtype).astype(np.float32))


def pad_columns(tile: Tile, col0: int, stop: int, value: float) -> Tile:
    """``value`` in the columns ``col0 + c`` from ``stop`` on, which lie past the end of a tensor (consumes)."""
    values = _want(Tile, tile, "pad_columns: the argument").consume("pad_columns")
    values[:, max(stop - col0, 0) :] = value
    return Tile(values)


def multiply_add(tile: Tile, factor: Tile, summand: Tile) -> Tile:
    """``tile * factor + summand``, rounded once; consumes ``tile`` only."""
    for other in (factor, summand):
        if _want(Tile, other, "multiply_add: the argument").shape != tile.shape:
            raise TileError(f"multiply_add: {_show(tile)} and {_show(other)} do not match")
    with np.errstate(over="ignore", invalid="ignore"):
        product = tile.consume("multiply_add").astype(np.float64) * factor.data
        return Tile((product + summand.data).astype(np.float32))


def _map(x: Any, name: str, function: Callable[[np.ndarray], np.ndarray]) -> Any:
    """``function`` of float32 rows, or of a tile (consumed)."""
    if isinstance(x, np.ndarray):
        return function(_float_rows(name, x))
    return Tile(function(_want(Tile, x, f"{name}: the argument").consume(name)))


def _activation(x: Any, name: str, factor: Callable[[np.ndarray], np.ndarray]) -> Any:
    """``x * factor(x)`` in float64, with the limit at minus infinity."""

    def function(x: np.ndarray) -> np.ndarray:
        bounded = np.where(x < -1e3, -1e3, x.astype(np.float64))
        with np.errstate(over="ignore", under="ignore"):
            return (np.where(x < 0, bounded, x) * factor(bounded)).astype(np.float32)

    return _map(x, name, function)


def silu(x: Any) -> Any:
    """``x / (1 + exp(-x))`` of rows, or of a tile (consumed); -0 at minus infinity."""
    return _activation(x, "silu", lambda x: 1 / (1 + np.exp(-x)))


def gelu(x: Any) -> Any:
    """``x / 2 * (1 + erf(x / sqrt(2)))`` of rows, or of a tile (consumed); -0 at minus infinity."""
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    return _activation(x, "gelu", lambda x: erfc(-x / math.sqrt(2)) / 2)


def gelu_tanh(x: Any) -> Any:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` of rows, or of a tile (consumed); -0 at -inf."""
    return _activation(x, "gelu_tanh", lambda x: 1 / (1 + np.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))))


def relu(x: Any) -> Any:
    """``max(x, 0)`` of rows, or of a tile (consumed); NaN stays NaN."""
    return _map(x, "relu", lambda x: np.where(x <= 0, np.float32(0), x))


def rotations(cfg: Config, position: np.ndarray, frequencies: np.ndarray, col0: int, n: int) -> tuple[Tile, Tile]:
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
    if frequencies.dtype != np.int64 or frequencies.ndim != 1:
        raise TileError(f"rotations: frequencies must be a tensor of int64 with 1 axis, got {_show(frequencies)}")
    turns = np.zeros(n, np.int64)
    part = frequencies[col0 : col0 + n]
    turns[: len(part)] = part
    with np.errstate(over="ignore"):
        phase = position.astype(np.int64)[:, None] * turns[None, :]
    angle = phase.astype(np.float64) * (2 * np.pi / 2.0**64)
    return Tile(np.cos(angle).astype(np.float32)), Tile(np.sin(angle).astype(np.float32))


def rotate(a: Tile, b: Tile, cos: Tile, sin: Tile) -> tuple[Tile, Tile]:
    """``a * cos - b * sin`` and ``b * cos + a * sin``: rotate the points (a, b) (consumes a and b).

    Where ``sin`` is 0 they are ``a * cos`` and ``b * cos``, whatever the other one is.
    """
    for name, t in (("a", a), ("b", b), ("cos", cos), ("sin", sin)):
        if _want(Tile, t, f"rotate: {name}").shape != a.shape:
            raise TileError(f"rotate: {_show(a)} and {_show(t)} do not match")
    x, y, c, s = a.consume("rotate"), b.consume("rotate"), cos.data, sin.data
    with np.errstate(invalid="ignore", over="ignore"):
        return Tile(np.where(s == 0, x * c, x * c - y * s)), Tile(np.where(s == 0, y * c, y * c + x * s))


def at_least(tile: Tile, bound: Any) -> Tile:
    """1 where ``tile >= bound``, else 0, also for NaN; ``bound`` is a number or rows (consumes)."""
    values = _want(Tile, tile, "at_least: the argument")
    if isinstance(bound, Tile):
        raise TileError(f"at_least: the bound must be rows or a number, got {_show(bound)}")
    bound = _other(bound, values, "at_least")
    return Tile((values.consume("at_least") >= bound).astype(np.float32))


def distance(cfg: Config, position: np.ndarray, col0: int, n: int) -> Tile:
    """``position[r] - (col0 + c)``: how far each column lies before each row's position."""
    return Tile((position[:, None] - (col0 + np.arange(n))[None, :]).astype(np.float32))


def mask_outside(tile: Tile, col0: int, low: np.ndarray, high: np.ndarray) -> Tile:
    """``-inf`` where column ``col0 + c`` lies outside ``low[r] .. high[r]``, both inclusive (consumes)."""
    _match("mask_outside", _want(Tile, tile, "mask_outside: the argument"), low, high)
    c = col0 + np.arange(tile.shape[1])[None, :]
    inside = (c >= low[:, None]) & (c <= high[:, None])
    return Tile(np.where(inside, tile.consume("mask_outside"), np.float32(NEG_INF)))


def mask_where(tile: Tile, visible: Tile) -> Tile:
    """``-inf`` where ``visible`` is 0 (consumes both)."""
    seen = _other(_want(Tile, visible, "mask_where: visible"), tile, "mask_where")
    return Tile(np.where(seen != 0, tile.consume("mask_where"), np.float32(NEG_INF)))


def softmax_step(
    s: Tile, scale: float, m: np.ndarray, l: np.ndarray, acc: Tile
) -> tuple[Tile, np.ndarray, np.ndarray, Tile]:
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
    for name, t in (("s", s), ("acc", acc)):
        _want(Tile, t, f"softmax_step: {name}")
    _match("softmax_step", s, m, l, acc)
    scores, scale = s.consume("softmax_step"), np.float32(scale)
    new = np.fmax(m, np.fmax.reduce(scores, axis=1))
    base = np.where(new == NEG_INF, np.float32(0), new)
    with np.errstate(invalid="ignore", under="ignore"):
        p = np.exp2((scores - base[:, None]) * scale)
        shrink = np.exp2((m - base) * scale)
    return Tile(p), new, l * shrink + p.sum(1, dtype=np.float32), Tile(acc.consume("softmax_step") * shrink[:, None])


def softmax_end(scale: float, m: np.ndarray, l: np.ndarray, acc: Tile) -> tuple[np.ndarray, np.ndarray, Tile]:
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
    _match("softmax_end", _want(Tile, acc, "softmax_end: acc"), m, l)
    return m, l, Tile(acc.consume("softmax_end"))


def square_step(tile: Tile, scale: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    _match("square_step", _want(Tile, tile, "square_step: the argument"), scale, total)
    values = tile.data
    largest = np.fmax.reduce(np.abs(values), axis=1)
    fitting = np.clip(np.exp2(1 - np.frexp(largest)[1].astype(np.float64)), 2.0**-126, 2.0**127)
    fitting = np.where(largest == 0, 2.0**127, np.where(np.isfinite(largest), fitting, 1.0))
    new = np.fmin(scale, fitting).astype(np.float32)
    with np.errstate(all="ignore"):
        scaled = values * new[:, None]
        before = np.where(scale == new, total, total * (new / scale) ** 2)
        return new, (before + (scaled * scaled).sum(axis=1, dtype=np.float32)).astype(np.float32)


def multiply_rows(tile: Tile, scale: np.ndarray, factor: np.ndarray) -> Tile:
    """``tile * scale * factor`` with rows, of which ``scale * factor`` may overflow or vanish (consumes).

    Where it does neither, a target may find it first.
    """
    _match("multiply_rows", _want(Tile, tile, "multiply_rows: the argument"), scale, factor)
    scale, factor = (_float_rows("multiply_rows", x)[:, None] for x in (scale, factor))
    with np.errstate(all="ignore"):
        return Tile(tile.consume("multiply_rows") * scale * factor)


# ---------------------------------------------------------------------------------------------------------- products


def rows(x: np.ndarray, start: int, stop: int) -> np.ndarray:
    """``x[start:stop]``: a tensor with fewer rows."""
    return x[start:stop]


def load_operand(cfg: Config, x: np.ndarray, index: tuple, col0: int, k: int, valid: np.ndarray) -> Operand:
    """As `load_tile` of a tensor, as the left operand of a product."""
    _want_tensor("load_operand", x)
    _check_index("load_operand", x, index, x.ndim - 1, valid)
    return Operand(_gather(x, index, col0, k, valid))


def scratch_rows(x: np.ndarray, n: int) -> np.ndarray:
    """Rows of ``n`` elements (known when the kernel is compiled), one after the other in a contiguous ``x``.

    A shape that is known saves instructions. x begins at a multiple of 16 bytes, as what is allocated does, and so does
    each row; where kernels are compiled, nobody looks.
    """
    size = x.itemsize
    if x.ndim != 1 or x.strides[0] != size or x.ctypes.data % 16 or n * size % 16:
        needs = "a contiguous tensor with 1 axis, in rows of whole 16 bytes"
        raise TileError(f"scratch_rows: needs {needs}, got {_show(x)} and n={n}")
    return x[: x.size // n * n].reshape(-1, n)


def transposed(x: np.ndarray, swap: bool) -> np.ndarray:
    """A tensor with 2 axes, the axes swapped if ``swap``, which is known when the kernel is compiled."""
    if x.ndim != 2:
        raise TileError(f"transposed: the tensor must have 2 axes, got {_show(x)}")
    return x.T if swap else x


def operand(tile: Tile, like: Stage) -> Operand:
    """Make a tile (consumed) the left operand of a product with ``like``; a target may round it to ``like``'s dtype."""
    _want(Stage, like, "operand: like")
    return Operand(_want(Tile, tile, "operand: the tile").consume("operand"))


def stage(
    cfg: Config, source: np.ndarray, n: int, k: int, like: np.ndarray | None = None, paged: bool = False
) -> Stage:
    """Room in shared memory for a window of ``n`` rows and ``k`` columns of the 2-D tensor or quantized ``source``.

    The stages of a kernel share the architecture's shared memory.

    Parameters
    ----------
    like : tensor, optional
        The window holds this tensor's dtype. Sources of int8, float8_e4m3fn and float8_e5m2 need it; others have it.
    paged : bool
        Whether `paged` will say where the rows are.
    """
    if source.ndim != 2:
        raise TileError(f"stage: the source must have 2 axes, got {_show(source)}")
    dtype = source.dtype if like is None else like.dtype
    if source.dtype.itemsize > 1 and dtype != source.dtype:
        raise TileError(f"stage: {_show(source)} of {source.dtype.name} cannot be held as {dtype.name}")
    st, limit = Stage(source, n, k, paged, cfg.num_stages), architecture(cfg.arch).shared_bytes
    need = n * k * dtype.itemsize
    if need > limit:
        raise TileError(
            f"stage: {_show(st)} takes {need} bytes; {cfg.arch} has {limit} bytes of shared memory; use smaller blocks"
        )
    return st


def paged(st: Stage, cache: np.ndarray, head: int, table: np.ndarray, stop: int) -> Stage:
    """Read the rows of a stage through a page table (consumes); before the first `fetch`.

    Row r is ``cache[table[r // L], head, r % L]`` for ``r < stop``, where L is the page size ``cache.shape[2]``. A
    row whose page the table or the cache does not have reads as 0 on a machine target.

    Parameters
    ----------
    st : Stage
        Made with ``paged=True``, of a source with the dtype and the columns of ``cache``.
    cache : tensor, [pages, heads, L, columns]
    head : int
    table : tensor, int32, [entries]
    stop : int
        Number of rows that exist.
    """
    st = _want(Stage, st, "paged: the stage").consume("paged")
    if not st.paged:
        raise TileError("paged: the stage must be made with paged=True")
    if st.fetched or st.acquired:
        raise TileError("paged: the stage has been used already")
    if cache.ndim != 4 or table.ndim != 1 or cache.dtype != st.source.dtype:
        raise TileError(
            f"paged: needs a cache of {st.source.dtype.name} with 4 axes and a table with 1, got "
            f"{_show(cache)} of {cache.dtype.name} and {_show(table)}"
        )
    st.pages = cache[:, head], table, stop
    return st


def fetch(st: Stage, row0: int, col0: int = 0) -> Stage:
    """Start to bring rows ``row0 .. row0 + n`` and columns ``col0 .. col0 + k`` of the source (consumes).

    What lies past the end of the source reads as 0. Windows are acquired in the order in which they were fetched.
    """
    st = _want(Stage, st, "fetch: the stage").consume("fetch")
    if len(st.fetched) == st.num_stages:
        if st.num_stages == 1:
            raise TileError("fetch: a window is already on its way; acquire it first")
        raise TileError(f"fetch: {st.num_stages} windows are already on their way; acquire the first of them")
    if st.paged and st.pages is None:
        raise TileError("fetch: a stage made with paged=True needs `paged` first")
    _check_columns("fetch", st.source, col0, st.k)
    st.fetched = (*st.fetched, (row0, col0))
    return st


def acquire(st: Stage) -> Stage:
    """Wait for the fetched window and make it visible to the whole block (consumes): products may use the result."""
    st = _want(Stage, st, "acquire: the argument").consume("acquire")
    if not st.fetched:
        raise TileError("acquire: nothing was fetched")
    if st.acquired:
        raise TileError("acquire: the window in use must be released before the next one overwrites it")
    st.window = np.zeros((st.n, st.k), np.float32)
    part = st.rows(*st.fetched[0])
    st.window[: part.shape[0], : part.shape[1]] = part
    st.fetched, st.acquired = st.fetched[1:], True
    return st


def release(st: Stage) -> Stage:
    """Say that the block is done with the window in use (consumes)."""
    st = _want(Stage, st, "release: the argument").consume("release")
    if not st.acquired:
        raise TileError("release: the stage is not acquired")
    st.window, st.acquired = np.full((st.n, st.k), np.nan, np.float32), False
    return st


def finish(st: Stage) -> None:
    """Say that the stage is not used any more, and wait for what is on its way (consumes).

    A kernel whose ``cfg.num_stages`` may be more than 1 does this for each stage behind its loop.
    """
    st = _want(Stage, st, "finish: the argument").consume("finish")
    if st.acquired:
        raise TileError("finish: the window in use must be released first")


def _dot(name: str, a: np.ndarray, b: np.ndarray, acc: Tile | None) -> Tile:
    """a @ b + acc: both sides as plain matrices."""
    if a.shape[1] != b.shape[0]:
        raise TileError(f"{name}: the inner dimensions {a.shape[1]} and {b.shape[0]} do not match")
    with np.errstate(invalid="ignore", over="ignore"):
        product = a @ b
    if acc is None:
        return Tile(product)
    if _want(Tile, acc, f"{name}: acc").shape != product.shape:
        raise TileError(f"{name}: {_show(acc)} cannot take a product of shape {list(product.shape)}")
    return Tile(acc.consume(name) + product)


def _sides(name: str, cls: type, a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    return _want(cls, a, f"{name}: the left side").data, _want(Stage, b, f"{name}: the right side").data


def _either(a: Any) -> type:
    """The class that the left side must have where an operand and a stage will do."""
    return Stage if isinstance(a, Stage) else Operand


def dot_nt(a: Operand | Stage, b: Stage, acc: Tile | None = None) -> Tile:
    """``a @ b.T``, plus ``acc`` if given (consumed): [M, K] x [N, K] -> [M, N]."""
    a, b = _sides("dot_nt", _either(a), a, b)
    return _dot("dot_nt", a, b.T, acc)


def dot_nn(a: Operand | Stage, b: Stage, acc: Tile | None = None) -> Tile:
    """``a @ b``, plus ``acc`` if given (consumed): [M, K] x [K, N] -> [M, N]."""
    a, b = _sides("dot_nn", _either(a), a, b)
    return _dot("dot_nn", a, b, acc)


def dot(a: Operand | Stage, b: Stage, transposed: bool, acc: Tile | None = None) -> Tile:
    """`dot_nt` where ``transposed`` (known when the kernel is compiled), else `dot_nn` (consumes acc)."""
    return dot_nt(a, b, acc) if transposed else dot_nn(a, b, acc)


def dot_tn(a: Stage, b: Stage, acc: Tile | None = None) -> Tile:
    """``a.T @ b``, plus ``acc`` if given (consumed): [K, M] x [K, N] -> [M, N]."""
    a, b = _sides("dot_tn", Stage, a, b)
    return _dot("dot_tn", a.T, b, acc)


def dot_nn_where(a: Operand, b: Stage, acc: Tile) -> Tile:
    """As `dot_nn`, but where ``a`` is 0 the product is 0 even if ``b`` is NaN or infinite there (consumes acc).

    This keeps what is masked out of the result, whatever it holds.
    """
    left, right = _sides("dot_nn_where", Operand, a, b)
    finite = np.isfinite(right)
    out = _dot("dot_nn_where", left, np.where(finite, right, np.float32(0)), acc)
    if finite.all():
        return out
    total = out.consume("dot_nn_where")
    for j in np.flatnonzero(~finite.all(axis=1)):
        seen = left[:, j] != 0
        with np.errstate(invalid="ignore"):
            total[seen] += np.where(finite[j], np.float32(0), left[seen, j, None] * right[j])
    return Tile(total)


#: The operations that targets lower, by name.
OPERATIONS: dict[str, Callable] = {
    f.__name__: f
    for f in (
        block_id, row_index, full_rows, where, minimum, maximum, reciprocal_or_zero, log2, sqrt, load_rows,
        load_integers, store_rows, zeros, load_tile, store_tile, load_pair, store_pair, rowmax, rowsum, rowdot,
        load_rowdot, matvec, exp2, copy, tanh, absolute, silu, gelu, gelu_tanh, relu, multiply_add, rounded,
        pad_columns, distance, mask_outside, mask_where, softmax_step, softmax_end, square_step, multiply_rows, rows,
        quantized, scratch_rows, transposed, load_operand, operand, stage, fetch, acquire, release, finish, dot_nt,
        dot_nn, dot_tn, dot, dot_nn_where, rotations, rotate, paged, total, largest, ordered_float, at_least,
        last_to_arrive, repeat_rows, fold_sum, fold_max,
    )
}  # fmt: skip

#: Which arguments an operation consumes, by name. Beside these, ``+ - *`` consume the tiles that they combine.
CONSUMES: dict[str, tuple[str, ...]] = {
    "exp2": ("x",),
    "tanh": ("tile",),
    "absolute": ("tile",),
    "silu": ("x",),
    "gelu": ("x",),
    "gelu_tanh": ("x",),
    "relu": ("x",),
    "multiply_add": ("tile",),
    "multiply_rows": ("tile",),
    "rounded": ("tile",),
    "pad_columns": ("tile",),
    "mask_outside": ("tile",),
    "mask_where": ("tile", "visible"),
    "softmax_step": ("s", "acc"),
    "softmax_end": ("acc",),
    "operand": ("tile",),
    "fetch": ("st",),
    "acquire": ("st",),
    "release": ("st",),
    "finish": ("st",),
    "dot_nt": ("acc",),
    "dot_nn": ("acc",),
    "dot_tn": ("acc",),
    "dot": ("acc",),
    "dot_nn_where": ("acc",),
    "rotate": ("a", "b"),
    "paged": ("st",),
    "at_least": ("tile",),
}
