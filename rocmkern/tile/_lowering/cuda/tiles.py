"""Tiles from and to memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.backend import TILE
from rocmkern.tile._lowering.cuda.emit import (
    LANES,
    call_outlined,
    outlined,
    pack,
    stack,
    thread,
    transpose_quad,
    unpack,
)
from rocmkern.tile._lowering.cuda.layouts import (
    Lines,
    column_of_lane,
    columns_of,
    elements_of,
    is_line,
    is_shared,
    keys_of_warp,
    m_tiles,
    storage,
    warps_of_rows,
)
from rocmkern.tile._lowering.cuda.memory import (
    bits_to_float32,
    float32_to_pairs,
    join_pairs,
    load_bits,
    load_piece,
    pairs_to_float32,
    split_pairs,
    store_bits,
    store_piece,
)
from rocmkern.tile._lowering.cuda.quantized import (
    decode_unit,
    load_from,
)
from rocmkern.tile._lowering.cuda.rows import RowLowering
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import if_else
from rocmkern.tile.language.kinds import DTYPES


class TileLowering(RowLowering):
    """Operations that make, load, store and copy tiles."""

    def zeros(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return pack(b, [const(F32, 0.0)] * storage(sig.return_type).count)

    def place(
        self, context: Any, b: ir.IRBuilder, tensor: tuple, index: tuple, first: tuple, valid: Any, shape: Any
    ) -> SimpleNamespace:
        """Where a tile lies in a tensor; ``tensor``, ``index`` and ``first`` (column) are (type, value).

        ``rows`` has the address of the first column of each of this lane's rows, ``exists`` whether there is such a
        row, ``rest`` the number of columns from there on, ``stride`` the bytes from one to the next.
        """
        addresses, extents, strides = self.row_addresses(context, b, *tensor, *index, shape)
        col0, size = self.scalar(context, b, *first, "i64"), const(I64, DTYPES[tensor[0].dtype])
        data = b.ptrtoint(self.unpack_tensor(context, b, *tensor)[0], I64)
        return SimpleNamespace(
            rows=[b.add(a, b.mul(col0, strides[-1])) for a in addresses],
            exists=unpack(b, valid),
            rest=b.sub(extents[-1], col0),
            stride=strides[-1],
            dense=b.icmp_signed("==", strides[-1], size),
            # A number of bytes divides all addresses and the columns if it divides this.
            alignment=functools.reduce(b.or_, [data, *strides[:-1], b.mul(col0, size), b.mul(extents[-1], size)]),
        )

    def in_pieces(self, b: ir.IRBuilder, place: SimpleNamespace, dtype: str, shape: Any) -> tuple[int, ir.Value]:
        """Bytes that a lane moves at once, and whether this tensor allows it."""
        size = DTYPES[dtype]
        if is_line(shape):
            nbytes = Lines.piece_bytes(dtype, shape)
        else:
            nbytes = 16 if size == 2 and columns_of(shape) % 32 == 0 else 2 * size
        aligned = b.icmp_signed("==", b.and_(place.alignment, const(I64, nbytes - 1)), const(I64, 0))
        if is_line(shape) and size not in (2, 4):
            aligned = const(I1, 0)
        return nbytes, b.and_(place.dense, aligned)

    @staticmethod
    def pieces(b: ir.IRBuilder, place: SimpleNamespace, dtype: str, shape: Any, nbytes: int) -> Iterator[tuple]:
        """(m-tile, half, first 8 columns' number, address, whether it exists) of each piece of a lane."""
        size = DTYPES[dtype]
        wide = nbytes // size  # columns of a piece; the four lanes of a quad lie side by side
        column = b.zext(b.mul(b.and_(thread(b), const(I32, 3)), const(I32, wide)), I64)
        rest = b.sub(place.rest, column)
        offset = b.mul(column, const(I64, size))
        rows = [b.add(row, offset) for row in place.rows]
        inside = {c: b.icmp_signed(">", rest, const(I64, c)) for c in range(0, columns_of(shape), 4 * wide)}
        for i in range(m_tiles(shape)):
            for c, there in inside.items():
                for half in (0, 1):
                    address = b.add(rows[2 * i + half], const(I64, c * size))
                    yield i, half, c // 8, address, b.and_(place.exists[2 * i + half], there)

    @staticmethod
    def single_elements(b: ir.IRBuilder, rows: list, exists: list, rest: Any, stride: Any, shape: Any) -> Iterator:
        """(address, whether it exists) of each element of a lane, in the order of storage."""
        column = b.zext(column_of_lane(b, shape), I64)
        rows = [b.add(row, b.mul(column, stride)) for row in rows]
        rest = b.sub(rest, column)
        columns = sorted({c for _, c in elements_of(shape)})
        inside = {c: b.icmp_signed(">", rest, const(I64, c)) for c in columns}
        offsets = {c: b.mul(stride, const(I64, c)) for c in columns}
        return ((b.add(rows[s], offsets[c]), b.and_(exists[s], inside[c])) for s, c in elements_of(shape))

    def gather(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, valid: Any) -> list:
        """What `load_tile` and `load_operand` load: the pairs of columns of a lane, in a tile's order.

        A pair is one i32 for elements of 1 and 2 bytes, else two consecutive ones.
        """
        (x_ty, index_ty, col0_ty), ty = sig.args[1:4], sig.return_type
        if isinstance(ty, TILE.Tile) and is_shared(ty):
            col0_ty, col0 = self.own_columns(context, b, ty, col0_ty, col0)
        dtype, place = x_ty.dtype, self.place(context, b, (x_ty, x), (index_ty, index), (col0_ty, col0), valid, ty)
        nbytes, regular = self.in_pieces(b, place, dtype, ty)
        total = self.words_of_tile(ty, dtype)

        def one_by_one(b: ir.IRBuilder, rest: ir.Value, stride: ir.Value, rows: list, exists: list) -> list:
            flags = [b.trunc(x, I1) for x in exists]
            places = self.single_elements(b, rows, flags, rest, stride, ty)
            return join_pairs(b, [load_bits(b, a, dtype, there) for a, there in places], dtype)

        def in_pieces() -> list[ir.Value]:
            if is_line(ty):
                places = Lines.pieces(b, place, dtype, ty) if DTYPES[dtype] in (2, 4) else ()
                words = [word for address, there in places for word in load_piece(b, address, nbytes, there)]
                return words or [const(I32, 0)] * total
            words: list[Any] = [None] * total
            per_pair = total // (m_tiles(ty) * columns_of(ty) // 4)
            for i, half, j, address, there in self.pieces(b, place, dtype, ty, nbytes):
                piece = load_piece(b, address, nbytes, there)
                if nbytes == 16:
                    piece = transpose_quad(b, piece)
                for k in range(0, len(piece), per_pair):
                    at = ((i * (columns_of(ty) // 8) + j + k // per_pair) * 2 + half) * per_pair
                    words[at : at + per_pair] = piece[k : k + per_pair]
            return words

        name = f"load_one_by_one_{self.shape_name(ty)}_{dtype}"
        exists = [b.zext(x, I32) for x in place.exists]
        return if_else(
            b,
            regular,
            in_pieces,
            lambda: outlined(
                b, name, [place.rest, place.stride], [place.rows, exists], ir.ArrayType(I32, total), one_by_one
            ),
        )

    def own_columns(self, context: Any, b: ir.IRBuilder, ty: Any, col0_ty: Any, col0: ir.Value) -> tuple:
        """(type, value) of the first column of this warp's part of a tile from ``col0`` on."""
        first = self.scalar(context, b, col0_ty, col0, "i64")
        return self.numba.types.int64, b.add(first, b.zext(keys_of_warp(b, ty, ty.n), I64))

    @staticmethod
    def shape_name(ty: Any) -> str:
        """Rows, columns and layout, as a part of a function's name."""
        return "_".join(map(str, (ty.m, columns_of(ty), *ty.hw[1:])))

    @staticmethod
    def words_of_tile(ty: Any, dtype: str) -> int:
        """32-bit words of a lane's pairs; see `gather`."""
        return ty.m * columns_of(ty) // (LANES * warps_of_rows(ty)) // 2 * max(1, DTYPES[dtype] // 2)

    def load_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, valid: Any
    ) -> ir.Value:
        if isinstance(sig.args[1], TILE.Quantized):
            return self.load_quantized(context, b, sig, x, index, col0, valid)
        words = self.gather(context, b, sig, x, index, col0, valid)
        return pack(b, pairs_to_float32(b, words, sig.args[1].dtype))

    def load_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, m: Any, x: Any, col0: Any, n: Any
    ) -> ir.Value:
        """Each of a lane's columns once, for all of its rows."""
        ty, (_, _, x_ty, col0_ty, _) = sig.return_type, sig.args
        if is_line(ty):
            return super().load_columns(context, b, sig, cfg, m, x, col0, n)
        if is_shared(ty):
            col0_ty, col0 = self.own_columns(context, b, ty, col0_ty, col0)
        data, (extent,), (stride,) = self.unpack_tensor(context, b, x_ty, x)
        first = b.add(self.scalar(context, b, col0_ty, col0, "i64"), b.zext(column_of_lane(b), I64))
        address, rest = b.add(b.ptrtoint(data, I64), b.mul(first, stride)), b.sub(extent, first)
        # Compared in 32 bits.
        rest = b.trunc(b.select(b.icmp_signed("<", rest, const(I64, ty.n)), rest, const(I64, ty.n)), I32)
        values = {}
        for column in sorted({c for _, c in elements_of(ty)}):
            place = b.add(address, b.mul(stride, const(I64, column)))
            bits = load_bits(b, place, x_ty.dtype, b.icmp_signed(">", rest, const(I32, column)))
            values[column] = bits_to_float32(b, bits, x_ty.dtype)
        return pack(b, [values[column] for _, column in elements_of(ty)])

    def load_pair(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, y: Any, index: Any, col0: Any, n: Any,
        valid: Any,
    ) -> ir.Value:  # fmt: skip
        (x_ty, y_ty, index_ty, col0_ty), ty = sig.args[1:5], sig.return_type[0]
        if not is_line(ty) or DTYPES[x_ty.dtype] not in (2, 4):
            return super().load_pair(context, b, sig, cfg, x, y, index, col0, n, valid)
        pair = self.pair_place(context, b, (x_ty, x), (y_ty, y), (index_ty, index), (col0_ty, col0), valid, ty)

        def together() -> list[ir.Value]:
            nbytes = Lines.piece_bytes(x_ty.dtype, ty, 2)
            words = [
                word
                for address, there in Lines.pieces(b, pair, x_ty.dtype, ty, 2)
                for word in load_piece(b, address, nbytes, there)
            ]
            values = pairs_to_float32(b, words, x_ty.dtype)
            return values[::2] + values[1::2]

        def apart() -> list[ir.Value]:
            parts = []
            for t, tensor in ((x_ty, x), (y_ty, y)):
                one = self.numba.signature(ty, sig.args[0], t, *sig.args[3:])
                words = self.gather(context, b, one, tensor, index, col0, valid)
                parts += pairs_to_float32(b, words, t.dtype)
            return parts

        values = if_else(b, pair.by_turns, together, apart)
        half = len(values) // 2
        return context.make_tuple(b, sig.return_type, [pack(b, values[:half]), pack(b, values[half:])])

    def store_pair(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, index: Any, col0: Any, left: Any, right: Any,
        valid: Any,
    ) -> ir.Value:  # fmt: skip
        x_ty, y_ty, index_ty, col0_ty, ty = sig.args[:5]
        if not is_line(ty) or DTYPES[x_ty.dtype] not in (2, 4):
            return super().store_pair(context, b, sig, x, y, index, col0, left, right, valid)
        pair = self.pair_place(context, b, (x_ty, x), (y_ty, y), (index_ty, index), (col0_ty, col0), valid, ty)
        with b.if_else(pair.by_turns) as (yes, no):
            with yes:
                values = [v for both in zip(unpack(b, left), unpack(b, right), strict=True) for v in both]
                words = iter(float32_to_pairs(b, values, x_ty.dtype))
                count = Lines.piece_bytes(x_ty.dtype, ty, 2) // 4
                for address, there in Lines.pieces(b, pair, x_ty.dtype, ty, 2):
                    store_piece(b, address, list(itertools.islice(words, count)), there)
            with no:
                super().store_pair(context, b, sig, x, y, index, col0, left, right, valid)
        return context.get_dummy_value()

    def pair_place(
        self, context: Any, b: ir.IRBuilder, x: tuple, y: tuple, index: tuple, col0: tuple, valid: Any, ty: Any
    ) -> SimpleNamespace:
        """`place` of x; ``by_turns`` says whether x and y can be read in pieces in which their elements take turns."""
        place, size = self.place(context, b, x, index, col0, valid, ty), DTYPES[x[0].dtype]
        (first, extents, strides), (second, _, others) = (self.unpack_tensor(context, b, *t) for t in (x, y))
        start = b.ptrtoint(first, I64)
        offset = b.mul(self.scalar(context, b, *col0, "i64"), strides[-1])
        bits = functools.reduce(b.or_, [start, *strides[:-1], offset, b.mul(extents[-1], strides[-1])])
        agree = [
            b.icmp_signed("==", b.and_(bits, const(I64, 15)), const(I64, 0)),
            b.icmp_signed("==", strides[-1], const(I64, 2 * size)),
            b.icmp_signed("==", b.sub(b.ptrtoint(second, I64), start), const(I64, size)),
            *(b.icmp_signed("==", s, t) for s, t in zip(strides, others, strict=True)),
        ]
        place.by_turns = functools.reduce(b.and_, agree)
        return place

    def load_quantized(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, valid: Any
    ) -> ir.Value:
        """A tile of a quantized source, element by element."""
        (x_ty, index_ty, col0_ty), ty = sig.args[1:4], sig.return_type
        rows, (_, extent), _ = self.row_addresses(context, b, x_ty, x, index_ty, index, ty)
        first = b.add(self.scalar(context, b, col0_ty, col0, "i64"), b.zext(column_of_lane(b, ty), I64))
        valid, values = unpack(b, valid), []
        for slot, c in elements_of(ty):
            column = b.add(first, const(I64, c))
            exists = b.and_(valid[slot], b.icmp_signed("<", column, extent))
            (value,) = decode_unit(b, x_ty.format, rows[slot], column, 1, load_from(b, exists, []))
            values.append(b.select(exists, value, const(F32, 0.0)))
        return pack(b, values)

    def store_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        x_ty, index_ty, col0_ty, ty = sig.args[:4]
        if is_shared(ty):
            col0_ty, col0 = self.own_columns(context, b, ty, col0_ty, col0)
        dtype, place = x_ty.dtype, self.place(context, b, (x_ty, x), (index_ty, index), (col0_ty, col0), valid, ty)
        nbytes, regular = self.in_pieces(b, place, dtype, ty)
        words = float32_to_pairs(b, unpack(b, tile), dtype)
        size = DTYPES[dtype]
        per_pair = max(1, size // 2)

        def one_by_one(b: ir.IRBuilder, rest: ir.Value, stride: ir.Value, *values: ir.Value) -> None:
            rows, exists, words = (unpack(b, b.load(pointer)) for pointer in values)
            places = self.single_elements(b, rows, [b.trunc(x, I1) for x in exists], rest, stride, ty)
            for (address, there), bits in zip(places, split_pairs(b, words, dtype), strict=True):
                store_bits(b, address, bits, there, size)

        with b.if_else(regular) as (yes, no):
            with yes:
                if is_line(ty) and size in (2, 4):
                    left = iter(words)
                    for address, there in Lines.pieces(b, place, dtype, ty):
                        store_piece(b, address, list(itertools.islice(left, nbytes // 4)), there)
                for i, half, j, address, there in () if is_line(ty) else self.pieces(b, place, dtype, ty, nbytes):
                    pairs = [(i * (columns_of(ty) // 8) + j + k) * 2 + half for k in range(4 if nbytes == 16 else 1)]
                    piece = [words[at * per_pair + k] for at in pairs for k in range(per_pair)]
                    if nbytes == 2:
                        store_bits(b, address, piece[0], there, nbytes)
                    else:
                        store_piece(b, address, transpose_quad(b, piece) if nbytes == 16 else piece, there)
            with no:
                arrays = []
                for values in (place.rows, [b.zext(x, I32) for x in place.exists], words):
                    arrays.append(stack(b, ir.ArrayType(values[0].type, len(values))))
                    b.store(pack(b, values), arrays[-1])
                name = f"store_one_by_one_{self.shape_name(ty)}_{dtype}"
                call_outlined(b, name, [place.rest, place.stride, *arrays], one_by_one)
        return context.get_dummy_value()

    def copy(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return x  # an SSA value
