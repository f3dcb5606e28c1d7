"""Kinds: what an operation is told of its arguments, and what a type error says.

A kind is all that the language knows of a value without its numbers: that it is a tile of so many rows and columns, or
rows of integers, or a number that is known when the kernel is compiled. The rule of an operation takes the kinds of its
arguments and returns the kind of its result, or refuses them. It is the same function for every target: the interpreter
describes its values (`values.kind_of`), and numba's types of the tile language are kinds themselves (`types`).

What a value is laid out for, ``hw``, is part of the kinds that machine targets hand over, and empty in the interpreter.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar

from rocmkern.runtime.errors import TileError
from rocmkern.tile.formats import RUN
from rocmkern.tile.language.expression import Expression
from rocmkern.tile.language.kernel import Config

#: Element types of tensors in memory, and their size in bytes.
DTYPES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "bool": 1, "uint8": 1,
    "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
#: Those that stages convert.
QUANTIZED = ("int8", "float8_e4m3fn", "float8_e5m2")
#: Those that tiles and rows can be stored as.
STORABLE = ("float32", "float16", "bfloat16")


def dtype_refusal(name: Any) -> str:
    """What to say of a tensor whose element type is none of `DTYPES`."""
    return f"a tensor has dtype {name}; allowed: {', '.join(DTYPES)}"


# ------------------------------------------------------------------------------------------------------------- kinds


@dataclass(frozen=True)
class Kind:
    """Base of the kinds. ``what`` is a kind in the words of an error, `show` what is known of one value."""

    what: ClassVar[str] = "a value"

    def show(self) -> str:
        """A value of this kind in the words of an error."""
        return self.what

    def fields(self) -> list[Any]:
        """What is known, in order: of a kind with these the same is known."""
        return [getattr(self, field.name) for field in dataclasses.fields(self)]


@dataclass(frozen=True)
class ConfigKind(Kind):
    """The configuration: its attributes are literals."""

    what: ClassVar[str] = "the configuration"
    cfg: Config

    @property
    def hw(self) -> tuple[str, int, int | str]:
        """What values are laid out for: architecture, waves, and rows of a wave, or else a name.

        "line", with the lanes of a row and the columns of a lane (`threads_per_row`, `vector_width`), is for rows
        along lanes, "split_kv" for rows that all waves have.
        """
        names = {
            f"line{self.cfg.threads_per_row}x{self.cfg.vector_width}": self.cfg.threads_per_row,
            "split_kv": self.cfg.split_kv,
        }
        return self.cfg.arch, self.cfg.waves, next((n for n, is_so in names.items() if is_so), self.cfg.wave_rows)


def threads_per_row(hw: tuple[str | int, ...]) -> int:
    """Lanes that a row lies along, of what values are laid out for; 0 where rows do not lie along lanes."""
    return int(str(hw[2]).removeprefix("line").split("x")[0]) if str(hw[2]).startswith("line") else 0


def vector_width(hw: tuple[str | int, ...]) -> int:
    """Columns side by side in a lane, where rows lie along lanes."""
    return int(str(hw[2]).split("x")[1])


@dataclass(frozen=True)
class TensorKind(Kind):
    """A view of global memory: element type and number of axes."""

    what: ClassVar[str] = "a tensor"
    dtype: str
    ndim: int

    def show(self) -> str:
        return f"a tensor of {self.dtype} with {self.ndim} axes"


@dataclass(frozen=True)
class QuantizedKind(Kind):
    """A quantized source: rows of blocks of ``format`` in global memory, read as elements of ``dtype``.

    Rows start at multiples of ``alignment`` bytes.
    """

    what: ClassVar[str] = "a quantized source"
    ndim: ClassVar[int] = 2
    format: str
    dtype: str
    alignment: int

    def show(self) -> str:
        return f"a quantized source of {self.format}"


@dataclass(frozen=True)
class RowsKind(Kind):
    """One number per tile row: ``f32``, ``i32`` or ``i1``."""

    what: ClassVar[str] = "rows, one number per tile row"
    m: int
    kind: str
    hw: tuple[str | int, ...] = ()

    def show(self) -> str:
        return f"{self.m} rows of {self.kind}"


@dataclass(frozen=True)
class ArrayKind(TensorKind, RowsKind):
    """A NumPy array with one axis, which the interpreter may be handed as a tensor or as rows."""

    dtype: str = ""
    ndim: int = 1

    def show(self) -> str:
        return RowsKind.show(self)


@dataclass(frozen=True)
class TileKind(Kind):
    """[m, n] float32."""

    what: ClassVar[str] = "a tile"
    m: int
    n: int
    hw: tuple[str | int, ...] = ()

    def show(self) -> str:
        return f"a tile [{self.m}, {self.n}]"


@dataclass(frozen=True)
class OperandKind(Kind):
    """[m, k] left operand of a product with a stage of ``dtype``."""

    what: ClassVar[str] = "the left operand of a product"
    m: int
    k: int
    dtype: str
    hw: tuple[str | int, ...] = ()

    def show(self) -> str:
        return f"an operand [{self.m}, {self.k}]"


@dataclass(frozen=True)
class StageKind(Kind):
    """[n, k] window in shared memory.

    It holds ``dtype``, converted from a tensor of ``source``, or decoded from blocks of ``format``; ``paged`` says
    that a page table leads to the rows.
    """

    what: ClassVar[str] = "a stage"
    n: int
    k: int
    dtype: str
    hw: tuple[str | int, ...]
    source: str
    paged: bool
    format: str = ""

    def show(self) -> str:
        return f"a stage [{self.n}, {self.k}] of {self.dtype}"


@dataclass(frozen=True)
class ScalarKind(Kind):
    """A number, a boolean or a text; its value, where that is known when the kernel is compiled."""

    dtype: str
    value: Any = None

    def show(self) -> str:
        return self.dtype


@dataclass(frozen=True)
class FunctionKind(Kind):
    """A function of numbers, as `map` takes it: what it computes, or why that cannot be said."""

    what: ClassVar[str] = "a function of numbers that a module defines"
    expression: Expression | None
    refusal: str = ""

    def show(self) -> str:
        return "a function of numbers"


@dataclass(frozen=True)
class NoneKind(Kind):
    """None, of an argument that is left out or of an operation without a result."""

    what: ClassVar[str] = "None"


@dataclass(frozen=True)
class OtherKind(Kind):
    """What the language knows nothing of."""

    text: str

    def show(self) -> str:
        return self.text


NONE: NoneKind = NoneKind()


# ------------------------------------------------------------------------------------------------ checks, their words

K = TypeVar("K", bound=Kind)


def refuse(message: str) -> NoReturn:
    """Refuse the arguments of an operation; the operation's name is put before the message."""
    raise TileError(message)


