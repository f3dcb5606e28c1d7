"""How values are stored: buffers of tiles and loops over them, rows as vectors, the members of a stage."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.imputils import impl_ret_borrowed

from rocmkern.architectures import architecture
from rocmkern.tile._lowering.cpu.backend import NUMBA, TILE
from rocmkern.tile._lowering.cpu.emit import (
    concat,
    iota,
    load_floats,
    loop,
    reduced,
    slice_of,
    splat,
    store_floats,
    vec,
)
from rocmkern.tile._lowering.shared.ir_types import F32, I8, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import TensorLowering, register_tensor_model

PAGED_MEMBERS = ["entries", "entry_stride", "page_rows", "page_stride", "pages"]
#: Column storage (lanes over rows) starts at this many rows.
LANES_FROM = 16


@register_default(TILE.Config)
class _ConfigModel(models.PrimitiveModel):
    """The block's grid index."""

    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, ir.ArrayType(I64, 3))


@register_default(TILE.Rows)
class _RowsModel(models.PrimitiveModel):
    """One vector; booleans are bytes 0 or 1, because vectors of bits are awkward in memory."""

    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, ir.VectorType({"f32": F32, "i32": I32, "i1": I8}[ty.kind], ty.m))


class _CountedModel(models.StructModel):
    """Members of which the first is a counted reference, and the only one."""

    def traverse(self, builder: ir.IRBuilder) -> list:
        return super().traverse(builder)[:1]


class _BufferModel(_CountedModel):
    """A reference-counted float32 buffer."""

    def __init__(self, manager: Any, ty: Any):
        members = [("meminfo", types.MemInfoPointer(types.voidptr)), ("data", types.voidptr)]
        super().__init__(manager, ty, members)


register_default(TILE.Tile)(_BufferModel)
register_default(TILE.Operand)(_BufferModel)


@register_default(TILE.Stage)
class _StageModel(_CountedModel):
    """The source (address, extents, strides in bytes), where the fetched window starts, and the window in use.

    The window is ``count`` rows of ``cols`` float32, ``ld`` elements apart: in the source itself or in the buffer. Of a
    quantized source it is the row of blocks where it starts, and ``ld`` the first column, until a product decodes it.
    A paged one also has the table, its length and stride, and rows, stride and number of the pages.
    """

    def __init__(self, manager: Any, ty: Any):
        members: list[tuple[str, Any]] = [("meminfo", types.MemInfoPointer(types.voidptr))]
        members += [("source", types.voidptr), ("window", types.voidptr)]
        numbers = ["rows", "columns", "row_stride", "col_stride", "row0", "col0", "count", "cols", "ld"]
        if ty.paged:
            members.append(("table", types.voidptr))
            numbers += PAGED_MEMBERS
        members += [(name, types.int64) for name in numbers]
        super().__init__(manager, ty, members)


register_tensor_model(NUMBA, TILE)


