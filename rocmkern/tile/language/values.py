"""The interpreter's values: what a kernel handles when it runs as plain Python.

A tensor and rows are NumPy arrays that know which operations the language has for them. A tile, an operand and a stage
belong to a block and can be consumed: afterwards the name is dead, and its use raises.

`kind_of` says of a value what the rules of operations ask for, `value_of` makes a value of what an operation computed.
"""

from __future__ import annotations

import functools
import operator
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from rocmkern.runtime.errors import TileError
from rocmkern.tile.formats import Format, format_named
from rocmkern.tile.language import kinds
from rocmkern.tile.language.expression import Traced, trace
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.language.kinds import (
    ArrayKind,
    ConfigKind,
    FunctionKind,
    Kind,
    OperandKind,
    OtherKind,
    QuantizedKind,
    RowsKind,
    ScalarKind,
    StageKind,
    TensorKind,
    TileKind,
)
from rocmkern.tile.language.windows import Windows

#: Operators of NumPy arrays that rows have, by the function that NumPy calls for them.
_OPERATORS = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv, np.remainder: operator.mod, np.less: operator.lt, np.less_equal: operator.le,
    np.greater: operator.gt, np.greater_equal: operator.ge, np.equal: operator.eq, np.not_equal: operator.ne,
    np.bitwise_and: operator.and_, np.bitwise_or: operator.or_, np.bitwise_xor: operator.xor,
    np.invert: operator.invert, np.negative: operator.neg, np.absolute: operator.abs, np.power: operator.pow,
    np.matmul: operator.matmul,
}  # fmt: skip

#: `operation.OPERATORS`, which is filled later: what computes an operator of values.
operators: dict[Callable[..., Any], Callable[..., Any]] = {}


class Block(threading.local):
    """What this thread knows of the block that it runs.

    Attributes
    ----------
    index : tuple of int
        Its place in the grid.
    quiet : bool
        Whether NumPy's warnings are off already, as they are while a block runs.
    stages : list of Stage, optional
        The stages that it made, as they are now; None where an operation is called outside a block.
    """

    index: tuple[int, int, int] = (0, 0, 0)
    quiet: bool = False
    stages: list[Stage] | None = None


block: Block = Block()


class Tensor(np.ndarray):
    """A tensor in global memory: leading integer indices give a part of it, or an element."""

    def __getitem__(self, index: Any) -> Any:
        return operators[operator.getitem](self, index)


class Rows(np.ndarray):
    """One number per tile row, float32, int32 or bool, with the operators of the language."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and ufunc in _OPERATORS:
            return operators[_OPERATORS[ufunc]](*inputs)
        plain = (x.view(np.ndarray) if isinstance(x, Rows) else x for x in inputs)
        return getattr(ufunc, method)(*plain, **options)

    def __getitem__(self, index: Any) -> Any:
        return self.view(np.ndarray)[index]

    def __bool__(self) -> bool:
        raise TileError("conditions are numbers, the same for all rows of a block: use T.where, T.total or T.largest")

    if TYPE_CHECKING:  # NumPy's own say that rows become any array

        def __add__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __radd__(self, other: float) -> Rows: ...  # type: ignore[override]
        def __sub__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __rsub__(self, other: float) -> Rows: ...  # type: ignore[override]
        def __mul__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __rmul__(self, other: float) -> Rows: ...  # type: ignore[override]
        def __truediv__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __rtruediv__(self, other: float) -> Rows: ...  # type: ignore[override]
        def __floordiv__(self, other: Rows | int) -> Rows: ...  # type: ignore[override]
        def __rfloordiv__(self, other: int) -> Rows: ...  # type: ignore[override]
        def __mod__(self, other: Rows | int) -> Rows: ...  # type: ignore[override]
        def __rmod__(self, other: int) -> Rows: ...  # type: ignore[override]
        def __lt__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __le__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __gt__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __ge__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __eq__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __ne__(self, other: Rows | float) -> Rows: ...  # type: ignore[override]
        def __and__(self, other: Rows) -> Rows: ...  # type: ignore[override]


#: Where the rows of a tile lie in a tensor: rows or a number for each axis that is indexed.
Index: TypeAlias = tuple[Rows | int, ...]


def _of_operator(op: Callable[..., Any], reflected: bool) -> Callable[..., Any]:
    if reflected:
        return lambda self, other: operators[op](other, self)
    return lambda self, *others: operators[op](self, *others)


class _Value:
    """What belongs to a block. Its operators are declared like operations; it has no others."""

    __slots__ = ("_dead",)
    __array_ufunc__: ClassVar[None] = None  # rows on the left: NumPy must leave the operator to us

    # A class with an equality of its own would lose it.
    def __hash__(self) -> int:
        return object.__hash__(self)

    def __init_subclass__(cls) -> None:
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"):
            op, bare = getattr(operator, name), name.rstrip("_")
            setattr(cls, f"__{bare}__", _of_operator(op, reflected=False))
            setattr(cls, f"__r{bare}__", _of_operator(op, reflected=True))
        for name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "getitem"):
            setattr(cls, f"__{name}__", _of_operator(getattr(operator, name), reflected=False))

    def __init__(self) -> None:
        self._dead: str | None = None

    def _check_alive(self) -> None:
        if self._dead:
            name = type(self).__name__.lower()
            raise TileError(f"this {name} was consumed by {self._dead} and cannot be used again")


class Tile(_Value):
    """``[M, N]`` float32 values. ``+ - *`` with a tile, with rows, or with a scalar consume the tiles involved."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray):
        super().__init__()
        self._array = array

    @property
    def data(self) -> np.ndarray:
        self._check_alive()
        return self._array

    def consume(self, by: str) -> np.ndarray:
        """The numbers; this tile is dead."""
        array = self.data
        self._dead = by
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    if TYPE_CHECKING:  # those that it has; the others are there to say so

        def __add__(self, other: Tile | Rows | float) -> Tile: ...
        def __sub__(self, other: Tile | Rows | float) -> Tile: ...
        def __mul__(self, other: Tile | Rows | float) -> Tile: ...