def show(kind: Any) -> str:
    """A kind in the words of an error."""
    return kind.show() if isinstance(kind, Kind) else "a tuple"


def want(cls: type[K], kind: Any, what: str = "the argument") -> K:
    """The kind, which must be of a class."""
    if not isinstance(kind, cls):
        refuse(f"{what} must be {cls.what}, got {show(kind)}")
    return kind


def literal(kind: Any, what: str) -> int:
    """The value of an integer that is known when the kernel is compiled."""
    if not is_int(kind) or kind.value is None:
        refuse(f"{what} must be known when the kernel is compiled (an attribute of cfg or a number), got {show(kind)}")
    return kind.value


def flag(kind: Any, what: str) -> bool:
    """The value of a boolean that is known when the kernel is compiled."""
    if not isinstance(kind, ScalarKind) or not isinstance(kind.value, bool):
        refuse(f"{what} must be known when the kernel is compiled (an attribute of cfg), got {show(kind)}")
    return kind.value


def is_int(kind: Any) -> bool:
    return isinstance(kind, ScalarKind) and kind.dtype.startswith(("int", "uint"))


def is_float(kind: Any) -> bool:
    return isinstance(kind, ScalarKind) and kind.dtype.startswith("float")


def is_scalar(kind: Any) -> bool:
    return is_int(kind) or is_float(kind)


