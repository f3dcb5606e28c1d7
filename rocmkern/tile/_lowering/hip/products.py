"""Products: with matrix instructions, and of float32 by FMAs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.hip.backend import TILE
from rocmkern.tile._lowering.hip.emit import (
    LOCAL,
    Lane,
    any_lane,
    array_of,
    elements_of,
    flat,
    from_group,
    if_then,
    in_blocks,
    loop,
    math,
    opaque,
    pinned,
    pipelined,
    schedule_no_further,
    shared_code,
    splat,
    tree,
    vector_of,
    wave_index,
)
from rocmkern.tile._lowering.hip.layouts import LaneLayout, Parked, Window, operand_element
from rocmkern.tile._lowering.hip.matvec import MatvecLowering
from rocmkern.tile._lowering.hip.memory import CHUNK_BYTES, in_space, load_from, memory_int, widen
from rocmkern.tile._lowering.hip.spots import Spot
from rocmkern.tile._lowering.shared.atoms import Atom
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I32, const
from rocmkern.tile._lowering.shared.tensors import call

#: Bit patterns of infinity.
INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}


def _matrix_instruction(b: ir.IRBuilder, window: Window, right: ir.Value, left: ir.Value, total: ir.Value) -> ir.Value:
    """``total + right @ left`` for one tile each."""
    atom, name = window.atom, window.atom.intrinsics[window.dtype]
    if isinstance(total, ir.Constant) and "wmma" in name:
        # LLVM keeps a tile of zeros in registers to start from, though the instruction takes a constant.
        instruction = "v_" + "_".join(name.split(".")[2:6])
        ty = ir.FunctionType(total.type, [right.type, left.type])
        return b.call(ir.InlineAsm(ty, f"{instruction} $0, $1, $2, 0", "=&v,v,v"), [right, left])
    takes = atom.takes.get(window.dtype, atom.run)
    for x, y in zip(_pieces(b, right, takes), _pieces(b, left, takes), strict=True):
        total = call(b, name, total.type, [x, y, total, *[const(I32, 0)] * atom.trailing])
    return total


def _pieces(b: ir.IRBuilder, run: ir.Value, size: int) -> list[ir.Value]:
    """A vector cut into vectors of so many elements; elements where it is one."""
    count = run.type.count
    if size == count:
        return [run]
    if size == 1:
        return list(elements_of(b, run))
    undefined = ir.Constant(run.type, ir.Undefined)
    places = [ir.Constant(ir.VectorType(I32, size), list(range(i, i + size))) for i in range(0, count, size)]
    return [b.shuffle_vector(run, undefined, place) for place in places]


class HipLowering(MatvecLowering):
    """Products, and with them all operations; one method each: see `binding.bind`."""

    def dot_nt(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, st: Any, acc: Any = None) -> ir.Value:
        return self.product(b, sig, left, st, acc, 0, self.fma_nt)

    def dot_nn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, st: Any, acc: Any = None) -> ir.Value:
        return self.product_nn(b, sig, left, st, acc, const(I1, 0))

    def dot_nn_where(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, st: Any, acc: Any) -> ir.Value:
        return self.product_nn(b, sig, left, st, acc, const(I1, 1))

    def product_nn(
        self, b: ir.IRBuilder, sig: Any, left: ir.Value, st: ir.Value, acc: Any, where: ir.Value
    ) -> ir.Value:
        """`dot_nn_where` or `dot_nn`, as ``where`` says at run time."""
        window, out = Window(sig.args[1]), sig.return_type
        if isinstance(sig.args[0], TILE.Stage):
            return self.product(b, sig, left, st, acc, len(window.copies) - 1, self.fma_nn)
        sums, left = self.start_of(b, out, acc), self.operand_blocks(b, sig.args[0], left)
        per_row, columns, copy = len(left[0]), len(sums[0]), len(window.copies) - 1

        def body(b: ir.IRBuilder, args: list, own: list) -> list:
            left, local, where = in_blocks(args[:-1], per_row), args[-1], own[0]

            def multiply(sums: list) -> list:
                if window.matrix:
                    return self.multiply(b, window, left, self.fragments(b, window, local, copy), sums)
                return self.fma_nn(b, window, left, local, sums)

            def exact() -> list:
                return self.exact_nn(b, window, left, local, in_blocks(own[1:], columns))

            (special,) = if_then(b, where, [where], lambda: [self.any_special(b, window, local)])
            tiles = if_then(b, special, own[1:], exact)
            return if_then(b, b.not_(special), tiles, lambda: flat(multiply(in_blocks(tiles, columns))))

        arch, waves, wave_rows = out.hw
        name = f"nn_{arch}_{waves}x{wave_rows}_{window.dtype}_{out.m}x{out.n}x{window.n}"
        args = [*flat(left), self.local(b, st, copy)]
        return array_of(b, shared_code(b, name, args, [where, *flat(sums)], body))

    def operand_blocks(self, b: ir.IRBuilder, ty: Any, value: ir.Value) -> list:
        """Fragments of an operand, or of a stage on the left, for each row block."""
        if isinstance(ty, TILE.Stage):
            return self.stage_blocks(b, ty, value)
        if not Parked.suits(ty):
            return self.tile_blocks(b, ty, value, ty.k)
        parked = Parked(ty)
        return [[self.parked(b, parked, value, r, t) for t in range(parked.steps)] for r in range(parked.row_blocks)]

    def stage_blocks(self, b: ir.IRBuilder, ty: Any, st: ir.Value) -> list:
        """The rows of a stage that belong to this wave, as an operand has them."""
        layout, window, local = LaneLayout(SimpleNamespace(m=ty.n, hw=ty.hw)), Window(ty), self.local(b, st)
        lane, steps = Lane(b, layout.atom), range(ty.k // 16)
        row0 = b.mul(wave_index(b, layout.atom), const(I32, 16 * layout.row_blocks))
        if window.matrix:
            fragment = self.fragments(b, window, local, 0, row0)
            return [[fragment(r, t) for t in steps] for r in range(layout.row_blocks)]
        pitch, run = window.copies[0].pitch, ir.VectorType(F32, layout.atom.registers)
        start = b.add(b.mul(b.add(row0, lane.row), const(I32, pitch)), self.position(b, window, lane.group))
        return [
            [load_from(b, local, b.add(start, const(I32, 16 * r * pitch + 64 * t)), run, 16) for t in steps]
            for r in range(layout.row_blocks)
        ]

    @staticmethod
    def parked(b: ir.IRBuilder, parked: Parked, value: ir.Value, r: int, t: int) -> ir.Value:
        """One fragment of a parked operand."""
        offset = const(I32, (r * parked.steps + t) * parked.slot)
        return load_from(b, in_space(b, value, LOCAL), offset, parked.run, CHUNK_BYTES)

    def product(
        self, b: ir.IRBuilder, sig: Any, left: ir.Value, st: ir.Value, acc: Any, copy: int, fma: Callable
    ) -> ir.Value:
        """``acc + left @ right``; ``copy`` is the copy of the stage that matrix instructions read."""
        window, sums = Window(sig.args[1]), self.start_of(b, sig.return_type, acc)
        if window.matrix:
            fragment = self.fragments(b, window, self.local(b, st, copy), copy)
            if not isinstance(sig.args[0], TILE.Stage) and Parked.suits(sig.args[0]):
                return self.join_blocks(b, self.multiply_parked(b, window, sig.args[0], left, fragment, sums))
            left = self.operand_blocks(b, sig.args[0], left)
            return self.join_blocks(b, self.multiply(b, window, left, fragment, sums))
        left = self.operand_blocks(b, sig.args[0], left)
        sums = fma(b, window, left, self.local(b, st), sums)
        return self.join_blocks(b, [[pinned(b, v) for v in block] for block in sums])

    def start_of(self, b: ir.IRBuilder, out: Any, acc: Any) -> list:
        if acc is None:
            layout = LaneLayout(out)
            zero = ir.Constant(ir.VectorType(F32, layout.atom.registers), None)
            return [[zero] * (out.n // 16) for _ in range(layout.row_blocks)]
        return self.tile_blocks(b, out, acc)

    @staticmethod
    def multiply(b: ir.IRBuilder, window: Window, left: list, fragment: Callable, sums: list) -> list:
        """``sums + left @ right`` by matrix instructions; ``fragment(c, t)`` is tile (t, c) of right, transposed."""
        out = [list(block) for block in sums]

        def use(step: tuple, right: ir.Value) -> None:
            c, t = step
            for r, block in enumerate(left):
                out[r][c] = _matrix_instruction(b, window, right, block[t], out[r][c])

        steps = list(itertools.product(range(len(sums[0])), range(len(left[0]))))
        pipelined(b, steps, lambda step: fragment(*step), use, window.atom.run * window.item_bytes // 4)
        return out

    def multiply_parked(
        self, b: ir.IRBuilder, window: Window, ty: Any, left: ir.Value, fragment: Callable, sums: list
    ) -> list:
        """`multiply` with a left operand in shared memory: each of its fragments is read once."""
        parked, out = Parked(ty), [list(block) for block in sums]
        ours: dict[int, ir.Value] = {}

        def load(step: tuple) -> tuple:
            t, r, c = step
            mine = self.parked(b, parked, left, r, t) if c == 0 else None
            return mine, fragment(c, t)

        def use(step: tuple, loaded: tuple) -> None:
            _, r, c = step
            ours[r] = loaded[0] or ours[r]
            out[r][c] = _matrix_instruction(b, window, loaded[1], ours[r], out[r][c])

        steps = list(itertools.product(range(parked.steps), range(parked.row_blocks), range(len(sums[0]))))
        pipelined(b, steps, load, use, 2 * parked.run_bytes // 4)
        return out

    def fragments(
        self, b: ir.IRBuilder, window: Window, local: ir.Value, copy: int, first: ir.Value | None = None
    ) -> Callable:
        """``fragment(c, t)``: lanes are 16 lines of a copy, from line ``first + 16 c``; runs start at ``16 t``."""
        atom, lane, places = window.atom, Lane(b, window.atom), window.copies[copy].places
        ty, size = ir.VectorType(operand_element(window.dtype), atom.run), window.item_bytes
        inside = b.mul(lane.group, const(I32, size * atom.run_step))

        @functools.cache
        def spot(c: int) -> Spot:
            line = lane.row if first is None else b.add(lane.row, b.add(first, const(I32, 16 * c)))
            return Spot.of(b, places, line, inside).here()

        def fragment(c: int, t: int) -> ir.Value:
            # What is first may have bits in common with 16 c.
            here = spot(0).at(16 * c, 16 * size * t) if first is None else spot(c).at(0, 16 * size * t)
            return load_from(b, local, here, ty, min(size * atom.run, CHUNK_BYTES))

        return fragment

    # float32: a lane multiplies its own elements of the reduced axis, then those of the other groups.
    @staticmethod
    def spread(b: ir.IRBuilder, atom: Atom, left: list) -> Callable:
        """``spread(d, t)[row block][i]``: elements of left that the group at distance ``d`` holds."""

        @functools.cache
        def elements(d: int, t: int) -> list:
            return [[from_group(b, atom, x, d) for x in elements_of(b, block[t])] for block in left]

        return elements

    @staticmethod
    def first_row(b: ir.IRBuilder, window: Window, group: ir.Value) -> ir.Value:
        return b.mul(group, const(I32, window.atom.group_step * window.copies[0].pitch))

    @staticmethod
    def position(b: ir.IRBuilder, window: Window, group: ir.Value) -> ir.Value:
        """Byte offset, in a tile's 16 columns in shared memory, of the columns of a group."""
        return b.mul(group, const(I32, window.atom.registers * 4))

    def fma_nt(self, b: ir.IRBuilder, window: Window, left: list, local: ir.Value, sums: list) -> list:
        atom, lane, pitch = window.atom, Lane(b, window.atom), window.copies[0].pitch
        lefts, run = self.spread(b, atom, left), ir.VectorType(F32, atom.registers)
        out = [[elements_of(b, v) for v in block] for block in sums]
        starts = [
            b.add(self.first_row(b, window, lane.group), self.position(b, window, b.xor(lane.group, const(I32, d))))
            for d in range(atom.groups)
        ]

        def load(step: tuple) -> ir.Value:
            d, t, c, i = step
            row = 16 * c + atom.register_step * i
            return load_from(b, local, b.add(starts[d], const(I32, row * pitch + 64 * t)), run, 16)

        def use(step: tuple, rights: ir.Value) -> None:
            d, t, c, i = step
            for xs, block in zip(lefts(d, t), out, strict=True):
                for x, y in zip(xs, elements_of(b, rights), strict=True):
                    block[c][i] = math(b, "fma", x, y, block[c][i])

        axes = atom.groups, len(left[0]), len(sums[0]), atom.registers
        pipelined(b, list(itertools.product(*map(range, axes))), load, use, atom.registers)
        return [[vector_of(b, v) for v in block] for block in out]

    def fma_nn(self, b: ir.IRBuilder, window: Window, left: list, local: ir.Value, sums: list) -> list:
        atom, lane, pitch = window.atom, Lane(b, window.atom), window.copies[0].pitch
        lefts, run = self.spread(b, atom, left), ir.VectorType(F32, atom.registers)
        out = [list(block) for block in sums]
        starts = [
            b.add(self.first_row(b, window, b.xor(lane.group, const(I32, d))), self.position(b, window, lane.group))
            for d in range(atom.groups)
        ]

        def load(step: tuple) -> ir.Value:
            d, t, i, c = step
            row = 16 * t + atom.register_step * i
            return load_from(b, local, b.add(starts[d], const(I32, row * pitch + 64 * c)), run, 16)

        def use(step: tuple, right: ir.Value) -> None:
            d, t, i, c = step
            for xs, block in zip(lefts(d, t), out, strict=True):
                block[c] = math(b, "fma", splat(b, xs[i], atom.registers), right, block[c])

        axes = atom.groups, len(left[0]), atom.registers, len(sums[0])
        pipelined(b, list(itertools.product(*map(range, axes))), load, use, atom.registers)
        return out

    def dot_tn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, acc: Any = None) -> ir.Value:
        out, layout = sig.return_type, LaneLayout(sig.return_type)
        a, window = Window(sig.args[0]), Window(sig.args[1])
        sums, atom = self.start_of(b, out, acc), layout.atom
        a_local, local = self.local(b, left), self.local(b, right)
        row0 = b.mul(wave_index(b, atom), const(I32, atom.rows * layout.row_blocks))
        if window.matrix:
            lefts = self.fragments(b, a, self.local(b, left, 1), 1, row0)
            fragment = self.fragments(b, window, self.local(b, right, 1), 1)
            blocks = [[lefts(r, t) for t in range(window.n // 16)] for r in range(layout.row_blocks)]
            return self.join_blocks(b, self.multiply(b, window, blocks, fragment, sums))
        lane, registers = Lane(b, atom), atom.registers
        # Where column `lane.row` of a tile lies: see `commit`.
        column = lane.row
        if atom.register_step == 2:
            odd = b.shl(b.and_(lane.row, const(I32, 1)), const(I32, 3))
            column = b.add(odd, b.lshr(lane.row, const(I32, 1)))
        a_start = b.mul(b.add(row0, column), const(I32, 4))
        start, run = self.position(b, window, lane.group), ir.VectorType(F32, registers)

        def load(k: int) -> tuple:
            a_row, row = const(I32, k * a.copies[0].pitch), const(I32, k * window.copies[0].pitch)
            xs = [b.add(a_start, b.add(a_row, const(I32, 4 * atom.rows * r))) for r in range(layout.row_blocks)]
            ys = [b.add(start, b.add(row, const(I32, 64 * c))) for c in range(out.n // 16)]
            return [load_from(b, a_local, x, F32, 4) for x in xs], [load_from(b, local, y, run, 16) for y in ys]

        def use(k: int, loaded: tuple) -> None:
            for x, block in zip(loaded[0], sums, strict=True):
                for c, y in enumerate(loaded[1]):
                    block[c] = math(b, "fma", splat(b, x, registers), y, block[c])

        pipelined(b, list(range(window.n)), load, use, registers * out.n // 16)
        return self.join_blocks(b, sums)

    @staticmethod
    def any_special(b: ir.IRBuilder, window: Window, local: ir.Value) -> ir.Value:
        """Whether the window holds a NaN or an infinity: each wave looks at all of the copy that dot_nn reads."""
        copy, wave, lane = window.copies[-1], window.atom.wave, Lane(b, window.atom)
        item = ir.IntType(8 * copy.shared_bytes)
        vector = ir.VectorType(item, CHUNK_BYTES // copy.shared_bytes)
        lines = copy.places.lines
        per_line = window.n * window.k // lines // vector.count
        chunks = lines * per_line
        infinity = INFINITY[window.dtype if window.matrix else "float32"]
        largest = const(vector, 0)

        def spot(number: ir.Value) -> Spot:
            inside = b.mul(b.urem(number, const(I32, per_line)), const(I32, CHUNK_BYTES))
            return Spot.of(b, copy.places, b.udiv(number, const(I32, per_line)), inside)

        # Computed here: known before a loop, it would wait in a register for the few windows that are looked at.
        first, regular = spot(opaque(b, lane.index, "v")), wave % per_line == 0 or per_line % wave == 0
        for i in range(0, chunks, wave):
            if regular and i + wave <= chunks:
                offset = first.at(i // per_line, i % per_line * CHUNK_BYTES)
            else:
                offset = spot(math(b, "umin", b.add(lane.index, const(I32, i)), const(I32, chunks - 1))).at()
            bits = load_from(b, local, offset, vector, CHUNK_BYTES)
            largest = math(b, "umax", largest, b.and_(bits, const(vector, (1 << (item.width - 1)) - 1)))
        worst = tree(b, lambda x, y: math(b, "umax", x, y), [largest])
        return any_lane(b, window.atom, b.icmp_unsigned(">=", worst, const(item, infinity)))

    def exact_nn(self, b: ir.IRBuilder, window: Window, left: list, local: ir.Value, sums: list) -> list:
        """``sums + left @ right``, element by element; where left is 0 the product is 0, whatever right is.

        It happens seldom, so it is a small loop for each tile column, over the 32-bit words of left. Registers cannot
        be numbered at run time: instead the words take turns in being the first.
        """
        blocks = len(left)
        add = self.add_exact_matrix if window.matrix else self.add_exact_fma
        per_run = left[0][0].type.count * window.item_bytes // 4 if window.matrix else window.atom.registers
        vector = ir.VectorType(I32, per_run)
        words = [[w for run in block for w in elements_of(b, b.bitcast(run, vector))] for block in left]
        steps, out = len(words[0]), []

        def step(n: ir.Value, values: list, c: int) -> list:
            totals, queue = values[:blocks], values[blocks:]
            t, word = b.udiv(n, const(I32, per_run)), b.urem(n, const(I32, per_run))
            totals = add(b, window, local, c, t, word, queue[::steps], totals)
            for r in range(blocks):
                totals += [*queue[r * steps + 1 : (r + 1) * steps], queue[r * steps]]
            return totals

        for c in range(len(sums[0])):
            start = [*(block[c] for block in sums), *(w for block in words for w in block)]
            out.append(loop(b, steps, start, lambda n, values, c=c: step(n, values, c))[:blocks])
        return [column[r] for r in range(blocks) for column in out]

    @staticmethod
    def add_exact_matrix(
        b: ir.IRBuilder, window: Window, local: ir.Value, c: int, t: ir.Value, word: ir.Value, left: list, sums: list
    ) -> list:
        """The part of `exact_nn` for tile column ``c`` and word ``word`` of run ``t``: a vector for each row block."""
        atom, lane, size = window.atom, Lane(b, window.atom), window.item_bytes
        few = ir.VectorType(memory_int(window.dtype), 4 // size)
        line, places = b.mul(lane.group, const(I32, atom.group_step)), window.copies[-1].places
        further = b.add(b.mul(t, const(I32, 16 * size)), b.mul(word, const(I32, 4)))
        totals = [elements_of(b, v) for v in sums]
        for d in range(16 // atom.run):
            inside = b.mul(b.xor(lane.group, const(I32, d)), const(I32, size * atom.run_step))
            spot, weights = Spot.of(b, places, line, inside).further(further), []
            for bits in left:
                bits = b.bitcast(from_group(b, atom, bits, d), few)
                weights.append(elements_of(b, widen(b, bits, window.dtype)))
            for i in range(atom.registers):
                values = load_from(b, local, spot.at(16 * c + atom.register_step * i), few, 4)
                for e, y in enumerate(elements_of(b, widen(b, values, window.dtype))):
                    for total, xs in zip(totals, weights, strict=True):
                        seen = b.select(b.fcmp_ordered("==", xs[e], const(F32, 0.0)), const(F32, 0.0), y)
                        total[i] = math(b, "fma", xs[e], seen, total[i])
            schedule_no_further(b)
        return [vector_of(b, total) for total in totals]

    def add_exact_fma(
        self,
        b: ir.IRBuilder,
        window: Window,
        local: ir.Value,
        c: int,
        t: ir.Value,
        word: ir.Value,
        left: list,
        sums: list,
    ) -> list:
        """As `add_exact_matrix`, for stages of float32 that lie row by row, and tile ``t`` of left."""
        atom, lane, pitch = window.atom, Lane(b, window.atom), window.copies[0].pitch
        run = ir.VectorType(F32, atom.registers)
        totals, column = list(sums), self.position(b, window, lane.group)
        first = b.add(b.mul(t, const(I32, 16)), b.mul(word, const(I32, atom.register_step)))
        for d in range(atom.groups):
            row = b.add(first, b.mul(b.xor(lane.group, const(I32, d)), const(I32, atom.group_step)))
            place = b.add(column, b.mul(row, const(I32, pitch)))
            ys = load_from(b, local, b.add(place, const(I32, 64 * c)), run, 16)
            for r, bits in enumerate(left):
                x = b.bitcast(from_group(b, atom, bits, d), F32)
                seen = b.select(b.fcmp_ordered("==", x, const(F32, 0.0)), const(run, 0.0), ys)
                totals[r] = math(b, "fma", splat(b, x, atom.registers), seen, totals[r])
            schedule_no_further(b)
        return totals
