"""What all machine targets share: tensors in global memory, launch words, and small helpers to build LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from rocmkern import tile as T
from rocmkern.tile._lowering.shared.ir_types import F16, F32, F64, I8, I16, I32, I64, const
from rocmkern.tile.codes import OF_8_BITS, emit_encode
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.language.kernel import rows_at_once
from rocmkern.tile.language.kinds import DTYPES


def if_else(
    b: ir.IRBuilder, condition: ir.Value, then: Callable, otherwise: Callable, likely: bool | None = None
) -> list[ir.Value]:
    """The values of ``then()`` or of ``otherwise()``, which emit code: lists of equal length."""
    with b.if_else(condition, likely=likely) as (yes, no):
        with yes:
            left, left_block = then(), b.block
        with no:
            right, right_block = otherwise(), b.block
    return joined(b, left, left_block, right, right_block)


def joined(b: ir.IRBuilder, left: list, left_block: ir.Block, right: list, right_block: ir.Block) -> list[ir.Value]:
    """Where two blocks meet: the values of the one that was run."""
    results = []
    for x, y in zip(left, right, strict=True):
        phi = b.phi(x.type)
        phi.add_incoming(x, left_block)
        phi.add_incoming(y, right_block)
        results.append(phi)
    return results


def call(builder: ir.IRBuilder, name: str, result: ir.Type, args: list) -> ir.Value:
    """Call an LLVM intrinsic or an external function by name."""
    fnty = ir.FunctionType(result, [a.type for a in args])
    fn = builder.module.globals.get(name) or ir.Function(builder.module, fnty, name)
    return builder.call(fn, args)


def fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """``x * y + z`` of float32, scalars or vectors, rounded once."""
    suffix = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32"
    return call(b, f"llvm.fma.{suffix}", x.type, [x, y, z])


def as_int32(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """An i32 or i64 as i32; what it cannot hold becomes the nearest that it can."""
    if value.type == I32:
        return value
    for limit, beyond in ((-(1 << 31), "<"), ((1 << 31) - 1, ">")):
        outside = builder.icmp_signed(beyond, value, const(I64, limit))
        value = builder.select(outside, const(I64, limit), value)
    return builder.trunc(value, I32)


def from_byte(builder: ir.IRBuilder, value: ir.Value, dtype: str) -> ir.Value:
    """An i8 (or a vector) that holds an int8, float8_e4m3fn or float8_e5m2, as float32; exact."""

    def wide(ty: ir.Type) -> ir.Type:
        return ir.VectorType(ty, value.type.count) if isinstance(value.type, ir.VectorType) else ty

    if dtype == "int8":
        return builder.sitofp(value, wide(F32))
    short = builder.zext(value, wide(I16))
    if dtype == "float8_e5m2":  # the upper half of a float16
        half = builder.bitcast(builder.shl(short, const(wide(I16), 8)), wide(F16))
        return builder.fpext(half, wide(F32))
    # The exponent of E4M3 has one bit less and a bias that is 8 smaller; all ones is NaN.
    size = builder.and_(short, const(wide(I16), 0x7F))
    sign = builder.shl(builder.and_(short, const(wide(I16), 0x80)), const(wide(I16), 8))
    half = builder.bitcast(builder.or_(sign, builder.shl(size, const(wide(I16), 7))), wide(F16))
    number = builder.fmul(builder.fpext(half, wide(F32)), const(wide(F32), 256.0))
    is_nan = builder.icmp_unsigned("==", size, const(wide(I16), 0x7F))
    return builder.select(is_nan, const(wide(F32), float("nan")), number)


def to_byte(builder: ir.IRBuilder, value: ir.Value, dtype: str) -> ir.Value:
    """float32 (or a vector) as an i8 that holds an int8, float8_e4m3fn or float8_e5m2: see `store_tile`."""

    def wide(ty: ir.Type) -> ir.Type:
        return ir.VectorType(ty, value.type.count) if isinstance(value.type, ir.VectorType) else ty

    if dtype == "int8":
        floats = value.type
        number = builder.select(builder.fcmp_ordered("ord", value, value), value, const(floats, 0.0))
        for limit, beyond in ((-128.0, "<"), (127.0, ">")):
            outside = builder.fcmp_ordered(beyond, number, const(floats, limit))
            number = builder.select(outside, const(floats, limit), number)
        # The last bit of the sum is worth 1, and the bits above it are those of two's complement.
        code = builder.bitcast(builder.fadd(number, const(floats, 1.5 * 2.0**23)), wide(I32))
    else:
        code = emit_encode(builder, OF_8_BITS[dtype], value)
    return builder.trunc(code, wide(I8))


def at(builder: ir.IRBuilder, base: ir.Value, offset: ir.Value, ty: ir.Type) -> ir.Value:
    """Pointer to a ``ty`` at a byte offset from ``base`` (an i8 pointer), in the same address space."""
    space = getattr(base.type, "addrspace", 0)
    return builder.bitcast(builder.gep(base, [offset]), ir.PointerType(ty, space))


def register_tensor_model(numba: SimpleNamespace, tile: SimpleNamespace, *more: tuple[str, Any]) -> None:
    """A tensor is stored as its address, its shape and its strides in bytes; a quantized source too.

    The shape of the latter counts elements, and its second stride has no meaning. ``more`` are names and numba types of
    what a target stores beside them.
    """
    types = numba.types

    @numba.register_model(tile.Quantized)
    @numba.register_model(tile.Tensor)
    class TensorModel(numba.models.StructModel):
        def __init__(self, manager: Any, ty: Any):
            axes = types.UniTuple(types.int64, ty.ndim)
            super().__init__(manager, ty, [("data", types.voidptr), ("shape", axes), ("strides", axes), *more])

        def traverse(self, builder: ir.IRBuilder) -> list:
            """Members with references to count: none. Numba would take each tensor apart wherever one is assigned."""
            return []


class TensorLowering:
    """Lowering of tensors and launch words; the targets' lowerings derive from it.

    Parameters
    ----------
    numba, tile : SimpleNamespace
        As for `binding.bind`; ``numba`` also has ``cgutils``.
    """

    def __init__(self, numba: SimpleNamespace, tile: SimpleNamespace):
        self.numba, self.tile = numba, tile

    def unpack_tensor(self, context: Any, builder: ir.IRBuilder, ty: Any, value: ir.Value) -> tuple:
        """Data pointer (i8*), list of extents, list of strides in bytes (i64)."""
        proxy = self.numba.cgutils.create_struct_proxy(ty)(context, builder, value)
        shape, strides = (self.numba.cgutils.unpack_tuple(builder, x) for x in (proxy.shape, proxy.strides))
        return proxy.data, shape, strides

    def pack_tensor(
        self, context: Any, builder: ir.IRBuilder, ty: Any, data: ir.Value, shape: list, strides: list
    ) -> ir.Value:
        proxy = self.numba.cgutils.create_struct_proxy(ty)(context, builder)
        proxy.data = data
        proxy.shape = self.numba.cgutils.pack_array(builder, shape, I64)
        proxy.strides = self.numba.cgutils.pack_array(builder, strides, I64)
        return proxy._getvalue()

    def counter(
        self, context: Any, builder: ir.IRBuilder, sig: Any, counters: Any, index: Any, count: Any
    ) -> tuple[ir.Value, ir.Value]:
        """Address of a counter of `last_to_arrive` (an integer), and its last number (i32)."""
        _, ty, index_ty, count_ty = sig.args
        data, _, (stride,) = self.unpack_tensor(context, builder, ty, counters)
        offset = builder.mul(self.scalar(context, builder, index_ty, index, "i64"), stride)
        last = builder.sub(self.scalar(context, builder, count_ty, count, "i64"), const(I64, 1))
        return builder.add(builder.ptrtoint(data, I64), offset), builder.trunc(last, I32)

    def index_entries(self, context: Any, builder: ir.IRBuilder, ty: Any, value: ir.Value) -> list:
        """(type, value) of each entry of an index: a tuple of rows and integers, or one integer."""
        if isinstance(ty, self.numba.types.BaseTuple):
            return list(zip(ty, self.numba.cgutils.unpack_tuple(builder, value, len(ty)), strict=True))
        return [(ty, value)]

    def scalar(self, context: Any, builder: ir.IRBuilder, ty: Any, value: ir.Value, to: str) -> ir.Value:
        """A numba scalar as i32, i64 or f32."""
        target = {"i32": self.numba.types.int32, "i64": self.numba.types.int64, "f32": self.numba.types.float32}[to]
        return context.cast(builder, value, ty, target)

    def number_of_rows(self, context: Any, builder: ir.IRBuilder, ty: Any, value: ir.Value, kind: str) -> ir.Value:
        """A numba scalar as an element of new rows; what int32 does not hold becomes the nearest that it holds."""
        if kind == "i32":
            return as_int32(builder, self.scalar(context, builder, ty, value, "i64"))
        return self.scalar(context, builder, ty, value, kind)

    def load_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, m: Any, x: Any, col0: Any, n: Any
    ) -> ir.Value:
        """`load_tile` of rows that all exist; that they are alike, the compiler sees."""
        (cfg_ty, m_ty, x_ty, col0_ty, n_ty), make, types = sig.args, self.numba.signature, self.numba.types
        row_ty = self.tile.rules[T.row_index](cfg_ty, m_ty)
        every_ty = self.tile.Rows(row_ty.m, "i1", row_ty.hw)
        row = self.row_index(context, b, make(row_ty, cfg_ty, types.int64), cfg, None)  # type: ignore[attr-defined]
        compare = self.operator_ge  # type: ignore[attr-defined]
        every = compare(context, b, make(every_ty, row_ty, types.int64), row, const(I64, 0))
        no_index = types.Tuple(())
        load = make(sig.return_type, cfg_ty, x_ty, no_index, col0_ty, n_ty, every_ty)
        empty = context.make_tuple(b, no_index, [])
        return self.load_tile(context, b, load, cfg, x, empty, col0, n, every)  # type: ignore[attr-defined]

    def load_pair(
        self, context: Any, builder: ir.IRBuilder, sig: Any, cfg: Any, x: Any, y: Any, index: Any, col0: Any, n: Any,
        valid: Any,
    ) -> ir.Value:  # fmt: skip
        """Two tiles, one after the other."""
        cfg_ty, x_ty, y_ty, *others = sig.args
        tiles = [
            self.load_tile(
                context, builder, self.numba.signature(ty, cfg_ty, t, *others), cfg, tensor, index, col0, n, valid
            )
            for ty, t, tensor in zip(sig.return_type, (x_ty, y_ty), (x, y), strict=True)
        ]
        return context.make_tuple(builder, sig.return_type, tiles)

    def store_pair(
        self, context: Any, builder: ir.IRBuilder, sig: Any, x: Any, y: Any, index: Any, col0: Any, a: Any, b: Any,
        valid: Any,
    ) -> ir.Value:  # fmt: skip
        """Two tiles, one after the other."""
        x_ty, y_ty, index_ty, col0_ty, a_ty, b_ty, valid_ty = sig.args
        for t, tensor, tile_ty, tile in ((x_ty, x, a_ty, a), (y_ty, y, b_ty, b)):
            one = self.numba.signature(self.numba.types.none, t, index_ty, col0_ty, tile_ty, valid_ty)
            self.store_tile(context, builder, one, tensor, index, col0, tile, valid)
        return context.get_dummy_value()

    # ------------------------------------------------------------------------------------------------- launch words
    def tensor(self, context: Any, builder: ir.IRBuilder, sig: Any, dtype: Any, *words: ir.Value) -> ir.Value:
        n = sig.return_type.ndim
        data = builder.inttoptr(words[0], ir.PointerType(I8))
        return self.pack_tensor(context, builder, sig.return_type, data, list(words[1 : n + 1]), list(words[n + 1 :]))

    def float32(self, context: Any, builder: ir.IRBuilder, sig: Any, word: ir.Value) -> ir.Value:
        return builder.bitcast(builder.trunc(word, I32), F32)

    # ------------------------------------------------------------------------------------------------------ scalars
    def ordered_float(self, context: Any, builder: ir.IRBuilder, sig: Any, order: ir.Value) -> ir.Value:
        order = self.scalar(context, builder, sig.args[0], order, "i32")
        bits = builder.xor(order, builder.lshr(builder.ashr(order, const(I32, 31)), const(I32, 1)))
        return builder.fpext(builder.bitcast(bits, F32), F64)

    # ------------------------------------------------------------------------------------------------------ tensors
    def tensor_shape(self, context: Any, builder: ir.IRBuilder, ty: Any, value: ir.Value) -> ir.Value:
        return self.numba.cgutils.create_struct_proxy(ty)(context, builder, value).shape

    def operator_getitem(self, context: Any, builder: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value) -> ir.Value:
        ty, index_ty = sig.args
        data, shape, strides = self.unpack_tensor(context, builder, ty, x)
        entries = self.index_entries(context, builder, index_ty, index)
        offset = const(I64, 0)
        for (entry_ty, entry), stride in zip(entries, strides, strict=False):
            i = self.scalar(context, builder, entry_ty, entry, "i64")
            offset = builder.add(offset, builder.mul(i, stride))
        n = len(entries)
        if n == ty.ndim:
            element = {"int32": I32, "int64": I64, "float32": F32}[ty.dtype]
            return builder.load(at(builder, data, offset, element))
        data = builder.gep(data, [offset])
        return self.pack_tensor(context, builder, sig.return_type, data, shape[n:], strides[n:])

    def quantized(self, context: Any, builder: ir.IRBuilder, sig: Any, x: ir.Value, *_: Any) -> ir.Value:
        ty = sig.return_type
        if isinstance(ty, self.tile.Tensor):
            return x
        data, (rows, nbytes), (stride, _) = self.unpack_tensor(context, builder, sig.args[0], x)
        kind = FORMATS[ty.format]
        columns = builder.mul(builder.udiv(nbytes, const(I64, kind.nbytes)), const(I64, kind.elements))
        return self.pack_tensor(context, builder, ty, data, [rows, columns], [stride, const(I64, 0)])

    def rows(
        self, context: Any, builder: ir.IRBuilder, sig: Any, x: ir.Value, start: ir.Value, stop: ir.Value
    ) -> ir.Value:
        ty = sig.args[0]
        data, shape, strides = self.unpack_tensor(context, builder, ty, x)
        first, last = (
            self.scalar(context, builder, t, v, "i64") for t, v in zip(sig.args[1:], (start, stop), strict=True)
        )
        data = builder.gep(data, [builder.mul(first, strides[0])])
        last = builder.select(builder.icmp_signed("<", last, shape[0]), last, shape[0])
        count = builder.sub(last, first)
        count = builder.select(builder.icmp_signed(">", count, const(I64, 0)), count, const(I64, 0))
        return self.pack_tensor(context, builder, sig.return_type, data, [count, *shape[1:]], strides)

    def scratch_rows(self, context: Any, builder: ir.IRBuilder, sig: Any, x: ir.Value, n: Any) -> ir.Value:
        count, size = sig.args[1].literal_value, DTYPES[sig.return_type.dtype]
        data, (extent,), _ = self.unpack_tensor(context, builder, sig.args[0], x)
        # What is known of the address is known of all rows.
        data = builder.inttoptr(builder.and_(builder.ptrtoint(data, I64), const(I64, -16)), data.type)
        rows = builder.udiv(extent, const(I64, count))
        return self.pack_tensor(
            context,
            builder,
            sig.return_type,
            data,
            [rows, const(I64, count)],
            [const(I64, count * size), const(I64, size)],
        )

    def reread(self, context: Any, builder: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        """Scalar registers are a matter of one target."""
        return x

    def transposed(self, context: Any, builder: ir.IRBuilder, sig: Any, x: ir.Value, swap: Any) -> ir.Value:
        if not sig.args[1].literal_value:
            return x
        data, shape, strides = self.unpack_tensor(context, builder, sig.args[0], x)
        return self.pack_tensor(context, builder, sig.return_type, data, shape[::-1], strides[::-1])

    # ----------------------------------------------------------------------------------------------------- products
    def matvec(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, vector: Any,
        valid: Any,
    ) -> Any:  # fmt: skip
        """`load_rowdot` with as few rows that hold the vector as there can be."""
        cfg_ty, x_ty, index_ty, col0_ty, n_ty, vector_ty, valid_ty = sig.args
        make, m_ty = self.numba.signature, self.numba.types.literal(rows_at_once(cfg_ty.cfg))
        given = cfg_ty, m_ty, vector_ty, col0_ty, n_ty
        # The rules refuse what does not fit the layout.
        tile_ty = self.tile.rules[T.load_columns](*given)
        numbers = self.load_columns(context, b, make(tile_ty, *given), cfg, None, vector, col0, n)
        dot = make(sig.return_type, x_ty, index_ty, col0_ty, tile_ty, valid_ty)
        sums = self.load_rowdot(context, b, dot, x, index, col0, numbers, valid)  # type: ignore[attr-defined]
        self.forget(context, b, tile_ty, numbers)
        return sums

    def forget(self, context: Any, b: ir.IRBuilder, ty: Any, value: Any) -> None:
        """The end of a tile that an operation made for itself."""

    def dot(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, transposed: Any, *acc: Any) -> Any:
        """`dot_nt` or `dot_nn` of the target."""
        method = self.dot_nt if sig.args[2].literal_value else self.dot_nn  # type: ignore[attr-defined]
        kept = self.numba.signature(sig.return_type, *sig.args[:2], *sig.args[3:])
        return method(context, b, kept, left, right, *acc)