def integers(**kinds: Any) -> None:
    """Each of these arguments must be an integer."""
    for name, kind in kinds.items():
        if not is_int(kind):
            refuse(f"{name} must be an integer, got {show(kind)}")


def match(a: Any, b: Any) -> None:
    """Tiles, rows or tensors that must have the same kind."""
    if a != b:
        refuse(f"{show(a)} and {show(b)} do not match")


def same_rows(a: Any, b: Any) -> None:
    """A tile or rows that must have as many rows as another."""
    if a.m != b.m:
        refuse(f"{show(a)} and {show(b)} do not match")


def same_tile(a: Any, b: Any) -> TileKind:
    """The kind of two tiles that must have the same."""
    match(want(TileKind, a), b)
    return a


def is_rows(kind: Any, of: str) -> bool:
    """Whether a kind is rows of ``f32``, ``i32`` or ``i1``."""
    return isinstance(kind, RowsKind) and kind.kind == of


def float_rows(kind: Any) -> RowsKind:
    if not is_rows(kind, "f32"):
        refuse(f"needs rows of f32, got {show(kind)}")
    return kind


def valid_rows(kind: Any) -> RowsKind:
    if not is_rows(kind, "i1"):
        refuse(f"valid must be rows of i1 (a comparison), got {show(kind)}")
    return kind


def rows_of(kind: Any, of: str, what: str) -> RowsKind:
    """The kind, which must be rows of ``f32``, ``i32`` or ``i1``."""
    if not is_rows(kind, of):
        refuse(f"{what} must be rows of {of}, got {show(kind)}")
    return kind


def index_of(x: Any, index: Any, columns: int, m: int) -> None:
    """The index of ``m`` rows in a source, of which ``columns`` axes are not indexed."""
    if not (columns and isinstance(x, QuantizedKind)):
        want(TensorKind, x, "the tensor")
    axes = x.ndim - columns
    entries = index if isinstance(index, tuple) else ()
    if len(entries) != axes:
        refuse(f"{show(x)} needs {axes} index entries, got {len(entries)}")
    for entry in entries:
        if isinstance(entry, RowsKind):
            if entry.kind != "i32" or entry.m != m:
                refuse(f"an index must be {m} rows of i32 or an integer, got {show(entry)}")
        elif not is_int(entry):
            refuse(f"an index must be rows of i32 or an integer, got {show(entry)}")


def whole_runs(source: Any, columns: int) -> None:
    """A quantized source is read some columns at a time."""
    if isinstance(source, QuantizedKind) and columns % RUN:
        refuse(f"{show(source)} is read {RUN} columns at a time, got {columns}")


def storable(x: Any) -> None:
    if x.dtype not in STORABLE:
        refuse(f"values can be stored as float32, float16 or bfloat16, not as {x.dtype}")


def join(a: Any, b: Any) -> RowsKind:
    """The kind of rows made from rows or scalars a and b."""
    rows = next((kind for kind in (a, b) if isinstance(kind, RowsKind)), None)
    if rows is None:
        refuse(f"needs rows, got {show(a)} and {show(b)}")
    for other in (a, b):
        if isinstance(other, RowsKind):
            if (other.m, other.kind) != (rows.m, rows.kind):
                refuse(f"{show(a)} and {show(b)} do not match")
        elif not is_scalar(other):
            refuse(f"cannot combine {show(rows)} with {show(other)}")
        elif is_float(other) and rows.kind == "i32":
            refuse(f"rows of i32 take integers only, got {show(other)}")
    return rows