class Operand(Tile):
    """``[M, K]`` left operand of a product with a stage of ``dtype``."""

    __slots__ = ("dtype",)

    def __init__(self, array: np.ndarray, dtype: str):
        super().__init__(array)
        self.dtype: str = dtype


class Stage(_Value):
    """A window of ``n`` rows and ``k`` columns of ``source``: fetched, acquired, released.

    It holds elements of ``dtype``. `pipeline` declares what may be done with it, ``windows`` says what may come next.
    """

    __slots__ = ("dtype", "fetched", "k", "n", "number", "paged", "pages", "source", "window", "windows")

    n: int
    k: int
    dtype: str
    paged: bool

    def __init__(self, source: Tensor | Quantized, n: int, k: int, dtype: str, paged: bool, num_stages: int):
        super().__init__()
        self.n, self.k, self.dtype, self.paged = n, k, dtype, paged
        self.source: Tensor | Quantized = source
        self.pages: tuple[np.ndarray, np.ndarray, int] | None = None
        self.fetched: tuple[tuple[int, int], ...] = ()  # first row and column of each window that is on its way
        self.windows: Windows = Windows(num_stages, needs_pages=paged)
        self.window: np.ndarray = np.full((n, k), np.nan, np.float32)  # poison until acquired
        self.number: int = -1 if block.stages is None else len(block.stages)
        if block.stages is not None:
            block.stages.append(self)

    def consume(self, by: str) -> Stage:
        """The same stage under a new name; this name is dead."""
        self._check_alive()
        new = Stage.__new__(Stage)
        for name in Stage.__slots__:
            setattr(new, name, getattr(self, name))
        new._dead, self._dead = None, by
        if block.stages is not None:
            block.stages[new.number] = new
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
        self.windows.product()
        return self.window

    @property
    def shape(self) -> tuple[int, int]:
        return self.n, self.k


class Quantized:
    """A quantized source. Two-dimensional indices, rows first, give float32 elements."""

    ndim: ClassVar[int] = 2

    def __init__(self, blocks: np.ndarray, format: str, dtype: np.dtype, alignment: int):
        self.blocks: np.ndarray = blocks
        self.format: Format = format_named(format)
        self.dtype: np.dtype = dtype
        self.alignment: int = alignment
        self.shape: tuple[int, int] = blocks.shape[0], self.format.columns(blocks.shape[1])

    def __getitem__(self, index: tuple[Any, slice]) -> np.ndarray:
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


# --------------------------------------------------------------------------------------------------- values and kinds


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """NumPy's name of an element type, for which it takes microseconds."""
    return dtype.name


_ROWS = {"float32": "f32", "int32": "i32", "bool": "i1"}
_ELEMENTS = {"f32": np.dtype(np.float32), "i32": np.dtype(np.int32), "i1": np.dtype(bool)}


