"""Products of a tile's buffer and a window, in registers."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from llvmlite import ir

from rocmkern.tile._lowering.cpu.emit import floor_to, load_floats, loop, reduced, splat, store_floats, vec
from rocmkern.tile._lowering.cpu.quantized import runs_of
from rocmkern.tile._lowering.shared.ir_types import F32, I64, const
from rocmkern.tile._lowering.shared.tensors import fma, joined
from rocmkern.tile.formats import FORMATS, RUN


class Left(NamedTuple):
    """Left side of a product: ``left[i][r]`` lies ``i * line + r * row_step`` floats from ``data``, for the first r of
    a vector. Lines are m floats, or as many as a micro-kernel takes (``row_step`` is then the length of a panel).

    ``lines``, where it is given, is room for those lines of the right side that a micro-kernel works on, ``ld`` floats
    apart: where the source has them, their distance may put all of them into the same few sets of a cache.
    """

    data: ir.Value
    line: int
    row_step: int
    lines: ir.Value | None = None
    ld: int = 0


class Right(NamedTuple):
    """Right side of a product: ``right(j, i)`` lies ``j * j_step + i * i_step`` floats from ``data``."""

    data: ir.Value
    j_step: ir.Value
    i_step: ir.Value


#: Floats between the copied lines of a right side.
LINE_PADDING = 16


def k_loop(b: ir.IRBuilder, count: ir.Value, initial: list[ir.Value], body: Any) -> list[ir.Value]:
    """A loop that carries vectors in registers: ``body(k, values) -> values``, for k in 0 .. count."""
    before = b.block
    loop, after = b.append_basic_block("k"), b.append_basic_block("k.end")
    b.cbranch(b.icmp_signed(">", count, const(I64, 0)), loop, after)
    b.position_at_end(loop)
    k = b.phi(I64)
    k.add_incoming(const(I64, 0), before)
    values = [b.phi(v.type) for v in initial]
    for phi, v in zip(values, initial, strict=True):
        phi.add_incoming(v, before)
    new = body(k, values)
    next_k = b.add(k, const(I64, 1))
    last = b.block
    k.add_incoming(next_k, last)
    for phi, v in zip(values, new, strict=True):
        phi.add_incoming(v, last)
    b.cbranch(b.icmp_signed("<", next_k, count), loop, after)
    b.position_at_end(after)
    return joined(b, initial, before, new, last)


#: Register blocking of the micro-kernel by vector width: vectors across the tile's rows, and the numbers of output
#: columns at a time, largest first. 12 x 2 accumulators, 2 vectors and a broadcast fill 27 of AVX-512's 32 registers.
BLOCKING = {16: (2, (12, 4, 1)), 8: (2, (6, 2, 1)), 4: (2, (6, 2, 1))}


def multiply_lanes(
    b: ir.IRBuilder, w: int, m: int, n: ir.Value, k: ir.Value, right: Right, left: Left, out: ir.Value
) -> None:
    """out[j][r] += sum_i right(j, i) * left[i][r] for r < m (lanes), j < n, i < k; ``out`` has m floats a line."""
    across, heights = BLOCKING[w]
    across = min(across, m // w)

    def block(right: Right, j0: ir.Value, first: ir.Value, r0: ir.Value, height: int) -> None:
        """Columns ``j0 .. j0 + height``, which are ``first ..`` of ``right``."""
        numbers = [const(I64, y) for y in range(height)]
        outs = [
            b.add(b.add(b.mul(b.add(j0, y), const(I64, m)), r0), const(I64, x * w))
            for y in numbers
            for x in range(across)
        ]
        starts = [b.mul(b.add(first, y), right.j_step) for y in numbers]

        def step(i: ir.Value, sums: list) -> list:
            base = b.add(b.mul(i, const(I64, left.line)), b.mul(r0, const(I64, left.row_step)))
            column = b.mul(i, right.i_step)
            vectors = [load_floats(b, left.data, b.add(base, const(I64, x * w)), w) for x in range(across)]
            new = []
            for y, start in enumerate(starts):  # one number at a time: the registers are full of sums
                number = splat(b, load_floats(b, right.data, b.add(start, column)), w)
                new += [fma(b, number, vectors[x], sums[y * across + x]) for x in range(across)]
            return new

        sums = k_loop(b, k, [load_floats(b, out, i, w) for i in outs], step)
        for i, total in zip(outs, sums, strict=True):
            store_floats(b, total, out, i)

    def over_columns(body: Any) -> None:
        start: ir.Value = const(I64, 0)
        for height in heights:
            stop = b.add(start, b.mul(b.sdiv(b.sub(n, start), const(I64, height)), const(I64, height)))
            with loop(b, stop, height, start) as j0:
                body(j0, height)
            start = stop

    def copied(j0: ir.Value, height: int) -> None:
        lines = _copy_lines(b, w, k, right, j0, height, left)
        with loop(b, m, across * w) as r0:
            block(lines, j0, const(I64, 0), r0, height)

    if left.lines is not None:
        over_columns(copied)
        return
    with loop(b, m, across * w) as r0:
        over_columns(lambda j0, height: block(right, j0, j0, r0, height))


def _copy_lines(b: ir.IRBuilder, w: int, k: ir.Value, right: Right, j0: ir.Value, height: int, left: Left) -> Right:
    """Copy ``height`` columns of a right side to where ``left`` has room for them."""
    assert left.lines is not None
    into = left.lines
    if isinstance(right.i_step, ir.Constant):  # contiguous along i: line by line
        whole = floor_to(b, k, w)
        for y in range(height):
            start, target = b.mul(b.add(j0, const(I64, y)), right.j_step), const(I64, y * left.ld)
            with loop(b, whole, w, unrolled=True) as i:
                store_floats(b, load_floats(b, right.data, b.add(start, i), w), into, b.add(target, i))
            with loop(b, k, 1, whole) as i:
                store_floats(b, load_floats(b, right.data, b.add(start, i)), into, b.add(target, i))
        return Right(into, const(I64, left.ld), const(I64, 1))
    with loop(b, k) as i:
        source, target, done = b.add(b.mul(i, right.i_step), j0), b.mul(i, const(I64, height)), 0
        while done < height:
            count = 1 << ((height - done).bit_length() - 1)
            part = load_floats(b, right.data, b.add(source, const(I64, done)), count)
            store_floats(b, part, into, b.add(target, const(I64, done)))
            done += count
    return Right(into, const(I64, 1), const(I64, height))


def multiply_rows_nt(b: ir.IRBuilder, w: int, ty: Any, lda: int, st: Any, left: ir.Value, out: ir.Value) -> None:
    """out[r][j] += sum_i left[r][i] * window[j][i]: lanes run over i, ``block`` lines of the window at a time."""
    block = max(1, 8 // ty.m)
    whole = floor_to(b, st.cols, w)

    def some(j0: ir.Value, lines: int) -> None:
        starts = [b.mul(b.add(j0, const(I64, y)), st.ld) for y in range(lines)]
        zero = const(vec(F32, w), 0.0)

        def step(chunk: ir.Value, sums: list) -> list:
            i = b.mul(chunk, const(I64, w))
            lefts = [load_floats(b, left, b.add(i, const(I64, r * lda)), w) for r in range(ty.m)]
            rights = [load_floats(b, st.window, b.add(start, i), w) for start in starts]
            return [fma(b, lefts[r], rights[y], sums[y * ty.m + r]) for y in range(lines) for r in range(ty.m)]

        sums = k_loop(b, b.sdiv(whole, const(I64, w)), [zero] * (lines * ty.m), step)
        singles = [reduced(b, x, b.fadd) for x in sums]

        def rest(i: ir.Value, totals: list) -> list:
            i = b.add(i, whole)
            lefts = [load_floats(b, left, b.add(i, const(I64, r * lda))) for r in range(ty.m)]
            rights = [load_floats(b, st.window, b.add(start, i)) for start in starts]
            return [fma(b, lefts[r], rights[y], totals[y * ty.m + r]) for y in range(lines) for r in range(ty.m)]

        totals = k_loop(b, b.sub(st.cols, whole), singles, rest)
        for y in range(lines):
            for r in range(ty.m):
                i = b.add(b.add(j0, const(I64, y)), const(I64, r * ty.n))
                store_floats(b, b.fadd(load_floats(b, out, i), totals[y * ty.m + r]), out, i)

    blocks = floor_to(b, st.count, block)
    with loop(b, blocks, block) as j0:
        some(j0, block)
    if block > 1:
        with loop(b, st.count, 1, blocks) as j0:
            some(j0, 1)


def multiply_rows_quantized(
    b: ir.IRBuilder, ty: Any, right_ty: Any, lda: int, st: Any, left: ir.Value, out: ir.Value
) -> None:
    """As `multiply_rows_nt`, of lines that are decoded into registers; scales are applied to the sums of a run."""
    kind, unit = FORMATS[right_ty.format], math.gcd(right_ty.k, FORMATS[right_ty.format].elements)
    zero = const(vec(F32, RUN), 0.0)

    def some(j0: ir.Value, lines: int) -> None:
        rows = [b.gep(st.window, [b.mul(b.add(j0, const(I64, y)), st.row_stride)]) for y in range(lines)]

        def step(number: ir.Value, sums: list) -> list:
            i, new = b.mul(number, const(I64, unit)), []
            for y, row in enumerate(rows):
                runs = runs_of(b, kind, row, b.add(st.ld, i), unit, right_ty.hw[0])
                for r in range(ty.m):
                    total = sums[y * ty.m + r]
                    for first in range(0, len(runs), kind.group // RUN):
                        group = runs[first : first + kind.group // RUN]
                        xs = [load_floats(b, left, b.add(i, const(I64, r * lda + offset)), RUN) for offset, _ in group]
                        part = b.fmul(xs[0], *group[0][1].numbers)
                        for x, (_, run) in zip(xs[1:], group[1:], strict=True):
                            part = fma(b, x, *run.numbers, part)
                        shared = group[0][1]
                        total = fma(b, part, splat(b, shared.scale, RUN), total)
                        if shared.minimum is not None:
                            less = splat(b, b.fneg(shared.minimum), RUN)
                            total = fma(b, functools.reduce(b.fadd, xs), less, total)
                    new.append(total)
            return new

        sums = k_loop(b, b.sdiv(st.cols, const(I64, unit)), [zero] * (lines * ty.m), step)
        for y in range(lines):
            for r in range(ty.m):
                i = b.add(b.add(j0, const(I64, y)), const(I64, r * ty.n))
                store_floats(b, b.fadd(load_floats(b, out, i), reduced(b, sums[y * ty.m + r], b.fadd)), out, i)

    block = max(1, 4 // ty.m)
    blocks = floor_to(b, st.count, block)
    with loop(b, blocks, block) as j0:
        some(j0, block)
    if block > 1:
        with loop(b, st.count, 1, blocks) as j0:
            some(j0, 1)


def multiply_rows_nn(b: ir.IRBuilder, w: int, ty: Any, lda: int, st: Any, left: ir.Value, out: ir.Value) -> None:
    """out[r][j] += sum_i left[r][i] * window[i][j]: lanes run over j, ``across`` vectors of every row at a time."""
    across = max(1, 8 // ty.m)

    def some(j0: ir.Value, vectors: int, lanes: int) -> None:
        load = (
            (lambda base, i: load_floats(b, base, i, lanes)) if lanes > 1 else (lambda base, i: load_floats(b, base, i))
        )
        spread = (lambda x: splat(b, x, lanes)) if lanes > 1 else (lambda x: x)
        outs = [b.add(j0, const(I64, r * ty.n + x * lanes)) for r in range(ty.m) for x in range(vectors)]

        def step(i: ir.Value, sums: list) -> list:
            line = b.add(b.mul(i, st.ld), j0)
            rights = [load(st.window, b.add(line, const(I64, x * lanes))) for x in range(vectors)]
            lefts = [spread(load_floats(b, left, b.add(i, const(I64, r * lda)))) for r in range(ty.m)]
            return [fma(b, lefts[r], rights[x], sums[r * vectors + x]) for r in range(ty.m) for x in range(vectors)]

        sums = k_loop(b, st.count, [load(out, i) for i in outs], step)
        for i, total in zip(outs, sums, strict=True):
            store_floats(b, total, out, i)

    wide = floor_to(b, st.cols, across * w)
    with loop(b, wide, across * w) as j0:
        some(j0, across, w)
    one = floor_to(b, st.cols, w)
    if across > 1:
        with loop(b, one, w, wide) as j0:
            some(j0, 1, w)
    with loop(b, st.cols, 1, one) as j0:
        some(j0, 1, 1)
