"""Tiles from and to memory."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.hip.backend import TILE
from rocmkern.tile._lowering.hip.emit import (
    GLOBAL,
    Lane,
    array_of,
    elements_of,
    flags_of,
    items_of,
    opaque,
    schedule_no_further,
    shuffle,
    uniform,
    vector_of,
)
from rocmkern.tile._lowering.hip.layouts import LaneLayout, LineLayout
from rocmkern.tile._lowering.hip.memory import (
    CHUNK_BYTES,
    existing,
    in_space,
    is_below,
    load_from,
    memory_int,
    narrowed,
    remaining,
    store_to,
    widen,
)
from rocmkern.tile._lowering.hip.quantized import decode
from rocmkern.tile._lowering.hip.rows import RowLowering
from rocmkern.tile._lowering.shared.atoms import Atom
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I8, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import if_else
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.language.kinds import DTYPES


class TileLowering(RowLowering):
    """Operations that make, load, store and copy tiles."""

    def tile_blocks(self, b: ir.IRBuilder, ty: Any, value: ir.Value, columns: int | None = None) -> list:
        """The vectors of a tile, one list per row block."""
        vectors, per_block = items_of(b, value), LaneLayout(ty).vectors(columns or ty.n)
        return [vectors[i : i + per_block] for i in range(0, len(vectors), per_block)]

    @staticmethod
    def join_blocks(b: ir.IRBuilder, blocks: list) -> ir.Value:
        return array_of(b, [v for block in blocks for v in block])

    def on_tile(self, b: ir.IRBuilder, ty: Any, value: ir.Value, body: Callable, *rows: ir.Value) -> ir.Value:
        """Apply ``body(vector, tile column index, *row values)`` to every vector."""
        parts = list(zip(*(items_of(b, r) for r in rows), strict=True)) or [()] * LaneLayout(ty).row_blocks
        blocks = self.tile_blocks(b, ty, value)
        return self.join_blocks(
            b, [[body(v, c, *row) for c, v in enumerate(block)] for block, row in zip(blocks, parts, strict=True)]
        )

    @staticmethod
    def group_column(b: ir.IRBuilder, atom: Atom) -> ir.Value:
        return b.mul(Lane(b, atom).group, const(I32, atom.group_step))

    def zeros(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return ir.Constant(LaneLayout(sig.return_type).tile(sig.return_type.n), None)

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
        ty, layout = sig.args[1], LaneLayout(sig.return_type)
        if isinstance(layout, LineLayout):
            return self.gather_lines(context, b, sig, x, index, col0, valid, layout)
        atom, size = layout.atom, DTYPES[ty.dtype]
        kind = FORMATS[ty.format] if isinstance(ty, TILE.Quantized) else None
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        base = in_space(b, data, GLOBAL)
        # What is computed from them is not kept in scalar registers around a loop.
        stride, columns = (opaque(b, uniform(b, x), "s") for x in (strides[-1], shape[-1]))
        origin = self.scalar(context, b, sig.args[3], col0, "i64")
        first = b.add(origin, b.zext(self.group_column(b, atom), I64))
        offsets = self.row_offsets(context, b, sig.args[2], index, strides[:-1], layout.row_blocks)

        def block(offset: ir.Value) -> list:
            vectors, (left, left_again) = [], remaining(b, first, columns, n)
            instead = b.add(offset, b.mul(existing(b, origin, columns), stride))
            for group in self.walk(b, atom, b.add(offset, b.mul(first, stride)), stride, n):
                items = []
                for column, place in group:
                    place = b.select(is_below(b, column, left), place, instead)
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

        ``offsets`` has the byte offset of each row's first column, ``first`` is this lane's first column, ``instead``
        the byte offset in a row of a column that exists, ``wide`` says whether the elements lie side by side and in
        whole 16-byte pieces.
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
            instead=b.mul(existing(b, col0, columns), stride),
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
            instead = b.add(offset, at.instead)
            place, nothing = b.add(offset, b.mul(at.first, const(I64, size))), const(ir.VectorType(F32, count), 0.0)
            columns = [layout.width * c + e for c in range(vectors) for e in range(0, registers, count)]
            loaded = []
            for column in columns:
                here = b.add(place, const(I64, column * size))
                here = b.select(is_below(b, column, left), here, instead)
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
            instead = b.add(offset, at.instead)
            for c in range(vectors):
                items = []
                here = b.add(place, b.mul(at.stride, const(I64, layout.width * c)))
                for e in range(registers):
                    column = layout.width * c + e
                    safe = b.select(is_below(b, column, left), here, instead)
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
        layout, size = LaneLayout(tile_ty), DTYPES[ty.dtype]
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
        layout, size = LaneLayout(tile_ty), DTYPES[ty.dtype]
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

    def copy(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return tile  # an SSA value