def _kind_of_array(x: np.ndarray) -> Kind:
    dtype = dtype_name(x.dtype)
    if isinstance(x, Rows) and x.ndim == 1:
        return RowsKind(len(x), _ROWS.get(dtype, dtype))
    if x.ndim == 1 and not isinstance(x, Tensor):
        return ArrayKind(len(x), _ROWS.get(dtype, dtype), (), dtype, 1)
    return TensorKind(dtype, x.ndim)


def _kind_of_stage(x: Stage) -> Kind:
    format = x.source.format.name if isinstance(x.source, Quantized) else ""
    return StageKind(x.n, x.k, x.dtype, (), dtype_name(x.source.dtype), x.paged, format)


@functools.cache
def _kind_of_function(fn: types.FunctionType) -> Kind:
    if fn.__globals__.get(fn.__name__) is not fn or fn.__code__.co_freevars:
        return OtherKind(f"{fn.__qualname__}, which no module has by that name")
    try:
        return FunctionKind(trace(fn))
    except TileError as error:
        return FunctionKind(None, str(error))


#: Kind of a value, by what the value is an instance of.
_KINDS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (np.ndarray, _kind_of_array),
    (Operand, lambda x: OperandKind(*x.shape, x.dtype)),
    (Tile, lambda x: TileKind(*x.shape)),
    (Stage, _kind_of_stage),
    (Quantized, lambda x: QuantizedKind(x.format.name, dtype_name(x.dtype), x.alignment)),
    (Config, ConfigKind),
    (tuple, lambda x: tuple(map(kind_of, x))),
    (bool, lambda x: ScalarKind("bool", x)),
    (np.bool_, lambda x: ScalarKind("bool", bool(x))),
    (int, lambda x: ScalarKind("int64", int(x))),
    (np.integer, lambda x: ScalarKind(dtype_name(x.dtype), int(x))),
    (np.floating, lambda x: ScalarKind(dtype_name(x.dtype))),
    (float, lambda x: ScalarKind("float64")),
    (str, lambda x: ScalarKind("str", x)),
    (type(None), lambda x: kinds.NONE),
    (types.FunctionType, _kind_of_function),
)


def kind_of(x: Any) -> Any:
    """The kind of a value; a tuple of kinds for a tuple of values."""
    for cls, describe in _KINDS:
        if isinstance(x, cls):
            return describe(x)
    return OtherKind(f"{type(x).__name__} {x!r}")


def key_of(x: Any) -> Any:
    """What stands for the kind of a value as a key: equal keys have equal kinds as long as both values live.

    What an integer is, is left out.
    """
    cls = type(x)
    if cls is Tile:
        return cls, x._array.shape
    if cls is Rows or cls is np.ndarray:
        return cls, x.shape, x.dtype
    if cls is int or cls is float or x is None:
        return cls
    if cls is bool or cls is str:
        return cls, x
    if cls is Tensor:
        return cls, x.ndim, x.dtype
    if cls is tuple:
        return tuple([key_of(each) for each in x])
    if cls is Stage:
        return cls, x.n, x.k, x.dtype, x.source.dtype, x.paged, getattr(x.source, "format", None)
    if cls is Operand:
        return cls, x.shape, x.dtype
    if isinstance(x, np.generic):
        return cls, x.item()
    return id(x)


def _array_of(x: np.ndarray, by: str | None) -> np.ndarray:
    return x.view(np.ndarray)


def _numbers_of(x: Tile, by: str | None) -> np.ndarray:
    return x.data if by is None else x.consume(by)


def _stage_of(x: Stage, by: str | None) -> Stage:
    return x if by is None else x.consume(by)


#: What the meaning of an operation is given for a value, by the value's type: of it, and of who consumes it, if any.
TAKEN: dict[type, Callable[[Any, str | None], Any]] = {
    Rows: _array_of, Tensor: _array_of, Tile: _numbers_of, Operand: _numbers_of, Stage: _stage_of,
    tuple: lambda x, by: tuple([TAKEN[type(each)](each, by) if type(each) in TAKEN else each for each in x]),
}  # fmt: skip


def value_of(result: Any, kind: Any) -> Any:
    """What an operation computed, as a value of the kind that its rule says."""
    cls = type(kind)
    if cls is TileKind:
        return Tile(result)
    if cls is RowsKind or cls is ArrayKind:
        return np.asarray(result, _ELEMENTS[kind.kind]).view(Rows)
    if cls is TensorKind:
        return result if isinstance(result, Tensor) else result.view(Tensor)
    if cls is tuple:
        return tuple(map(value_of, result, kind))
    return Operand(result, kind.dtype) if cls is OperandKind else result


def is_traced(x: Any) -> bool:
    """Whether a value stands for a number in a function of `map` that is being traced."""
    return type(x) is Traced
