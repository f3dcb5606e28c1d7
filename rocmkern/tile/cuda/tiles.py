"""Tiles: loads and stores, row reductions, elementwise operations, masks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.cuda.core.errors import TypingError

from rocmkern.tile.angles import cos_sin, is_still, rotated, turned
from rocmkern.tile.cuda.backend import TILE
from rocmkern.tile.cuda.emit import (
    ACTIVATIONS,
    LANES,
    any_in_warp,
    call_outlined,
    dot,
    exp2,
    fabs,
    fma,
    fmax,
    outlined,
    over_lanes,
    pack,
    split_at,
    stack,
    thread,
    transpose_quad,
    tree,
    unpack,
)
from rocmkern.tile.cuda.layouts import (
    Lines,
    column_of_lane,
    columns_of,
    complete_rows,
    elements_of,
    is_line,
    is_shared,
    keys_of_warp,
    m_tiles,
    slots_of,
    storage,
    warps_of_rows,
)
from rocmkern.tile.cuda.memory import (
    float32_to_pairs,
    join_pairs,
    load_bits,
    load_piece,
    pairs_to_float32,
    split_pairs,
    store_bits,
    store_piece,
)
from rocmkern.tile.cuda.quantized import (
    Load,
    decode_unit,
    ends_within_word,
    load_again,
    load_from,
    reaches_beyond,
    runs_of_unit,
)
from rocmkern.tile.cuda.rows import RowLowering
from rocmkern.tile.folds import FoldLowering
from rocmkern.tile.formats import FORMATS, Run
from rocmkern.tile.language.kinds import DTYPES, threads_per_row
from rocmkern.tile.tensors import F32, I1, I32, I64, call, const, if_else


class TileLowering(FoldLowering, RowLowering):
    """Operations on tiles."""

    def map_tile(self, b: ir.IRBuilder, value: ir.Value, emit: Callable) -> ir.Value:
        return pack(b, [emit(v) for v in unpack(b, value)])

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

    def by_slot(self, ty: Any, values: list[ir.Value]) -> list[list[ir.Value]]:
        """This lane's values of each of its rows."""
        rows: list[list[ir.Value]] = [[] for _ in range(slots_of(ty))]
        for (slot, _), v in zip(elements_of(ty), values, strict=True):
            rows[slot].append(v)
        return rows

    def rowmax(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        return self.reduce_rows(b, sig.args[0], tile, functools.partial(fmax, b))

    def in_lane(self, b: ir.IRBuilder, ty: Any, x: ir.Value) -> list[ir.Value]:
        return complete_rows(b, ty, x) if isinstance(ty, TILE.Rows) else unpack(b, x)

    def of_lane(self, b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        return pack(b, values)

    def larger(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        return fmax(b, x, y)

    def rowsum(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        return self.reduce_rows(b, sig.args[0], tile, b.fadd)

    def reduce_rows(self, b: ir.IRBuilder, ty: Any, tile: ir.Value, combine: Callable) -> ir.Value:
        rows = self.by_slot(ty, unpack(b, tile))
        return pack(b, [self.over_row(b, ty, tree(b, row, combine), combine) for row in rows])

    def over_row(self, b: ir.IRBuilder, ty: Any, value: ir.Value, combine: Callable) -> ir.Value:
        """Combine what the lanes of a row have."""
        lanes = threads_per_row(ty.hw) or 4
        return self.over_warps(b, over_lanes(b, value, combine, lanes), combine, max(1, lanes // LANES))

    def rowdot(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        ty = sig.args[0]
        rows = zip(*(self.by_slot(ty, unpack(b, each)) for each in (x, y)), strict=True)
        return pack(b, [self.over_row(b, ty, dot(b, *pair), b.fadd) for pair in rows])

    def load_rowdot(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        (x_ty, index_ty, col0_ty, ty), valid_ty = sig.args[:4], sig.args[4]
        whole = TILE.Tile(valid_ty.m, ty.n, ty.hw)
        rows = self.by_slot(ty, unpack(b, tile))
        if not is_line(ty) and whole != ty:
            raise TypingError("load_rowdot: a tile of fewer rows needs rows along lanes")
        rows = rows * (whole.m // ty.m)
        inner = SimpleNamespace(args=(None, x_ty, index_ty, col0_ty), return_type=whole)
        if isinstance(x_ty, TILE.Quantized) and is_line(ty):
            return pack(b, self.quantized_rowdots(context, b, inner, x, index, col0, rows, valid))
        if isinstance(x_ty, TILE.Quantized):
            values = unpack(b, self.load_quantized(context, b, inner, x, index, col0, valid))
        else:
            values = pairs_to_float32(b, self.gather(context, b, inner, x, index, col0, valid), x_ty.dtype)
        sums = [dot(b, *pair) for pair in zip(self.by_slot(whole, values), rows, strict=True)]
        return pack(b, sums if is_line(ty) else [over_lanes(b, x, b.fadd) for x in sums])

    def quantized_rowdots(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, rows: list, valid: Any
    ) -> list[ir.Value]:
        """This lane's part of `load_rowdot` of a quantized source, for rows along lanes.

        The bytes of all rows are on their way before the first one is looked at. What does not exist is read as zeros,
        which all formats decode to finite numbers; the tile is zero there.
        """
        (x_ty, index_ty, col0_ty), ty = sig.args[1:4], sig.return_type
        addresses, (count, extent), strides = self.row_addresses(context, b, x_ty, x, index_ty, index, ty)
        kind, wide, valid = FORMATS[x_ty.format], Lines.wide(ty), unpack(b, valid)
        unit = min(wide, kind.group)
        # Parts of each row: first element in the lane's part of it, and its column: behind ``col0`` and the lane's
        # first one a multiple of a power of two and a smaller number.
        power = wide & -wide
        starts = [
            (number * wide + e, c + e - e % power, e % power)
            for number, c in enumerate(range(0, columns_of(ty), Lines.width(ty)))
            for e in range(0, wide, unit)
        ]
        col0, column = self.scalar(context, b, col0_ty, col0, "i64"), column_of_lane(b, ty)
        column = b.add(col0, b.zext(column, I64))
        columns = [(b.add(column, const(I64, c)), (rest, power)) for _, c, rest in starts]

        def runs_by(load: Load, address: ir.Value, column: ir.Value, beside: tuple) -> list[Run]:
            return runs_of_unit(b, x_ty.format, address, column, unit, load, x_ty.alignment, beside)

        places = [(address, *place) for address in addresses for place in columns]
        lengths: list[int] = []

        def loaded(cautious: bool) -> list[ir.Value]:
            inside = [b.icmp_signed("<", b.add(c, const(I64, beside[0])), extent) for c, beside in columns]
            words: list[ir.Value] = []
            lengths.clear()
            for place, there in zip(places, itertools.product(valid, inside), strict=True):
                raw: list[list[ir.Value]] = []
                runs_by(load_from(b, b.and_(*there), raw, cautious), *place)
                lengths.append(sum(map(len, raw)))
                words += itertools.chain(*raw)
            return words

        ragged = const(I1, 0)
        if reaches_beyond(x_ty.format, unit, x_ty.alignment):
            data = b.ptrtoint(self.unpack_tensor(context, b, x_ty, x)[0], I64)
            ragged = ends_within_word(b, x_ty.format, data, count, strides[0], extent)
        parts = split_at(if_else(b, ragged, lambda: loaded(True), lambda: loaded(False)), lengths)
        units = [runs_by(load_again(words), *place) for words, place in zip(parts, places, strict=True)]
        values = [[row[place : place + unit] for place, *_ in starts] for row in rows]
        by_row = split_at(units, [len(columns)] * len(addresses))
        return [self.dot_of_runs(b, *pair) for pair in zip(by_row, values, strict=True)]

    @staticmethod
    def dot_of_runs(b: ir.IRBuilder, units: list, values: list) -> ir.Value:
        """Sum of products of units of a row, each of runs that share a scale, and values."""
        total = const(F32, 0.0)
        for runs, numbers in zip(units, values, strict=True):
            shared = runs[0]
            part = dot(b, [number for run in runs for number in run.numbers], numbers)
            if shared.factor != 1:
                part = b.fmul(part, const(F32, shared.factor))
            total = fma(b, part, shared.scale, total)
            if shared.minimum is not None:
                total = fma(b, tree(b, numbers, b.fadd), b.fmul(shared.minimum, const(F32, -1.0)), total)
        return total

    def exp2(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        values = complete_rows(b, sig.args[0], x) if isinstance(sig.args[0], TILE.Rows) else unpack(b, x)
        return pack(b, [exp2(b, v) for v in values])

    def copy(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return x  # an SSA value

    def tanh(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.map_tile(b, x, lambda v: call(b, "__nv_tanhf", F32, [v]))

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        return pack(b, pairs_to_float32(b, float32_to_pairs(b, unpack(b, x), dtype), dtype))

    def pad_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, col0: Any, stop: Any, value: Any
    ) -> ir.Value:
        first = self.columns_from(context, b, sig.args[1], col0, sig.args[0])
        left = b.sub(self.scalar(context, b, sig.args[2], stop, "i32"), first)
        filling = self.scalar(context, b, sig.args[3], value, "f32")
        pairs = zip(elements_of(sig.args[0]), unpack(b, tile), strict=True)
        return pack(b, [b.select(b.icmp_signed("<", const(I32, c), left), v, filling) for (_, c), v in pairs])

    def activation(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, name: str) -> ir.Value:
        emit = getattr(ACTIVATIONS, name)
        values = complete_rows(b, sig.args[0], x) if isinstance(sig.args[0], TILE.Rows) else unpack(b, x)
        return pack(b, [emit(b, v) for v in values])

    silu = functools.partialmethod(activation, name="silu")

    gelu = functools.partialmethod(activation, name="gelu")

    gelu_tanh = functools.partialmethod(activation, name="gelu_tanh")

    relu = functools.partialmethod(activation, name="relu")

    def absolute(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.map_tile(b, x, lambda v: fabs(b, v))

    def at_least(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, bound: ir.Value) -> ir.Value:
        ty, bound_ty = sig.args
        least = self.per_slot(context, b, bound_ty, bound, TILE.Rows(ty.m, "f32", ty.hw))
        values = []
        for (s, _), v in zip(elements_of(ty), unpack(b, tile), strict=True):
            values.append(b.select(b.fcmp_ordered(">=", v, least[s]), const(F32, 1.0), const(F32, 0.0)))
        return pack(b, values)

    def columns_from(self, context: Any, b: ir.IRBuilder, ty: Any, col0: ir.Value, tile: Any = None) -> ir.Value:
        """``col0`` (of numba type ``ty``) plus this lane's first column of a tile, i32."""
        return b.add(self.scalar(context, b, ty, col0, "i32"), column_of_lane(b, tile))

    def rotations(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any
    ) -> ir.Value:
        ty = sig.return_type[0]
        data, (extent,), (stride,) = self.unpack_tensor(context, b, sig.args[2], frequencies)
        first = b.add(self.scalar(context, b, sig.args[3], col0, "i64"), b.zext(column_of_lane(b, ty), I64))
        start, rest = b.add(b.ptrtoint(data, I64), b.mul(first, stride)), b.sub(extent, first)
        turns = {}
        for c in sorted({c for _, c in elements_of(ty)}):
            exists = b.icmp_signed(">", rest, const(I64, c))
            turns[c] = load_bits(b, b.add(start, b.mul(stride, const(I64, c))), "int64", exists)
        rows = unpack(b, position)
        pairs = [cos_sin(b, rows[slot], turns[c]) for slot, c in elements_of(ty)]
        return context.make_tuple(b, sig.return_type, [pack(b, list(part)) for part in zip(*pairs, strict=True)])

    def rotate(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, cos: Any, sin: Any) -> ir.Value:
        values = list(zip(*(unpack(b, t) for t in (x, y, cos, sin)), strict=True))
        # Lanes that turn every point are the rule, and need not choose.
        still = tree(b, [is_still(b, sine) for *_, sine in values], b.or_)

        def by(emit: Callable) -> Callable:
            return lambda: [x for each in values for x in emit(b, *each)]

        flat = if_else(b, any_in_warp(b, still), by(rotated), by(turned))
        points = list(zip(flat[::2], flat[1::2], strict=True))
        return context.make_tuple(b, sig.return_type, [pack(b, list(part)) for part in zip(*points, strict=True)])

    def distance(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: ir.Value, col0: ir.Value, n: Any
    ) -> ir.Value:
        ty = sig.return_type
        first = b.add(self.columns_from(context, b, sig.args[2], col0, ty), keys_of_warp(b, ty, ty.n))
        before = [b.sub(p, first) for p in unpack(b, position)]
        return pack(b, [b.sitofp(b.sub(before[s], const(I32, c)), F32) for s, c in elements_of(sig.return_type)])

    def mask_outside(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: ir.Value, low: ir.Value, high: ir.Value
    ) -> ir.Value:
        ty = sig.args[0]
        first = b.add(self.columns_from(context, b, sig.args[1], col0, ty), keys_of_warp(b, ty, ty.n))
        lowest, highest = ([b.sub(x, first) for x in unpack(b, bound)] for bound in (low, high))
        values = []
        for (s, c), v in zip(elements_of(sig.args[0]), unpack(b, tile), strict=True):
            column = const(I32, c)
            inside = b.and_(b.icmp_signed("<=", lowest[s], column), b.icmp_signed("<=", column, highest[s]))
            values.append(b.select(inside, v, const(F32, float("-inf"))))
        return pack(b, values)

    def mask_where(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, visible: ir.Value) -> ir.Value:
        def emit(v: ir.Value, seen: ir.Value) -> ir.Value:
            return b.select(b.fcmp_ordered("==", seen, const(F32, 0.0)), const(F32, float("-inf")), v)

        return pack(b, [emit(*pair) for pair in zip(unpack(b, tile), unpack(b, visible), strict=True)])

    def multiply_add(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, factor: ir.Value, summand: ir.Value
    ) -> ir.Value:
        return pack(b, [fma(b, *each) for each in zip(*(unpack(b, x) for x in (tile, factor, summand)), strict=True)])
