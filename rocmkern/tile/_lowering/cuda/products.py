"""Products: of 16-bit elements with matrix instructions, of float32 by FMAs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from rocmkern.tile._lowering.cuda.backend import TILE
from rocmkern.tile._lowering.cuda.emit import (
    LANES,
    any_in_block,
    any_in_warp,
    call_outlined,
    fabs,
    lane_index,
    pack,
    shuffle,
    stack,
    tree,
    unpack,
)
from rocmkern.tile._lowering.cuda.layouts import (
    OwnStage,
    StageModel,
    StoredOperand,
    column_of_lane,
    elements_of,
    first_row,
    is_packed,
    m_tiles,
    row_of_lane,
    rows_of_stage,
    storage,
    stored_row,
    warps_of_rows,
    worker_of,
)
from rocmkern.tile._lowering.cuda.matrix import Halves, mma, wgmma
from rocmkern.tile._lowering.cuda.matvec import MatvecLowering
from rocmkern.tile._lowering.cuda.rings import (
    MappedTensor,
    PendingTile,
    RingStage,
    complete,
    index_mapped,
    note_started,
    swap_mapped,
)
from rocmkern.tile._lowering.cuda.windows import SLAB_ROW, Chunks, is_for_groups, ldmatrix, load_shared, own_part, pitch
from rocmkern.tile._lowering.shared.ir_types import F32, I32, const
from rocmkern.tile._lowering.shared.tensors import fma, if_else
from rocmkern.tile.language.kinds import DTYPES


class CudaLowering(MatvecLowering):
    """Products, and with them all operations; one method each: see `binding.bind`."""

    def operator_getitem(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value) -> ir.Value:
        part = super().operator_getitem(context, b, sig, x, index)
        (ty, index_ty), part_ty = sig.args, sig.return_type
        if not isinstance(part_ty, MappedTensor):
            return part
        numbers = [self.scalar(context, b, t, v, "i64") for t, v in self.index_entries(context, b, index_ty, index)]
        return index_mapped(b, context, ty, x, part_ty, part, numbers)

    def transposed(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, swap: Any) -> ir.Value:
        new = super().transposed(context, b, sig, x, swap)
        ty, new_ty = sig.args[0], sig.return_type
        return swap_mapped(b, context, ty, x, new_ty, new) if isinstance(new_ty, MappedTensor) else new

    def mapped(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, number: Any) -> ir.Value:
        data, shape, strides = self.unpack_tensor(context, b, sig.args[0], x)
        return self.pack_tensor(context, b, sig.return_type, data, shape, strides)

    def window(self, context: Any, b: ir.IRBuilder, ty: Any, stage: ir.Value) -> ir.Value:
        self.unsettle(b)
        return cgutils.create_struct_proxy(ty)(context, b, stage).window

    def accumulator(self, b: ir.IRBuilder, sig: Any, acc: tuple) -> list[ir.Value]:
        if acc:
            pending = isinstance(sig.args[-1], PendingTile) and not isinstance(sig.return_type, PendingTile)
            return unpack(b, complete(b, acc[0]) if pending else acc[0])
        return [const(F32, 0.0)] * storage(sig.return_type).count

    def dot_nt(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        a_ty, b_ty = sig.args[:2]
        into = self.accumulator(b, sig, acc)
        window = self.window(context, b, b_ty, right)
        if is_packed(a_ty):
            part = own_part(b, b_ty, window)
            return pack(b, self.product(b, sig.return_type, a_ty, left, *part, into, by_rows=True))
        address = b.add(window, b.mul(column_of_lane(b), const(I32, pitch(b_ty))))
        for k in range(0, a_ty.k, 4):
            words = [
                load_shared(b, address, (8 * j + e) * pitch(b_ty) + 4 * k, 4)
                for j in range(b_ty.n // 8)
                for e in (0, 1)
            ]
            for i, numbers in enumerate(self.four_columns(b, a_ty, left, k)):
                into = self.fma_step(b, sig.return_type, numbers, [w[i] for w in words], into)
        return pack(b, into)

    def dot_nn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        a_ty, b_ty = sig.args[:2]
        into = self.accumulator(b, sig, acc)
        window = self.window(context, b, b_ty, right)
        if is_packed(a_ty):
            part = own_part(b, b_ty, window)
            return pack(b, self.product(b, sig.return_type, a_ty, left, *part, into, by_rows=False))
        for k in range(0, a_ty.k, 4):
            for i, numbers in enumerate(self.four_columns(b, a_ty, left, k)):
                into = self.fma_step(b, sig.return_type, numbers, self.row_words(b, b_ty, window, k + i), into)
        return pack(b, into)

    def dot_tn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        ty, (a_ty, b_ty) = sig.return_type, sig.args[:2]
        into = self.accumulator(b, sig, acc)
        source, window = self.window(context, b, a_ty, left), self.window(context, b, b_ty, right)
        left_side = SimpleNamespace(m=ty.m, k=a_ty.n, dtype=a_ty.dtype, hw=ty.hw)
        if is_packed(a_ty):
            lane = lane_index(b)
            row = b.or_(b.and_(lane, const(I32, 7)), b.lshr(b.and_(lane, const(I32, 16)), const(I32, 1)))
            column = b.or_(first_row(b, ty), b.and_(lane, const(I32, 8)))
            chunks = Chunks(b, a_ty, source, row, b.lshr(column, const(I32, 3)))

            def fragment(i: int, k: int) -> list[ir.Value]:
                return ldmatrix(b, *chunks.at(16 * k, 2 * i), transposed=True)

            fragments = self.fragments_of_columns(b, b_ty, window)
            return pack(b, self.multiply(b, ty, left_side, fragment, fragments, into))
        address = b.add(source, b.shl(b.add(first_row(b, ty), row_of_lane(b)), const(I32, 2)))
        for k in range(a_ty.n):
            numbers = [load_shared(b, address, k * pitch(a_ty) + 32 * slot)[0] for slot in range(2 * m_tiles(ty))]
            into = self.fma_step(b, ty, numbers, self.row_words(b, b_ty, window, k), into)
        return pack(b, into)

    def left(self, b: ir.IRBuilder, ty: Any, value: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """The A fragment of m-tile i and columns 16 k .. 16 k + 16 of an operand, or of a stage."""
        if isinstance(ty, TILE.Stage):
            return self.fragments_of_stage(b, ty, value)
        if isinstance(ty, StoredOperand):
            return self.fragments_of_stored(b, ty, value)
        return self.fragment_of(ty, unpack(b, value))

    def fragments_of_stage(self, b: ir.IRBuilder, ty: Any, stage: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """`left` of a stage: the rows of this warp."""
        lane = lane_index(b)
        row = b.add(first_row(b, rows_of_stage(ty)), b.and_(lane, const(I32, 15)))
        chunks = Chunks(b, ty, self.left_window(b, ty, stage), row, b.lshr(lane, const(I32, 4)))
        return lambda i, k: ldmatrix(b, *chunks.at(16 * i, 2 * k), transposed=False)

    def left_window(self, b: ir.IRBuilder, ty: Any, stage: ir.Value) -> ir.Value:
        """Address of the window in use of a stage on the left."""
        self.unsettle(b)
        return b.extract_value(stage, 0 if isinstance(ty, RingStage) else StageModel.MEMBERS.index("window"))

    @staticmethod
    def fragment_of(ty: Any, registers: list[ir.Value]) -> Callable[[int, int], list[ir.Value]]:
        """`left` of an operand whose registers are at hand."""
        steps = ty.k // 16
        return lambda i, k: registers[4 * (i * steps + k) : 4 * (i * steps + k) + 4]

    @staticmethod
    def fragments_of_stored(b: ir.IRBuilder, ty: Any, address: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """`left` of an operand in shared memory."""
        lane, warps = lane_index(b), warps_of_rows(ty)
        row = b.add(stored_row(b, ty), b.and_(lane, const(I32, 15)))
        chunks = Chunks(b, ty.window, address, row, b.lshr(lane, const(I32, 4)))
        return lambda i, k: ldmatrix(b, *chunks.at(16 * warps * i, 2 * k), transposed=False)

    def registers(self, b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
        """All fragments of an operand."""
        fragment = self.left(b, ty, value)
        return [x for i in range(m_tiles(ty)) for k in range(ty.k // 16) for x in fragment(i, k)]

    @staticmethod
    def fragments_of_rows(b: ir.IRBuilder, ty: Any, window: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """B fragments of ``window.T``: (k, j) gives those of rows 16 k and columns 16 j, a row of the window."""
        lane = lane_index(b)
        row = b.or_(b.and_(lane, const(I32, 7)), b.lshr(b.and_(lane, const(I32, 16)), const(I32, 1)))
        chunks = Chunks(b, ty, window, row, b.and_(b.lshr(lane, const(I32, 3)), const(I32, 1)))
        return lambda k, j: ldmatrix(b, *chunks.at(16 * j, 2 * k), transposed=False)

    @staticmethod
    def fragments_of_columns(b: ir.IRBuilder, ty: Any, window: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """B fragments of the window itself: (k, j) gives those of rows 16 k and columns 16 j."""
        lane = lane_index(b)
        chunks = Chunks(b, ty, window, b.and_(lane, const(I32, 15)), b.lshr(lane, const(I32, 4)))
        return lambda k, j: ldmatrix(b, *chunks.at(16 * k, 2 * j), transposed=True)

    def product(
        self, b: ir.IRBuilder, ty: Any, a_ty: Any, left: ir.Value, b_ty: Any, window: ir.Value, acc: list, by_rows: bool
    ) -> list[ir.Value]:
        """acc + left @ window.T (``by_rows``) or left @ window."""
        if isinstance(a_ty, TILE.Stage) and is_for_groups(a_ty) and is_for_groups(b_ty) and m_tiles(ty) == 1:
            into = None if all(isinstance(x, ir.Constant) for x in acc) else acc
            both, started = (a_ty, self.left_window(b, a_ty, left)), isinstance(ty, PendingTile)
            if started:
                note_started(b)
            return wgmma(b, b_ty, window, both, range(a_ty.k // 16), into, by_rows, wait=not started)
        if is_for_groups(b_ty) and isinstance(a_ty, StoredOperand):
            step = 16 * warps_of_rows(a_ty) * SLAB_ROW
            return self.multiply_by_groups(
                b, ty, a_ty, lambda i: (a_ty.window, b.add(left, const(I32, i * step))), b_ty, window, acc, by_rows
            )
        fragment = self.left(b, a_ty, left)
        if is_for_groups(b_ty):
            steps = range(a_ty.k // 16)
            return self.multiply_by_groups(
                b, ty, a_ty, lambda i: [fragment(i, k) for k in steps], b_ty, window, acc, by_rows
            )
        fragments = self.fragments_of_rows if by_rows else self.fragments_of_columns
        return self.multiply(b, ty, a_ty, fragment, fragments(b, b_ty, window), acc)

    @staticmethod
    def multiply_by_groups(
        b: ir.IRBuilder, ty: Any, a_ty: Any, left: Callable, b_ty: Any, window: ir.Value, acc: list, by_rows: bool
    ) -> list[ir.Value]:
        """`product` by wgmma: four warps multiply their 64 rows together, and read the window themselves.

        ``left`` gives the left side of an m-tile, as `wgmma` takes it.
        """
        per_row, steps = len(acc) // m_tiles(ty), range(a_ty.k // 16)
        fresh = all(isinstance(x, ir.Constant) for x in acc)
        result = []
        for i in range(m_tiles(ty)):
            rows = None if fresh else acc[i * per_row : (i + 1) * per_row]
            result += wgmma(b, b_ty, window, left(i), steps, rows, by_rows)
        return result

    @staticmethod
    def multiply(
        b: ir.IRBuilder, ty: Any, a_ty: Any, left: Callable, right: Callable, acc: list[ir.Value]
    ) -> list[ir.Value]:
        """acc + left @ right by mma.sync; ``left(i, k)`` and ``right(k, j)`` give fragments, 16 columns at a time."""
        acc, groups = list(acc), ty.n // 8
        for k in range(a_ty.k // 16):
            rows = [left(i, k) for i in range(m_tiles(ty))]
            for j in range(ty.n // 16):
                columns = right(k, j)
                for i, fragment in enumerate(rows):
                    for half in (0, 1):
                        at = 4 * (i * groups + 2 * j + half)
                        acc[at : at + 4] = mma(
                            b, fragment, columns[2 * half : 2 * half + 2], acc[at : at + 4], a_ty.dtype
                        )
        return acc

    def dot_nn_where(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, acc: Any) -> ir.Value:
        ty, (a_ty, b_ty) = sig.return_type, sig.args[:2]
        window, into = self.window(context, b, b_ty, right), unpack(b, acc)
        if not is_packed(a_ty):
            zero = const(F32, 0.0)
            for k in range(a_ty.k):
                numbers, words = self.broadcast(b, a_ty, left, k), self.row_words(b, b_ty, window, k)
                unseen = [b.fcmp_ordered("==", p, zero) for p in numbers]
                into = self.fma_step(
                    b, ty, numbers, words, into, lambda slot, v, unseen=unseen: b.select(unseen[slot], zero, v)
                )
            return pack(b, into)

        def whole() -> list[ir.Value]:
            return self.product(b, ty, a_ty, left, *part, into, by_rows=False)

        part = part_ty, own = own_part(b, b_ty, window)

        def visible() -> list[ir.Value]:
            arrays = self.registers(b, a_ty, left), into
            places = [stack(b, ir.ArrayType(values[0].type, len(values))) for values in arrays]
            for values, place in zip(arrays, places, strict=True):
                b.store(pack(b, values), place)
            name = f"multiply_visible_{a_ty.m}_{a_ty.k}_{b_ty.k}_{a_ty.dtype}"
            call_outlined(b, name, [own, *places], functools.partial(self.multiply_visible, ty, a_ty, part_ty))
            return unpack(b, b.load(places[1]))

        # The same in all threads, which the compiler sees of a vote only.
        if isinstance(b_ty, OwnStage):
            special = any_in_warp(b, self.window_has_not_finite(b, part_ty, own))
        else:
            special = any_in_warp(b, any_in_block(b, self.window_has_not_finite(b, b_ty, window)))
        return pack(b, if_else(b, special, visible, whole))

    @staticmethod
    def window_has_not_finite(b: ir.IRBuilder, ty: Any, window: ir.Value) -> ir.Value:
        """Whether this thread's share of a window holds NaN or infinity."""
        threads, halves, worker = LANES * ty.hw[1], Halves(b, ty.dtype), worker_of(b, ty)
        chunks = ty.k * DTYPES[ty.dtype] // 16
        total = ty.n * chunks
        flags = []
        for first in range(0, total, threads):
            at = b.add(worker, const(I32, first))
            if first + threads > total:
                at = b.select(b.icmp_signed("<", at, const(I32, total)), at, const(I32, total - 1))
            row, chunk = b.udiv(at, const(I32, chunks)), b.urem(at, const(I32, chunks))
            address = Chunks(b, ty, window, row, chunk).first
            flags += [halves.not_finite(x) for x in load_shared(b, address, 0, 4, I32)]
        return b.icmp_signed("!=", tree(b, flags, b.or_), const(I32, 0))

    @staticmethod
    def multiply_visible(
        ty: Any, a_ty: Any, b_ty: Any, b: ir.IRBuilder, window: ir.Value, left: ir.Value, acc: ir.Value
    ) -> None:
        """Add left @ window to acc, where 0 times anything is 0; ``left`` and ``acc`` are addresses of registers.

        The finite numbers are multiplied as they are. Two more products, of signs and of ones, count the visible
        infinities of each direction and the visible numbers that are not finite: where the counts agree the result is
        that infinity, where they do not it is NaN.

        It is a loop over 16 columns, and all but those stays in memory: the caller's registers are spilled for what a
        function needs, whether it is called or not.
        """
        halves, zero, zero_index = Halves(b, a_ty.dtype), const(F32, 0.0), const(I32, 0)
        groups, tiles, steps = ty.n // 8, m_tiles(ty), a_ty.k // 16
        lane = lane_index(b)
        row, chunk = b.and_(lane, const(I32, 15)), b.lshr(lane, const(I32, 4))
        with cgutils.for_range(b, const(I32, ty.n // 16)) as loop:
            chunks = Chunks(b, b_ty, window, row, b.add(chunk, b.shl(loop.index, const(I32, 1))))
            sums = {(i, half): [zero] * 4 for i in range(tiles) for half in (0, 1)}
            counts = dict(sums)
            places = {}
            for i, half in sums:
                first = b.add(b.shl(loop.index, const(I32, 3)), const(I32, 4 * (i * groups + half)))
                places[i, half] = [b.gep(acc, [zero_index, b.add(first, const(I32, e))]) for e in range(4)]
            totals = {key: [b.load(place) for place in four] for key, four in places.items()}
            for k in range(steps):
                columns = ldmatrix(b, *chunks.at(16 * k), transposed=True)
                finite = [halves.finite_or_zero(x) for x in columns]
                directions = [halves.infinity_direction(x) for x in columns]
                ones = [halves.not_finite_one(x) for x in columns]
                for i in range(tiles):
                    at = 4 * (i * steps + k)
                    fragment = [b.load(b.gep(left, [zero_index, const(I32, at + e)])) for e in range(4)]
                    signs = [halves.direction(x) for x in fragment]
                    sizes = [halves.size_direction(x) for x in fragment]
                    for half in (0, 1):
                        part = slice(2 * half, 2 * half + 2)
                        totals[i, half] = mma(b, fragment, finite[part], totals[i, half], a_ty.dtype)
                        sums[i, half] = mma(b, signs, directions[part], sums[i, half], a_ty.dtype)
                        counts[i, half] = mma(b, sizes, ones[part], counts[i, half], a_ty.dtype)
            for key, four in places.items():
                for place, total, direction, count in zip(four, totals[key], sums[key], counts[key], strict=True):
                    infinity = b.select(
                        b.fcmp_ordered(">", direction, zero), const(F32, float("inf")), const(F32, float("-inf"))
                    )
                    agree = b.fcmp_ordered("==", fabs(b, direction), count)
                    extra = b.select(agree, infinity, const(F32, float("nan")))
                    seen = b.fcmp_ordered(">", count, zero)
                    b.store(b.select(seen, b.fadd(total, extra), total), place)

    @staticmethod
    def broadcast(b: ir.IRBuilder, ty: Any, value: ir.Value, k: int) -> list[ir.Value]:
        """Column k of an operand, for each row of this lane: it lies in one lane of the quad."""
        owner = b.or_(b.and_(lane_index(b), const(I32, 28)), const(I32, k % 8 // 2))
        at = [(i * (ty.k // 8) + k // 8) * 4 + 2 * half + k % 2 for i in range(m_tiles(ty)) for half in (0, 1)]
        return [shuffle(b, b.extract_value(value, i), owner) for i in at]

    def four_columns(self, b: ir.IRBuilder, ty: Any, value: ir.Value, k: int) -> list[list[ir.Value]]:
        """Columns k .. k + 4 of an operand or of a stage, each for all rows of this lane."""
        if not isinstance(ty, TILE.Stage):
            return [self.broadcast(b, ty, value, k + i) for i in range(4)]
        rows = rows_of_stage(ty)
        row = b.add(first_row(b, rows), row_of_lane(b))
        address = b.add(self.left_window(b, ty, value), b.mul(row, const(I32, pitch(ty))))
        loaded = [load_shared(b, address, 8 * slot * pitch(ty) + 4 * k, 4) for slot in range(2 * m_tiles(rows))]
        return [[words[i] for words in loaded] for i in range(4)]

    @staticmethod
    def row_words(b: ir.IRBuilder, ty: Any, window: ir.Value, row: int) -> list[ir.Value]:
        """This lane's columns of a window's row."""
        address = b.add(window, b.shl(column_of_lane(b), const(I32, 2)))
        return [w for j in range(ty.k // 8) for w in load_shared(b, address, row * pitch(ty) + 32 * j, 2)]

    @staticmethod
    def fma_step(
        b: ir.IRBuilder, ty: Any, numbers: list, words: list, acc: list, see: Callable = lambda slot, v: v
    ) -> list[ir.Value]:
        """acc + the outer product of a column of the left side and a row of the right side."""
        return [
            fma(b, numbers[slot], see(slot, words[c // 8 * 2 + c % 2]), x)
            for (slot, c), x in zip(elements_of(ty), acc, strict=True)
        ]