class BufferLowering(TensorLowering):
    """Buffers of tiles, and loops over their vectors."""

    @staticmethod
    def width(ty: Any) -> int:
        """float32 lanes of the host's vectors."""
        return architecture(ty.hw[0]).vector_lanes

    def by_column(self, ty: Any) -> bool:
        """Whether lanes run over rows (column storage); it needs whole vectors in powers of two."""
        return ty.m >= LANES_FROM and ty.m & (ty.m - 1) == 0

    def new(self, context: Any, b: ir.IRBuilder, ty: Any) -> ir.Value:
        """A new buffer for a tile or an operand."""
        columns = ty.n if isinstance(ty, TILE.Tile) else ty.k
        value = cgutils.create_struct_proxy(ty)(context, b)
        size = context.get_constant(types.uintp, ty.m * columns * 4)
        value.meminfo = context.nrt.meminfo_alloc_aligned(b, size, context.get_constant(types.uint32, 64))
        value.data = context.nrt.meminfo_data(b, value.meminfo)
        return value._getvalue()

    @staticmethod
    def data(context: Any, b: ir.IRBuilder, ty: Any, value: ir.Value) -> ir.Value:
        return cgutils.create_struct_proxy(ty)(context, b, value).data

    def map(self, context: Any, b: ir.IRBuilder, ty: Any, value: ir.Value, body: Any, rows: tuple = ()) -> ir.Value:
        """Replace each vector of a tile by ``body(index, vector, rows, column)`` in place and return the tile.

        ``rows`` arrive as vectors that fit; ``index`` is where the vector lies in the buffer, ``column()`` its columns.
        """
        data = self.data(context, b, ty, value)
        for index, vector, parts, column in self.vectors(b, ty, data, rows):
            store_floats(b, body(index, vector, parts, column), data, index)
        return impl_ret_borrowed(context, b, ty, value)

    def vectors(self, b: ir.IRBuilder, ty: Any, data: ir.Value, rows: tuple = ()) -> Any:
        """Emit loops over a tile's storage; yields once per loop body (index, vector, rows, column)."""
        if self.by_column(ty):
            n = min(ty.m, 4 * self.width(ty))
            for r0 in range(0, ty.m, n):
                parts = [slice_of(b, r, r0, n) for r in rows]
                with loop(b, ty.n) as c:
                    index = b.add(b.mul(c, const(I64, ty.m)), const(I64, r0))
                    yield index, load_floats(b, data, index, n), parts, lambda c=c, n=n: splat(b, b.trunc(c, I32), n)
        else:
            n = self.chunk(ty)
            with loop(b, ty.m) as r:
                parts, start = [splat(b, b.extract_element(x, r), n) for x in rows], b.mul(r, const(I64, ty.n))
                with loop(b, ty.n, n) as c:
                    index = b.add(start, c)
                    yield (
                        index,
                        load_floats(b, data, index, n),
                        parts,
                        lambda c=c, n=n: b.add(splat(b, b.trunc(c, I32), n), iota(n)),
                    )

    def chunk(self, ty: Any) -> int:
        """Vector length for row storage: a power of two that divides the columns."""
        n = 4 * self.width(ty)
        while ty.n % n:
            n //= 2
        return n

    def reduce_rows(
        self, b: ir.IRBuilder, ty: Any, data: ir.Value, identity: float, combine: Any, body: Any, rows: tuple = ()
    ) -> ir.Value:
        """Rows: ``combine`` over each row of ``body(index, vector, rows)``, where ``rows`` are as in `map`."""
        if self.by_column(ty):
            n = min(ty.m, 4 * self.width(ty))
            totals = []
            for r0 in range(0, ty.m, n):
                total = cgutils.alloca_once_value(b, const(vec(F32, n), identity))
                parts = [slice_of(b, r, r0, n) for r in rows]
                with loop(b, ty.n) as c:
                    index = b.add(b.mul(c, const(I64, ty.m)), const(I64, r0))
                    b.store(combine(b.load(total), body(index, load_floats(b, data, index, n), parts)), total)
                totals.append(b.load(total))
            return concat(b, totals)
        n, first = self.chunk(ty), const(vec(F32, self.chunk(ty)), identity)
        total, result = cgutils.alloca_once_value(b, first), cgutils.alloca_once_value(b, const(vec(F32, ty.m), 0.0))
        with loop(b, ty.m) as r:
            parts, start = [splat(b, b.extract_element(x, r), n) for x in rows], b.mul(r, const(I64, ty.n))
            b.store(first, total)
            with loop(b, ty.n, n) as c:
                index = b.add(start, c)
                b.store(combine(b.load(total), body(index, load_floats(b, data, index, n), parts)), total)
            b.store(b.insert_element(b.load(result), reduced(b, b.load(total), combine), r), result)
        return b.load(result)

    def forget(self, context: Any, b: ir.IRBuilder, ty: Any, value: Any) -> None:
        context.nrt.decref(b, ty, value)
