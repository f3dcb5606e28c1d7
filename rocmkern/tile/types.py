"""The types of the tile language for numba, and the rules of which operation takes which types.

One numba type per kind of value; shapes, dtypes and the hardware they are laid out for are part of the type, so a wrong
combination does not compile. The rules are the same for every target: they look at shapes only. How a type is stored
(`llvm_type`) and how an operation is computed is the business of `cpu.py`, `hip.py` and `cuda.py`.

Numba's own types come in two incompatible sets (``numba.core.types``, and ``numba.cuda.types`` of numba-cuda), so
everything here is made by `make_types` for one of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rocmkern.architectures import architecture
from rocmkern.tile import api, entry
from rocmkern.tile.formats import FORMATS, RUN

#: Element types of tensors in memory, and their size in bytes.
DTYPES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "bool": 1, "uint8": 1,
    "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


def dtype_refusal(name: Any) -> str:
    """What to say of a tensor whose element type is none of `DTYPES`."""
    return f"a tensor has dtype {name}; allowed: {', '.join(DTYPES)}"


#: Those that stages convert.
QUANTIZED = ("int8", "float8_e4m3fn", "float8_e5m2")
#: Those that tiles and rows can be stored as.
STORABLE = ("float32", "float16", "bfloat16")

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
LOGICAL = (operator.and_,)
OPERATORS = (*ARITHMETIC, *COMPARISONS, *LOGICAL)


def threads_per_row(hw: tuple) -> int:
    """Lanes that a row lies along, of what values are laid out for; 0 where rows do not lie along lanes."""
    return int(hw[2].removeprefix("line").split("x")[0]) if str(hw[2]).startswith("line") else 0


def vector_width(hw: tuple) -> int:
    """Columns side by side in a lane, where rows lie along lanes."""
    return int(hw[2].split("x")[1])


def make_types(types: Any, error: type[Exception], prefix: str) -> SimpleNamespace:
    """Make the tile types and typing rules over one set of numba types.

    Parameters
    ----------
    types : module
        ``numba.core.types`` or ``numba.cuda.types``.
    error : type
        The matching ``TypingError``.
    prefix : str
        Target name, part of every type's name, so that two targets never share a type.

    Returns
    -------
    types.SimpleNamespace
        The classes ``Config, Tensor, Quantized, Rows, Tile, Operand, Stage`` and ``rules``, a dict from an operation (a
        function of `api` or `entry`, or an operator) to a function of argument types that returns the result type, or
        None where the rule does not apply.
    """

    class Config(types.Type):
        """The configuration: its attributes are literals."""

        def __init__(self, cfg: api.Config):
            self.cfg = cfg
            super().__init__(name=f"{prefix}.Config({cfg})")

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

    class Tensor(types.Type):
        """A view of global memory: element type and number of axes."""

        def __init__(self, dtype: str, ndim: int):
            self.dtype, self.ndim = dtype, ndim
            super().__init__(name=f"{prefix}.Tensor({dtype},{ndim})")

    class Quantized(types.Type):
        """A quantized source: rows of blocks of ``format`` in global memory, read as elements of ``dtype``.

        Rows start at multiples of ``alignment`` bytes.
        """

        ndim = 2

        def __init__(self, format: str, dtype: str, alignment: int):
            self.format, self.dtype, self.alignment = format, dtype, alignment
            super().__init__(name=f"{prefix}.Quantized({format},{dtype},{alignment})")

    class Rows(types.Type):
        """One ``f32``, ``i32`` or ``i1`` per tile row."""

        def __init__(self, m: int, kind: str, hw: tuple):
            self.m, self.kind, self.hw = m, kind, hw
            super().__init__(name=f"{prefix}.Rows({m},{kind},{hw})")

    class Tile(types.Type):
        """[m, n] float32."""

        def __init__(self, m: int, n: int, hw: tuple):
            self.m, self.n, self.hw = m, n, hw
            super().__init__(name=f"{prefix}.Tile({m},{n},{hw})")

    class Operand(types.Type):
        """[m, k] left operand of a product with a stage of ``dtype``."""

        def __init__(self, m: int, k: int, dtype: str, hw: tuple):
            self.m, self.k, self.dtype, self.hw = m, k, dtype, hw
            super().__init__(name=f"{prefix}.Operand({m},{k},{dtype},{hw})")

    class Stage(types.Type):
        """[n, k] window in shared memory.

        It holds ``dtype``, converted from a tensor of ``source``, or decoded from blocks of ``format``; ``paged`` says
        that a page table leads to the rows.
        """

        def __init__(self, n: int, k: int, dtype: str, hw: tuple, source: str, paged: bool, format: str = ""):
            self.n, self.k, self.dtype, self.hw, self.source, self.paged = n, k, dtype, hw, source, paged
            self.format = format
            super().__init__(name=f"{prefix}.Stage({n},{k},{dtype},{hw},{format or source},{paged})")

    def fail(message: str) -> None:
        raise error(message)

    def show(t: Any) -> str:
        if isinstance(t, Tile):
            return f"a tile [{t.m}, {t.n}]"
        if isinstance(t, Rows):
            return f"{t.m} rows of {t.kind}"
        if isinstance(t, Operand):
            return f"an operand [{t.m}, {t.k}]"
        if isinstance(t, Stage):
            return f"a stage [{t.n}, {t.k}] of {t.dtype}"
        if isinstance(t, Tensor):
            return f"a tensor of {t.dtype} with {t.ndim} axes"
        if isinstance(t, Quantized):
            return f"a quantized source of {t.format}"
        return str(t)

    def want(cls: type, t: Any, what: str) -> Any:
        if not isinstance(t, cls):
            fail(f"{what} must be {cls.__doc__.splitlines()[0].rstrip('.')}, got {show(t)}")
        return t

    def literal(t: Any, what: str) -> int:
        if not isinstance(t, types.IntegerLiteral):
            fail(f"{what} must be known when the kernel is compiled (an attribute of cfg or a number), got {show(t)}")
        return t.literal_value

    def is_int(t: Any) -> bool:
        return isinstance(t, types.Integer | types.IntegerLiteral)

    def is_float(t: Any) -> bool:
        return isinstance(t, types.Float)

    def is_scalar(t: Any) -> bool:
        return is_int(t) or is_float(t)

    def index_of(op: str, x: Any, index: Any, columns: int, m: int) -> None:
        if not (columns and isinstance(x, Quantized)):
            want(Tensor, x, f"{op}: the tensor")
        axes = x.ndim - columns
        entries = list(index) if isinstance(index, types.BaseTuple) else []
        if len(entries) != axes:
            fail(f"{op}: {show(x)} needs {axes} index entries, got {len(entries)}")
        for t in entries:
            if isinstance(t, Rows):
                if t.kind != "i32" or t.m != m:
                    fail(f"{op}: an index must be {m} rows of i32 or an integer, got {show(t)}")
            elif not is_int(t):
                fail(f"{op}: an index must be rows of i32 or an integer, got {show(t)}")

    def valid_rows(op: str, valid: Any) -> Any:
        if not (isinstance(valid, Rows) and valid.kind == "i1"):
            fail(f"{op}: valid must be rows of i1 (a comparison), got {show(valid)}")
        return valid

    def storable(op: str, x: Any) -> None:
        if x.dtype not in STORABLE:
            fail(f"{op}: values can be stored as float32, float16 or bfloat16, not as {x.dtype}")

    rules: dict[Callable, Callable] = {}

    def rule(op: Callable) -> Callable:
        def add(f: Callable) -> Callable:
            rules[op] = f
            return f

        return add

    # ------------------------------------------------------------------------------------------------- launch words
    @rule(entry.config)
    def _(bound, x, y, z):
        return want(Config, bound, "config")

    @rule(entry.tensor)
    def _(dtype, *words):
        name = getattr(dtype, "literal_value", None)
        if name not in DTYPES:
            fail(dtype_refusal(name))
        return Tensor(name, len(words) // 2)

    @rule(entry.float32)
    def _(word):
        return types.float32

    # ------------------------------------------------------------------------------------------------ grid, tensors
    @rule(api.block_id)
    def _(cfg, axis):
        want(Config, cfg, "block_id: cfg")
        return types.int64

    @rule(api.rows)
    def _(x, start, stop):
        want(Tensor, x, "rows: the tensor")
        return x

    @rule(api.quantized)
    def _(x, format, like, alignment=None):
        name = getattr(format, "literal_value", None)
        if name == "":
            return want(Tensor, x, "quantized: the tensor")
        if name not in FORMATS:
            fail(f"quantized: the format must be one of {', '.join(FORMATS)}, known when the kernel is compiled")
        if not isinstance(x, Tensor) or x.dtype != "uint8" or x.ndim != 2:
            fail(f"quantized: blocks must be a tensor of uint8 with 2 axes, got {show(x)}")
        if want(Tensor, like, "quantized: like").dtype not in STORABLE:
            fail(f"quantized: elements can be {', '.join(STORABLE)}, not {like.dtype}")
        bytes_of_start = 1 if alignment is None else literal(alignment, "quantized: alignment")
        if bytes_of_start not in (1, 2, 4, 8, 16):
            fail(f"quantized: the alignment must be 1, 2, 4, 8 or 16, got {bytes_of_start}")
        return Quantized(name, like.dtype, bytes_of_start)

    @rule(api.scratch_rows)
    def _(x, n):
        count = literal(n, "scratch_rows: n")
        if not isinstance(x, Tensor) or x.ndim != 1 or count * DTYPES[x.dtype] % 16:
            needs = "a contiguous tensor with 1 axis, in rows of whole 16 bytes"
            fail(f"scratch_rows: needs {needs}, got {show(x)} and n={count}")
        return Tensor(x.dtype, 2)

    @rule(api.transposed)
    def _(x, swap):
        if not isinstance(x, Tensor) or x.ndim != 2:
            fail(f"transposed: the tensor must have 2 axes, got {show(x)}")
        if not isinstance(swap, types.BooleanLiteral):
            fail(f"transposed: swap must be known when the kernel is compiled, got {show(swap)}")
        return x

    def whole_runs(op: str, source: Any, columns: int) -> None:
        if isinstance(source, Quantized) and columns % RUN:
            fail(f"{op}: {show(source)} is read {RUN} columns at a time, got {columns}")

    @rule(operator.getitem)
    def _(x, index):
        if not isinstance(x, Tensor):
            return None
        entries = list(index) if isinstance(index, types.BaseTuple) else [index]
        if not all(is_int(t) for t in entries) or len(entries) > x.ndim:
            fail(f"{show(x)} takes up to {x.ndim} integer indices, got {', '.join(map(show, entries))}")
        if len(entries) < x.ndim:
            return Tensor(x.dtype, x.ndim - len(entries))
        return {"int32": types.int32, "int64": types.int64, "float32": types.float32}.get(x.dtype) or fail(
            f"a single element can be read from int32, int64 and float32 tensors, not from {show(x)}"
        )

    # --------------------------------------------------------------------------------------------------------- rows
    @rule(api.row_index)
    def _(cfg, m):
        return Rows(literal(m, "row_index: m"), "i32", want(Config, cfg, "row_index: cfg").hw)

    @rule(api.full_rows)
    def _(cfg, m, value):
        kind = "i32" if is_int(value) else "f32"
        return Rows(literal(m, "full_rows: m"), kind, want(Config, cfg, "full_rows: cfg").hw)

    def join(op: str, a: Any, b: Any) -> Any:
        """Type of rows made from rows or scalars a and b."""
        rows = [t for t in (a, b) if isinstance(t, Rows)]
        if not rows:
            return None
        if len(rows) == 2 and (a.m != b.m or a.kind != b.kind):
            fail(f"{op}: {show(a)} and {show(b)} do not match")
        for t in (a, b):
            if not isinstance(t, Rows) and not is_scalar(t):
                fail(f"{op}: cannot combine {show(rows[0])} with {show(t)}")
            if is_float(t) and rows[0].kind == "i32":
                fail(f"{op}: rows of i32 take integers only, got {show(t)}")
        return rows[0]

    @rule(api.where)
    def _(condition, a, b):
        valid_rows("where", condition)
        if is_scalar(a) and is_scalar(b):
            return Rows(condition.m, "i32" if is_int(a) and is_int(b) else "f32", condition.hw)
        return join("where", a, b)

    for op in (api.minimum, api.maximum):
        rule(op)(lambda a, b, name=op.__name__: join(name, a, b))

    def float_rows(name: str, x: Any) -> Any:
        if not (isinstance(x, Rows) and x.kind == "f32"):
            fail(f"{name}: needs rows of f32, got {show(x)}")
        return x

    for op in (api.reciprocal_or_zero, api.log2, api.sqrt):
        rule(op)(lambda x, name=op.__name__: float_rows(name, x))

    @rule(api.load_rows)
    def _(x, index, valid):
        index_of("load_rows", x, index, 0, valid_rows("load_rows", valid).m)
        return Rows(valid.m, "f32", valid.hw)

    @rule(api.load_integers)
    def _(x, index, valid):
        index_of("load_integers", x, index, 0, valid_rows("load_integers", valid).m)
        if x.dtype not in ("int32", "int64"):
            fail(f"load_integers: needs a tensor of int32 or int64, got {show(x)}")
        return Rows(valid.m, "i32", valid.hw)

    @rule(api.store_rows)
    def _(x, index, values, valid):
        index_of("store_rows", x, index, 0, valid_rows("store_rows", valid).m)
        integers = isinstance(values, Rows) and values.kind == "i32" and x.dtype == "int32"
        if not integers:
            float_rows("store_rows", values)
            storable("store_rows", x)
        if values.m != valid.m:
            fail(f"store_rows: {show(values)} and {show(valid)} do not match")
        return types.none

    for op in (api.total, api.largest):

        @rule(op)
        def _(x, name=op.__name__):
            float_rows(name, x)
            return types.float64

    @rule(api.repeat_rows)
    def _(x, count):
        rows = want(Rows, x, "repeat_rows: the argument")
        return Rows(rows.m * literal(count, "repeat_rows: count"), rows.kind, rows.hw)

    for op in (api.fold_sum, api.fold_max):

        @rule(op)
        def _(x, m, op=op):
            name, m = op.__name__, literal(m, f"{op.__name__}: m")
            if not (op is api.fold_sum and isinstance(x, Tile)):
                float_rows(name, x)
            if m < 1 or x.m % m:
                fail(f"{name}: {x.m} rows are no multiple of {m}")
            return Tile(m, x.n, x.hw) if isinstance(x, Tile) else Rows(m, "f32", x.hw)

    @rule(api.last_to_arrive)
    def _(cfg, counters, index, count):
        want(Config, cfg, "last_to_arrive: cfg")
        want(Tensor, counters, "last_to_arrive: the tensor")
        if counters.dtype != "int32" or counters.ndim != 1:
            fail(f"last_to_arrive: counters must be int32 with 1 axis, got {show(counters)} of {counters.dtype}")
        for name, t in (("index", index), ("count", count)):
            if not is_int(t):
                fail(f"last_to_arrive: {name} must be an integer, got {show(t)}")
        return types.boolean

    @rule(api.ordered_float)
    def _(order):
        if not is_int(order):
            fail(f"ordered_float: needs an integer, got {show(order)}")
        return types.float64

    # -------------------------------------------------------------------------------------------------------- tiles
    @rule(api.zeros)
    def _(cfg, m, n):
        return Tile(literal(m, "zeros: m"), literal(n, "zeros: n"), want(Config, cfg, "zeros: cfg").hw)

    @rule(api.load_tile)
    def _(cfg, x, index, col0, n, valid):
        index_of("load_tile", x, index, 1, valid_rows("load_tile", valid).m)
        whole_runs("load_tile", x, literal(n, "load_tile: n"))
        return Tile(valid.m, literal(n, "load_tile: n"), want(Config, cfg, "load_tile: cfg").hw)

    @rule(api.store_tile)
    def _(x, index, col0, tile, valid):
        index_of("store_tile", x, index, 1, valid_rows("store_tile", valid).m)
        if x.dtype not in (*STORABLE, *QUANTIZED):
            fail(f"store_tile: a tile can be stored as floats or int8, not as {x.dtype}")
        if want(Tile, tile, "store_tile: tile").m != valid.m:
            fail(f"store_tile: {show(tile)} and {show(valid)} do not match")
        return types.none

    def same_tensor(op: str, x: Any, y: Any) -> None:
        if want(Tensor, x, f"{op}: the tensor") != y:
            fail(f"{op}: {show(x)} and {show(y)} do not match")

    @rule(api.load_pair)
    def _(cfg, x, y, index, col0, n, valid):
        same_tensor("load_pair", x, y)
        index_of("load_pair", x, index, 1, valid_rows("load_pair", valid).m)
        tile = Tile(valid.m, literal(n, "load_pair: n"), want(Config, cfg, "load_pair: cfg").hw)
        return types.Tuple((tile, tile))

    @rule(api.store_pair)
    def _(x, y, index, col0, a, b, valid):
        same_tensor("store_pair", x, y)
        index_of("store_pair", x, index, 1, valid_rows("store_pair", valid).m)
        storable("store_pair", x)
        for tile in (a, b):
            if want(Tile, tile, "store_pair: the tile").m != valid.m:
                fail(f"store_pair: {show(tile)} and {show(valid)} do not match")
        return types.none

    for op in (api.rowmax, api.rowsum):
        rule(op)(lambda t, name=op.__name__: Rows(want(Tile, t, f"{name}: the argument").m, "f32", t.hw))

    @rule(api.exp2)
    def _(x):
        return x if isinstance(x, Tile) else float_rows("exp2", x)

    for op in (api.copy, api.tanh, api.absolute):
        rule(op)(lambda t, name=op.__name__: want(Tile, t, f"{name}: the argument"))

    for op in (api.silu, api.gelu, api.gelu_tanh, api.relu):
        rule(op)(lambda x, name=op.__name__: x if isinstance(x, Tile) else float_rows(name, x))

    @rule(api.rotations)
    def _(cfg, position, frequencies, col0, n):
        if not (isinstance(position, Rows) and position.kind == "i32"):
            fail(f"rotations: position must be rows of i32, got {show(position)}")
        if not (isinstance(frequencies, Tensor) and (frequencies.dtype, frequencies.ndim) == ("int64", 1)):
            fail(f"rotations: frequencies must be a tensor of int64 with 1 axis, got {show(frequencies)}")
        tile = Tile(position.m, literal(n, "rotations: n"), position.hw)
        return types.Tuple((tile, tile))

    @rule(api.rotate)
    def _(a, b, cos, sin):
        for other in (b, cos, sin):
            same_tile("rotate", a, other)
        return types.Tuple((a, a))

    @rule(api.at_least)
    def _(t, bound):
        want(Tile, t, "at_least: the argument")
        if isinstance(bound, Rows):
            if float_rows("at_least", bound).m != t.m:
                fail(f"at_least: {show(t)} and {show(bound)} do not match")
        elif not is_scalar(bound):
            fail(f"at_least: the bound must be rows or a number, got {show(bound)}")
        return t

    @rule(api.distance)
    def _(cfg, position, col0, n):
        if not (isinstance(position, Rows) and position.kind == "i32"):
            fail(f"distance: position must be rows of i32, got {show(position)}")
        return Tile(position.m, literal(n, "distance: n"), position.hw)

    @rule(api.mask_outside)
    def _(t, col0, low, high):
        want(Tile, t, "mask_outside: the argument")
        for bound in (low, high):
            if not (isinstance(bound, Rows) and bound.kind == "i32" and bound.m == t.m):
                fail(f"mask_outside: bounds of {show(t)} must be {t.m} rows of i32, got {show(bound)}")
        return t

    def same_tile(op: str, a: Any, b: Any) -> Any:
        if want(Tile, a, f"{op}: the argument") != b:
            fail(f"{op}: {show(a)} and {show(b)} do not match")
        return a

    @rule(api.rounded)
    def _(t, like):
        storable("rounded", want(Tensor, like, "rounded: like"))
        return want(Tile, t, "rounded: the argument")

    @rule(api.pad_columns)
    def _(t, col0, stop, value):
        for name, scalar, right in (("col0", col0, is_int), ("stop", stop, is_int), ("value", value, is_scalar)):
            if not right(scalar):
                fail(f"pad_columns: {name} must be a number, got {show(scalar)}")
        return want(Tile, t, "pad_columns: the argument")

    @rule(api.rowdot)
    def _(a, b):
        return Rows(same_tile("rowdot", a, b).m, "f32", a.hw)

    @rule(api.load_rowdot)
    def _(x, index, col0, tile, valid):
        index_of("load_rowdot", x, index, 1, valid_rows("load_rowdot", valid).m)
        if valid.m % want(Tile, tile, "load_rowdot: tile").m:
            fail(f"load_rowdot: {show(tile)} does not divide {show(valid)}")
        whole_runs("load_rowdot", x, tile.n)
        return Rows(valid.m, "f32", valid.hw)

    @rule(api.matvec)
    def _(cfg, x, index, col0, n, vector, valid):
        index_of("matvec", x, index, 1, valid_rows("matvec", valid).m)
        whole_runs("matvec", x, literal(n, "matvec: n"))
        if want(Tensor, vector, "matvec: vector").ndim != 1:
            fail(f"matvec: the vector must have one axis, got {show(vector)}")
        if valid.m % api.rows_at_once(want(Config, cfg, "matvec: cfg").cfg):
            fail(f"matvec: {show(valid)} for {cfg.cfg.waves} waves")
        return Rows(valid.m, "f32", valid.hw)

    @rule(api.mask_where)
    def _(t, visible):
        return same_tile("mask_where", t, visible)

    @rule(api.multiply_add)
    def _(t, factor, summand):
        for other in (factor, summand):
            same_tile("multiply_add", t, other)
        return t

    @rule(api.softmax_step)
    def _(s, scale, m, l, acc):
        want(Tile, s, "softmax_step: s")
        want(Tile, acc, "softmax_step: acc")
        for r in (m, l):
            if float_rows("softmax_step", r).m != s.m:
                fail(f"softmax_step: {show(s)} and {show(r)} do not match")
        if acc.m != s.m:
            fail(f"softmax_step: {show(s)} and {show(acc)} do not match")
        return types.Tuple((s, m, l, acc))

    @rule(api.softmax_end)
    def _(scale, m, l, acc):
        want(Tile, acc, "softmax_end: acc")
        for r in (m, l):
            if float_rows("softmax_end", r).m != acc.m:
                fail(f"softmax_end: {show(acc)} and {show(r)} do not match")
        return types.Tuple((Rows(acc.m, "f32", acc.hw), Rows(acc.m, "f32", acc.hw), acc))

    @rule(api.square_step)
    def _(t, m, total):
        want(Tile, t, "square_step: the argument")
        for r in (m, total):
            if float_rows("square_step", r).m != t.m:
                fail(f"square_step: {show(t)} and {show(r)} do not match")
        return types.Tuple((Rows(t.m, "f32", t.hw), Rows(t.m, "f32", t.hw)))

    @rule(api.multiply_rows)
    def _(t, scale, factor):
        want(Tile, t, "multiply_rows: the argument")
        for r in (scale, factor):
            if float_rows("multiply_rows", r).m != t.m:
                fail(f"multiply_rows: {show(t)} and {show(r)} do not match")
        return t

    # ----------------------------------------------------------------------------------------------------- products
    @rule(api.load_operand)
    def _(cfg, x, index, col0, k, valid):
        want(Tensor, x, "load_operand: the tensor")
        index_of("load_operand", x, index, 1, valid_rows("load_operand", valid).m)
        return Operand(valid.m, literal(k, "load_operand: k"), x.dtype, want(Config, cfg, "load_operand: cfg").hw)

    @rule(api.operand)
    def _(t, like):
        want(Tile, t, "operand: the tile")
        return Operand(t.m, t.n, want(Stage, like, "operand: like").dtype, t.hw)

    @rule(api.stage)
    def _(cfg, source, n, k, like=None, paged=None):
        if want(Config, cfg, "stage: cfg").cfg.num_stages != 1 and prefix != "cuda":
            fail(
                f"stage: num_stages={cfg.cfg.num_stages}; on {cfg.cfg.arch} one window may be on its way, num_stages=1"
            )
        quantized = isinstance(source, Quantized)
        if not quantized and want(Tensor, source, "stage: the source").ndim != 2:
            fail(f"stage: the source must have 2 axes, got {show(source)}")
        dtype = source.dtype if like is None else want(Tensor, like, "stage: like").dtype
        if dtype != source.dtype and (quantized or source.dtype not in QUANTIZED):
            fail(f"stage: {show(source)} cannot be held as {dtype}")
        if paged is not None and not isinstance(getattr(paged, "literal_value", None), bool):
            fail(f"stage: paged must be known when the kernel is compiled (an attribute of cfg), got {show(paged)}")
        through = paged is not None and paged.literal_value
        whole_runs("stage", source, literal(k, "stage: k"))
        kind = source.format if quantized else ""
        st = Stage(literal(n, "stage: n"), literal(k, "stage: k"), dtype, cfg.hw, source.dtype, through, kind)
        limit, need = architecture(cfg.cfg.arch).shared_bytes, st.n * st.k * DTYPES[st.dtype]
        if need > limit:
            room = f"{cfg.cfg.arch} has {limit} bytes of shared memory"
            fail(f"stage: {show(st)} takes {need} bytes; {room}; use smaller blocks")
        return st

    for op in (api.acquire, api.release):
        rule(op)(lambda st, name=op.__name__: want(Stage, st, f"{name}: the argument"))

    @rule(api.finish)
    def _(st):
        want(Stage, st, "finish: the argument")
        return types.none

    @rule(api.paged)
    def _(st, cache, head, table, stop):
        want(Stage, st, "paged: the stage")
        if not (isinstance(cache, Tensor) and (cache.dtype, cache.ndim) == (st.source, 4)):
            fail(f"paged: the cache must be a tensor of {st.source} with 4 axes, got {show(cache)}")
        if not (isinstance(table, Tensor) and (table.dtype, table.ndim) == ("int32", 1)):
            fail(f"paged: the table must be a tensor of int32 with 1 axis, got {show(table)}")
        return st

    @rule(api.fetch)
    def _(st, row0, col0=None):
        for t in (row0,) if col0 is None else (row0, col0):
            if not is_int(t):
                fail(f"fetch: a window starts at an integer, got {show(t)}")
        return want(Stage, st, "fetch: the stage")

    def product(name: str, left: tuple, right: tuple, hw: tuple, acc: Any) -> Any:
        (m, k1), (k2, n) = left, right
        if k1 != k2:
            fail(f"{name}: the inner dimensions {k1} and {k2} do not match")
        out = Tile(m, n, hw)
        if acc is not None and acc != out:
            fail(f"{name}: {show(acc)} cannot take a product of shape [{m}, {n}]")
        return out

    def operands(name: str, a: Any, b: Any, cls: type) -> None:
        want(cls, a, f"{name}: the left side")
        want(Stage, b, f"{name}: the right side")
        if a.dtype != b.dtype:
            fail(f"{name}: the left side has dtype {a.dtype}, the right side {b.dtype}")

    def left_shape(name: str, a: Any, b: Any) -> tuple[int, int]:
        """Shape of a left side that is an operand or a stage."""
        operands(name, a, b, Stage if isinstance(a, Stage) else Operand)
        return (a.n if isinstance(a, Stage) else a.m), a.k

    def dot_nt(a, b, acc=None):
        return product("dot_nt", left_shape("dot_nt", a, b), (b.k, b.n), a.hw, acc)

    def dot_nn(a, b, acc=None):
        return product("dot_nn", left_shape("dot_nn", a, b), (b.n, b.k), a.hw, acc)

    rule(api.dot_nt)(dot_nt)
    rule(api.dot_nn)(dot_nn)

    @rule(api.dot)
    def _(a, b, transposed, acc=None):
        if not isinstance(transposed, types.BooleanLiteral):
            fail(f"dot: transposed must be known when the kernel is compiled, got {show(transposed)}")
        return (dot_nt if transposed.literal_value else dot_nn)(a, b, acc)

    @rule(api.dot_tn)
    def _(a, b, acc=None):
        operands("dot_tn", a, b, Stage)
        return product("dot_tn", (a.k, a.n), (b.n, b.k), a.hw, acc)

    @rule(api.dot_nn_where)
    def _(a, b, acc):
        operands("dot_nn_where", a, b, Operand)
        return product("dot_nn_where", (a.m, a.k), (b.n, b.k), a.hw, acc)

    # ---------------------------------------------------------------------------------------------------- operators
    def arithmetic(op: Callable) -> Callable:
        name = op.__name__

        def typed(a, b):
            if isinstance(a, Tile):
                if op not in (operator.add, operator.sub, operator.mul):
                    fail(f"{name}: {api.TILE_OPERATORS}")
                if isinstance(b, Tile):
                    return same_tile(name, a, b)
                if isinstance(b, Rows):
                    if float_rows(name, b).m != a.m:
                        fail(f"{name}: {show(a)} and {show(b)} do not match")
                elif not is_scalar(b):
                    fail(f"{name}: cannot combine {show(a)} with {show(b)}")
                return a
            if isinstance(b, Tile):
                why = api.TILE_OPERATORS if op is operator.truediv else "write the tile on the left"
                fail(f"{name}: {why}")
            rows = join(name, a, b)
            if rows is not None and op in (operator.floordiv, operator.mod) and rows.kind != "i32":
                fail(f"{name}: needs rows of i32, got {show(rows)}")
            if rows is not None and op is operator.truediv and rows.kind != "f32":
                fail(f"{name}: needs rows of f32, got {show(rows)}")
            return rows

        return typed

    def comparison(op: Callable) -> Callable:
        def typed(a, b):
            if isinstance(a, Tile) or isinstance(b, Tile):
                fail(f"{op.__name__}: {api.TILE_COMPARISONS}")
            rows = join(op.__name__, a, b)
            return rows and Rows(rows.m, "i1", rows.hw)

        return typed

    def logical(op: Callable) -> Callable:
        def typed(a, b):
            return a if isinstance(a, Rows) and a.kind == "i1" and a == b else None

        return typed

    for op in ARITHMETIC:
        rules[op] = arithmetic(op)
    for op in COMPARISONS:
        rules[op] = comparison(op)
    for op in LOGICAL:
        rules[op] = logical(op)

    return SimpleNamespace(
        Config=Config,
        Tensor=Tensor,
        Quantized=Quantized,
        Rows=Rows,
        Tile=Tile,
        Operand=Operand,
        Stage=Stage,
        rules=rules,
    )
