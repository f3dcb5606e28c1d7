"""Tiles: loads and stores, row reductions, elementwise operations, masks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.core.errors import TypingError

from rocmkern.tile.angles import cos_sin, rotated
from rocmkern.tile.atoms import Atom
from rocmkern.tile.folds import FoldLowering
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.hip.backend import TILE
from rocmkern.tile.hip.emit import (
    ACTIVATIONS,
    GLOBAL,
    LOG2_E,
    NEG_INF,
    Lane,
    array_of,
    each_element,
    elements_of,
    exp2,
    flags_of,
    flat,
    in_blocks,
    items_of,
    math,
    opaque,
    schedule_no_further,
    shuffle,
    splat,
    tree,
    uniform,
    vector_of,
)
from rocmkern.tile.hip.layouts import Layout, LineLayout
from rocmkern.tile.hip.memory import (
    CHUNK_BYTES,
    in_space,
    is_below,
    load_from,
    memory_int,
    narrowed,
    remaining,
    store_to,
    widen,
)
from rocmkern.tile.hip.quantized import decode, runs_of
from rocmkern.tile.hip.rows import RowLowering
from rocmkern.tile.language.kinds import DTYPES
from rocmkern.tile.tensors import F32, I1, I8, I16, I32, I64, const, if_else

#: tanh(x) = x + x^3 * P(x^2) for |x| < 0.6: minimax fit of P in relative error (3e-9).
TANH_SMALL = 0.6
TANH_COEFFICIENTS = (-0.33333298, 0.13331924, -0.05378383, 0.02079597, -0.00589515)


class TileLowering(FoldLowering, RowLowering):
    """Operations on tiles."""

    def tile_blocks(self, b: ir.IRBuilder, ty: Any, value: ir.Value, columns: int | None = None) -> list:
        """The vectors of a tile, one list per row block."""
        vectors, per_block = items_of(b, value), Layout(ty).vectors(columns or ty.n)
        return [vectors[i : i + per_block] for i in range(0, len(vectors), per_block)]

    @staticmethod
    def join_blocks(b: ir.IRBuilder, blocks: list) -> ir.Value:
        return array_of(b, [v for block in blocks for v in block])

    def on_tile(self, b: ir.IRBuilder, ty: Any, value: ir.Value, body: Callable, *rows: ir.Value) -> ir.Value:
        """Apply ``body(vector, tile column index, *row values)`` to every vector."""
        parts = list(zip(*(items_of(b, r) for r in rows), strict=True)) or [()] * Layout(ty).row_blocks
        blocks = self.tile_blocks(b, ty, value)
        return self.join_blocks(
            b, [[body(v, c, *row) for c, v in enumerate(block)] for block, row in zip(blocks, parts, strict=True)]
        )

    @staticmethod
    def group_column(b: ir.IRBuilder, atom: Atom, group: ir.Value | None = None) -> ir.Value:
        return b.mul(Lane(b, atom).group if group is None else group, const(I32, atom.group_step))

    def zeros(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return ir.Constant(Layout(sig.return_type).tile(sig.return_type.n), None)

    @staticmethod
    def walk(b: ir.IRBuilder, atom: Atom, start: ir.Value, stride: ir.Value, n: int) -> Any:
        """For each 16 columns of a tile: (column of the register, its byte offset), found by adding up.

        A product for every column would be cheaper in instructions, but LLVM computes them all first and spills them.
        """
        step = b.mul(stride, const(I64, atom.register_step))
        across = b.mul(stride, const(I64, 16))
        for c in range(n // 16):
            places = [(16 * c, start)]
            for i in range(1, atom.registers):
                places.append((16 * c + atom.register_step * i, b.add(places[-1][1], step)))
            yield places
            start = b.add(start, across)

    def gather(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, valid: Any, n: int
    ) -> list:
        """Blocks of float32 vectors in tile layout: ``x[index, col0 + column]``."""
        ty, layout = sig.args[1], Layout(sig.return_type)
        if isinstance(layout, LineLayout):
            return self.gather_lines(context, b, sig, x, index, col0, valid, layout)
        atom, size = layout.atom, DTYPES[ty.dtype]
        kind = FORMATS[ty.format] if isinstance(ty, TILE.Quantized) else None
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        base = in_space(b, data, GLOBAL)
        # What is computed from them is not kept in scalar registers around a loop.
        stride, columns = (opaque(b, uniform(b, x), "s") for x in (strides[-1], shape[-1]))
        first = b.add(self.scalar(context, b, sig.args[3], col0, "i64"), b.zext(self.group_column(b, atom), I64))
        offsets = self.row_offsets(context, b, sig.args[2], index, strides[:-1], layout.row_blocks)

        def block(offset: ir.Value) -> list:
            vectors, (left, left_again) = [], remaining(b, first, columns, n)
            for group in self.walk(b, atom, b.add(offset, b.mul(first, stride)), stride, n):
                items = []
                for column, place in group:
                    place = b.select(is_below(b, column, left), place, offset)
                    value = widen(b, load_from(b, base, place, memory_int(ty.dtype), size), ty.dtype)
                    items.append(b.select(is_below(b, column, left_again), value, const(F32, 0.0)))
                vectors.append(vector_of(b, items))
                schedule_no_further(b)
            return vectors

        def decoded(offset: ir.Value) -> list:
            vectors, (left, left_again) = [], remaining(b, first, columns, n)
            row = b.gep(base, [offset], source_etype=I8)
            for c in range(n // 16):
                items = []
                for i in range(atom.registers):
                    column = 16 * c + atom.register_step * i
                    place = b.select(is_below(b, column, left), b.add(first, const(I64, column)), const(I64, 0))
                    (value,) = decode(b, kind, row, place, 1)
                    items.append(b.select(is_below(b, column, left_again), value, const(F32, 0.0)))
                vectors.append(vector_of(b, items))
                schedule_no_further(b)
            return vectors

        nothing = [const(ir.VectorType(F32, atom.registers), 0.0)] * (n // 16)
        some = b.icmp_unsigned("!=", columns, const(I64, 0))
        load = decoded if kind else block
        return [
            if_else(b, b.and_(ok, some), lambda offset=offset: load(offset), lambda: nothing)
            for ok, offset in zip(flags_of(b, valid), offsets, strict=True)
        ]

    def place_lines(
        self, context: Any, b: ir.IRBuilder, ty: Any, x: Any, index_ty: Any, index: Any, col0: ir.Value, layout: Any
    ) -> SimpleNamespace:
        """Where a tile of rows along lanes lies in a tensor.

        ``offsets`` has the byte offset of each row's first column, ``first`` is this lane's first column, ``wide`` says
        whether the elements lie side by side and in whole 16-byte pieces.
        """
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        size, stride, columns = const(I64, DTYPES[ty.dtype]), strides[-1], shape[-1]
        bits = [b.ptrtoint(data, I64), *strides[:-1], b.mul(col0, size), b.mul(columns, size)]
        aligned = b.icmp_signed("==", b.and_(functools.reduce(b.or_, bits), const(I64, CHUNK_BYTES - 1)), const(I64, 0))
        wide = b.and_(b.icmp_signed("==", stride, size), aligned)
        return SimpleNamespace(
            base=in_space(b, data, GLOBAL),
            offsets=self.row_offsets(context, b, index_ty, index, strides[:-1], layout.row_blocks),
            first=b.add(col0, b.zext(layout.first_column(b), I64)),
            stride=stride,
            columns=columns,
            wide=wide if DTYPES[ty.dtype] in (2, 4) else const(I1, 0),
        )

    def gather_lines(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, valid: Any, layout: LineLayout
    ) -> list:
        """`gather` for rows along lanes."""
        ty, n = sig.args[1], sig.return_type.n
        dtype, size, registers = ty.dtype, DTYPES[ty.dtype], layout.registers
        start = self.scalar(context, b, sig.args[3], col0, "i64")
        at = self.place_lines(context, b, ty, x, sig.args[2], index, start, layout)
        vectors, (left, left_again) = layout.vectors(n), remaining(b, at.first, at.columns, n)
        element = memory_int(dtype)

        def in_pieces(offset: ir.Value) -> list:
            count, piece = CHUNK_BYTES // size, ir.VectorType(element, CHUNK_BYTES // size)
            place, nothing = b.add(offset, b.mul(at.first, const(I64, size))), const(ir.VectorType(F32, count), 0.0)
            columns = [layout.width * c + e for c in range(vectors) for e in range(0, registers, count)]
            loaded = []
            for column in columns:
                here = b.add(place, const(I64, column * size))
                here = b.select(is_below(b, column, left), here, offset)
                loaded.append(load_from(b, at.base, here, piece, CHUNK_BYTES))
            # All loads are on their way before the first one is looked at.
            schedule_no_further(b)
            parts = [
                b.select(is_below(b, column, left_again), widen(b, bits, dtype), nothing)
                for column, bits in zip(columns, loaded, strict=True)
            ]
            while parts[0].type.count < registers:
                twice = range(2 * parts[0].type.count)
                parts = [shuffle(b, *pair, twice) for pair in zip(parts[::2], parts[1::2], strict=True)]
            return parts

        def one_by_one(offset: ir.Value) -> list:
            out, place = [], b.add(offset, b.mul(at.first, at.stride))
            for c in range(vectors):
                items = []
                here = b.add(place, b.mul(at.stride, const(I64, layout.width * c)))
                for e in range(registers):
                    column = layout.width * c + e
                    safe = b.select(is_below(b, column, left), here, offset)
                    value = widen(b, load_from(b, at.base, safe, element, size), dtype)
                    items.append(b.select(is_below(b, column, left_again), value, const(F32, 0.0)))
                    here = b.add(here, at.stride)
                out.append(vector_of(b, items))
                schedule_no_further(b)
            return out

        def row(offset: ir.Value) -> list:
            if isinstance(at.wide, ir.Constant):
                return one_by_one(offset)
            return if_else(b, at.wide, lambda: in_pieces(offset), lambda: one_by_one(offset))

        zeros = [const(ir.VectorType(F32, registers), 0.0)] * vectors
        some = b.icmp_signed(">", at.columns, const(I64, 0))
        return [
            if_else(b, b.and_(ok, some), lambda offset=offset: row(offset), lambda: zeros)
            for ok, offset in zip(flags_of(b, valid), at.offsets, strict=True)
        ]

    def store_lines(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> None:
        """`store_tile` for rows along lanes."""
        ty, tile_ty = sig.args[0], sig.args[3]
        layout, size = Layout(tile_ty), DTYPES[ty.dtype]
        registers = layout.registers
        count = min(CHUNK_BYTES // size, registers)
        start = self.scalar(context, b, sig.args[2], col0, "i64")
        at = self.place_lines(context, b, ty, x, sig.args[1], index, start, layout)
        left, _ = remaining(b, at.first, at.columns, tile_ty.n)

        def in_pieces(block: list, offset: ir.Value) -> None:
            place = b.add(offset, b.mul(at.first, const(I64, size)))
            for c, vector in enumerate(block):
                for e in range(0, registers, count):
                    column = layout.width * c + e
                    part = vector if count == registers else shuffle(b, vector, vector, range(e, e + count))
                    with b.if_then(is_below(b, column, left)):
                        here = b.add(place, const(I64, column * size))
                        store_to(b, narrowed(b, part, ty.dtype), at.base, here, count * size)

        def one_by_one(block: list, offset: ir.Value) -> None:
            place = b.add(offset, b.mul(at.first, at.stride))
            for c, vector in enumerate(block):
                here = b.add(place, b.mul(at.stride, const(I64, layout.width * c)))
                for e, value in enumerate(elements_of(b, vector)):
                    with b.if_then(is_below(b, layout.width * c + e, left)):
                        store_to(b, narrowed(b, value, ty.dtype), at.base, here, size)
                    here = b.add(here, at.stride)

        for ok, offset, block in zip(flags_of(b, valid), at.offsets, self.tile_blocks(b, tile_ty, tile), strict=True):
            with b.if_then(ok), b.if_else(at.wide) as (then, otherwise):
                with then:
                    in_pieces(block, offset)
                with otherwise:
                    one_by_one(block, offset)

    def load_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, valid: Any
    ) -> ir.Value:
        return self.join_blocks(b, self.gather(context, b, sig, x, index, col0, valid, sig.return_type.n))

    def store_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> Any:
        ty, tile_ty = sig.args[0], sig.args[3]
        layout, size = Layout(tile_ty), DTYPES[ty.dtype]
        if isinstance(layout, LineLayout):
            self.store_lines(context, b, sig, x, index, col0, tile, valid)
            return context.get_dummy_value()
        atom = layout.atom
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        base, stride, columns = in_space(b, data, GLOBAL), strides[-1], shape[-1]
        origin = self.scalar(context, b, sig.args[2], col0, "i64")
        first = b.add(origin, b.zext(self.group_column(b, atom), I64))
        offsets = self.row_offsets(context, b, sig.args[1], index, strides[:-1], layout.row_blocks)
        whole = b.icmp_signed("<=", b.add(origin, const(I64, tile_ty.n)), columns)

        def write(block: list, offset: ir.Value, guarded: bool) -> None:
            start, (left, _) = b.add(offset, b.mul(first, stride)), remaining(b, first, columns, tile_ty.n)
            for vector, group in zip(block, self.walk(b, atom, start, stride, tile_ty.n), strict=True):
                for value, (column, place) in zip(elements_of(b, vector), group, strict=True):
                    with b.if_then(is_below(b, column, left)) if guarded else contextlib.nullcontext():
                        store_to(b, narrowed(b, value, ty.dtype), base, place, size)

        for ok, offset, block in zip(flags_of(b, valid), offsets, self.tile_blocks(b, tile_ty, tile), strict=True):
            with b.if_then(ok), b.if_else(whole) as (then, otherwise):
                with then:
                    write(block, offset, False)
                with otherwise:
                    write(block, offset, True)
        return context.get_dummy_value()

    def reduce_rows(self, b: ir.IRBuilder, ty: Any, tile: ir.Value, join: Callable) -> list:
        layout = Layout(ty)
        return [layout.over_lanes(b, join, tree(b, join, block)) for block in self.tile_blocks(b, ty, tile)]

    def rowmax(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return array_of(b, self.reduce_rows(b, sig.args[0], tile, lambda x, y: math(b, "maxnum", x, y)))

    def in_lane(self, b: ir.IRBuilder, ty: Any, x: ir.Value) -> list[ir.Value]:
        return items_of(b, x)

    def of_lane(self, b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        return array_of(b, values)

    def larger(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        return math(b, "maxnum", x, y)

    def rowsum(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return array_of(b, self.reduce_rows(b, sig.args[0], tile, b.fadd))

    def rowdot(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        products = array_of(b, [b.fmul(u, v) for u, v in zip(items_of(b, x), items_of(b, y), strict=True)])
        return array_of(b, self.reduce_rows(b, sig.args[0], products, b.fadd))

    def load_rowdot(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        (x_ty, index_ty, col0_ty, ty), valid_ty = sig.args[:4], sig.args[4]
        whole = TILE.Tile(valid_ty.m, ty.n, ty.hw)
        layout = Layout(whole)
        if not isinstance(layout, LineLayout) and whole != ty:
            raise TypingError("load_rowdot: a tile of fewer rows needs rows along lanes")
        rows = self.tile_blocks(b, ty, tile) * (whole.m // ty.m)
        inner = SimpleNamespace(args=(None, x_ty, index_ty, col0_ty), return_type=whole)
        if isinstance(x_ty, TILE.Quantized) and isinstance(layout, LineLayout):
            sums = self.quantized_rowdots(context, b, inner, x, index, col0, rows, valid)
        else:
            blocks = self.gather(context, b, inner, x, index, col0, valid, ty.n)
            products = [[b.fmul(*pair) for pair in zip(*both, strict=True)] for both in zip(blocks, rows, strict=True)]
            sums = [tree(b, b.fadd, block) for block in products]
        return array_of(b, [layout.over_lanes(b, b.fadd, x) for x in sums])

    def quantized_rowdots(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, rows: list, valid: Any
    ) -> list:
        """This lane's part of `load_rowdot` of a quantized source, for rows along lanes.

        Scales are applied to the sums of the elements that share them. What does not exist is zero in the tile.
        """
        (x_ty, index_ty, col0_ty), ty = sig.args[1:4], sig.return_type
        layout, kind = Layout(ty), FORMATS[x_ty.format]
        data, (_, columns), strides = self.unpack_tensor(context, b, x_ty, x)
        base, unit = in_space(b, data, GLOBAL), min(layout.registers, kind.group)
        offsets = self.row_offsets(context, b, index_ty, index, strides[:-1], layout.row_blocks)
        first = b.add(self.scalar(context, b, col0_ty, col0, "i64"), b.zext(layout.first_column(b), I64))
        left, left_again = remaining(b, first, columns, ty.n)

        def row(offset: ir.Value, values: list) -> list:
            total, start = const(F32, 0.0), b.gep(base, [offset], source_etype=I8)
            for c, vector in enumerate(values):
                elements = elements_of(b, vector)
                for e in range(0, layout.registers, unit):
                    column = layout.width * c + e
                    place = b.select(is_below(b, column, left), b.add(first, const(I64, column)), const(I64, 0))
                    runs = runs_of(b, kind, start, place, unit)
                    part, plain = const(F32, 0.0), const(F32, 0.0)
                    for number, value in zip(flat(run.numbers for run in runs), elements[e : e + unit], strict=True):
                        part, plain = math(b, "fma", number, value, part), b.fadd(plain, value)
                    part = b.fmul(b.fmul(part, const(F32, runs[0].factor)), runs[0].scale)
                    if runs[0].minimum is not None:
                        part = b.fsub(part, b.fmul(plain, runs[0].minimum))
                    part = b.select(is_below(b, column, left_again), part, const(F32, 0.0))
                    total = b.fadd(total, part)
            return [total]

        some = b.icmp_signed(">", columns, const(I64, 0))
        return [
            *(
                if_else(b, b.and_(ok, some), lambda o=offset, v=values: row(o, v), lambda: [const(F32, 0.0)])[0]
                for ok, offset, values in zip(flags_of(b, valid), offsets, rows, strict=True)
            )
        ]

    def exp2(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        if isinstance(sig.args[0], TILE.Rows):
            return self.on_rows(context, b, sig, (x,), lambda _, v: exp2(b, v))
        return self.on_tile(b, sig.args[0], x, lambda v, c: each_element(b, v, lambda e: exp2(b, e)))

    def copy(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return tile  # an SSA value

    def tanh(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        # Of known value, they would be kept in scalar registers around a loop, even one that seldom comes here.
        numbers = (TANH_SMALL, 2 * LOG2_E, *TANH_COEFFICIENTS)
        largest_small, exponent, *coefficients = (opaque(b, const(F32, x), "s") for x in numbers)

        def one(x: ir.Value) -> ir.Value:
            size, square = math(b, "fabs", x), b.fmul(x, x)
            series = coefficients[-1]
            for coefficient in coefficients[-2::-1]:
                series = math(b, "fma", series, square, coefficient)
            small = math(b, "fma", b.fmul(x, square), series, x)
            power = b.fadd(exp2(b, b.fmul(size, exponent)), const(F32, 1.0))
            large = math(b, "fma", math(b, "amdgcn.rcp", power), const(F32, -2.0), const(F32, 1.0))
            is_small = b.fcmp_ordered("<", size, largest_small)
            return b.select(is_small, small, math(b, "copysign", large, x))

        return self.on_tile(b, sig.args[0], tile, lambda v, c: each_element(b, v, one))

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        if dtype == "float32":
            return tile

        def one(x: ir.Value) -> ir.Value:
            return widen(b, b.bitcast(narrowed(b, x, dtype), I16), dtype)

        return self.on_tile(b, sig.args[0], tile, lambda v, c: each_element(b, v, one))

    def pad_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: Any, stop: Any, value: Any
    ) -> ir.Value:
        ty = sig.args[0]
        layout = Layout(ty)
        first, end = (self.scalar(context, b, t, v, "i32") for t, v in zip(sig.args[1:3], (col0, stop), strict=True))
        left = splat(b, b.sub(end, b.add(first, layout.first_column(b))), layout.registers)
        filling = splat(b, self.scalar(context, b, sig.args[3], value, "f32"), layout.registers)

        def body(v: ir.Value, c: int) -> ir.Value:
            return b.select(b.icmp_signed("<", layout.columns_of(c), left), v, filling)

        return self.on_tile(b, ty, tile, body)

    def activation(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, name: str) -> ir.Value:
        emit = getattr(ACTIVATIONS, name)
        if isinstance(sig.args[0], TILE.Rows):
            return self.on_rows(context, b, sig, (tile,), lambda _, v: emit(b, v))
        return self.on_tile(b, sig.args[0], tile, lambda v, c: each_element(b, v, lambda x: emit(b, x)))

    silu = functools.partialmethod(activation, name="silu")

    gelu = functools.partialmethod(activation, name="gelu")

    gelu_tanh = functools.partialmethod(activation, name="gelu_tanh")

    relu = functools.partialmethod(activation, name="relu")

    def absolute(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return self.on_tile(b, sig.args[0], tile, lambda v, c: math(b, "fabs", v))

    def rotations(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any
    ) -> ir.Value:
        ty = sig.return_type[0]
        layout = Layout(ty)
        data, (columns,), (stride,) = self.unpack_tensor(context, b, sig.args[2], frequencies)
        base = in_space(b, data, GLOBAL)
        first = b.add(self.scalar(context, b, sig.args[3], col0, "i64"), b.zext(layout.first_column(b), I64))
        numbers = [x.constant for c in range(layout.vectors(ty.n)) for x in layout.columns_of(c).constant]

        def load() -> list:
            turns, (left, left_again) = [], remaining(b, first, columns, ty.n)
            start = b.mul(first, stride)
            for column in numbers:
                place = b.add(start, b.mul(stride, const(I64, column)))
                turn = load_from(b, base, b.select(is_below(b, column, left), place, const(I64, 0)), I64, 8)
                turns.append(b.select(is_below(b, column, left_again), turn, const(I64, 0)))
            return turns

        some = b.icmp_signed(">", columns, const(I64, 0))
        turns = if_else(b, some, load, lambda: [const(I64, 0)] * len(numbers))
        pairs = [[cos_sin(b, p, turn) for turn in turns] for p in items_of(b, position)]
        tiles = [
            self.join_blocks(
                b,
                [
                    [vector_of(b, [pair[which] for pair in some]) for some in in_blocks(row, layout.registers)]
                    for row in pairs
                ],
            )
            for which in (0, 1)
        ]
        return context.make_tuple(b, sig.return_type, tiles)

    def rotate(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, cos: Any, sin: Any) -> ir.Value:
        points = [rotated(b, *values) for values in zip(*(items_of(b, t) for t in (x, y, cos, sin)), strict=True)]
        return context.make_tuple(b, sig.return_type, [array_of(b, list(part)) for part in zip(*points, strict=True)])

    def at_least(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, bound: Any) -> ir.Value:
        ty, bound_ty = sig.args
        floats = ir.VectorType(F32, Layout(ty).registers)
        rows = self.row_values(context, b, ty, bound_ty, bound, "f32")

        def body(v: ir.Value, c: int, least: ir.Value) -> ir.Value:
            above = b.fcmp_ordered(">=", v, splat(b, least, floats.count))
            return b.select(above, const(floats, 1.0), const(floats, 0.0))

        return self.on_tile(b, ty, tile, body, rows)

    def distance(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, col0: Any, n: Any) -> ir.Value:
        ty = sig.return_type
        layout = Layout(ty)
        start = b.add(self.scalar(context, b, sig.args[2], col0, "i32"), layout.first_column(b))

        def block(p: ir.Value) -> list:
            relative = splat(b, b.sub(p, start), layout.registers)
            floats = ir.VectorType(F32, layout.registers)
            return [b.sitofp(b.sub(relative, layout.columns_of(c)), floats) for c in range(layout.vectors(ty.n))]

        return self.join_blocks(b, [block(p) for p in items_of(b, position)])

    def mask_outside(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: Any, low: Any, high: Any) -> Any:
        ty = sig.args[0]
        layout = Layout(ty)
        start = b.add(self.scalar(context, b, sig.args[1], col0, "i32"), layout.first_column(b))
        nothing = const(ir.VectorType(F32, layout.registers), NEG_INF)

        def body(v: ir.Value, c: int, lo: ir.Value, hi: ir.Value) -> ir.Value:
            numbers = layout.columns_of(c)
            above = b.icmp_signed(">=", numbers, splat(b, b.sub(lo, start), layout.registers))
            below = b.icmp_signed("<=", numbers, splat(b, b.sub(hi, start), layout.registers))
            return b.select(b.and_(above, below), v, nothing)

        return self.on_tile(b, ty, tile, body, low, high)

    def mask_where(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, visible: Any) -> ir.Value:
        floats = ir.VectorType(F32, Layout(sig.args[0]).registers)
        return array_of(
            b,
            [
                b.select(b.fcmp_unordered("!=", seen, const(floats, 0.0)), v, const(floats, NEG_INF))
                for v, seen in zip(items_of(b, tile), items_of(b, visible), strict=True)
            ],
        )

    def multiply_add(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, factor: Any, summand: Any) -> ir.Value:
        items = zip(*(items_of(b, x) for x in (tile, factor, summand)), strict=True)
        return array_of(b, [math(b, "fma", *each) for each in items])
