"""The step of an online softmax, with a maximum that may lag behind."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from llvmlite import ir
from numba.core.errors import TypingError

from rocmkern.tile._lowering.hip.emit import (
    NEG_INF,
    any_lane,
    array_of,
    each_element,
    exp2,
    flat,
    if_then,
    in_blocks,
    items_of,
    largest_of,
    math,
    over_groups,
    shared_code,
    splat,
    tree,
)
from rocmkern.tile._lowering.hip.layouts import LaneLayout, is_line
from rocmkern.tile._lowering.hip.rotary import RotaryLowering
from rocmkern.tile._lowering.shared import squares
from rocmkern.tile._lowering.shared.atoms import Atom
from rocmkern.tile._lowering.shared.ir_types import F32, const
from rocmkern.tile._lowering.shared.tensors import if_else

#: A row's maximum may lag behind by this much, in base-2 exponent, before the accumulator is rescaled.
LAZY_EXPONENT = 8.0
#: Up to this base-2 exponent a maximum times the scale may be rounded (by 1/2 at most) before it is subtracted.
HUGE_EXPONENT = 2.0**24


class SoftmaxLowering(RotaryLowering):
    """Running statistics of rows."""

    def square_step(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, scale: Any, total: Any) -> ir.Value:
        ty, old, before = sig.args[0], items_of(b, scale), items_of(b, total)
        plain = self.reduce_rows(b, ty, self.on_tile(b, ty, tile, lambda v, c: b.fmul(v, v)), b.fadd)
        done = [squares.is_plain(b, *each) for each in zip(plain, old, strict=True)]

        def as_they_are() -> list:
            pairs = [squares.add_plain(b, *each) for each in zip(plain, old, before, strict=True)]
            return [x for column in zip(*pairs, strict=True) for x in column]

        def scaled() -> list:
            """The same for rows whose squares as they are would do: no row depends on the others."""
            sizes = self.on_tile(b, ty, tile, lambda v, c: math(b, "fabs", v))
            largest = self.reduce_rows(b, ty, sizes, lambda x, y: math(b, "maxnum", x, y))
            new = [squares.scale_of(b, *each) for each in zip(largest, old, strict=True)]
            parts = self.on_tile(
                b, ty, tile, lambda v, c, s: squares.square(b, v, splat(b, s, v.type.count)), array_of(b, new)
            )
            more = self.reduce_rows(b, ty, parts, b.fadd)
            rescaled = [squares.rescale(b, *each) for each in zip(before, old, new, strict=True)]
            sums = [b.fadd(x, y) for x, y in zip(rescaled, more, strict=True)]
            return [b.select(*each) for each in zip(done * 2, as_they_are(), new + sums, strict=True)]

        # Lanes that share a row agree; where it lies along several waves, these have no other.
        results = if_else(
            b, any_lane(b, LaneLayout(ty).atom, b.not_(functools.reduce(b.and_, done))), scaled, as_they_are
        )
        halves = results[: len(old)], results[len(old) :]
        return context.make_tuple(b, sig.return_type, [array_of(b, half) for half in halves])

    def multiply_rows(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, scale: Any, factor: Any) -> ir.Value:
        ty = sig.args[0]
        products = [squares.joined(b, *each) for each in zip(items_of(b, scale), items_of(b, factor), strict=True)]

        def by(*rows: ir.Value) -> list:
            def body(v: ir.Value, c: int, *values: ir.Value) -> ir.Value:
                return functools.reduce(b.fmul, [splat(b, x, v.type.count) for x in values], v)

            return items_of(b, self.on_tile(b, ty, tile, body, *rows))

        ordinary = functools.reduce(b.and_, [each for _, each in products])
        at_once = array_of(b, [product for product, _ in products])
        wanted = any_lane(b, LaneLayout(ty).atom, b.not_(ordinary))

        def in_order() -> list:
            pairs = zip(products, items_of(b, scale), items_of(b, factor), strict=True)
            pairs = [squares.in_order(b, *product, *each) for product, *each in pairs]
            return by(*(array_of(b, list(column)) for column in zip(*pairs, strict=True)))

        return array_of(b, if_else(b, wanted, in_order, lambda: by(at_once)))

    def softmax_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, s: Any, scale: Any, m: Any, l: Any, acc: Any
    ) -> ir.Value:
        s_ty, acc_ty = sig.args[0], sig.args[4]
        if is_line(s_ty):
            raise TypingError("softmax_step: a kernel with products needs a configuration with threads_per_row=0")
        scale = self.scalar(context, b, sig.args[1], scale, "f32")
        parts = [items_of(b, x) for x in (m, l, acc)]
        rows, tiles = len(parts[0]), len(parts[2])

        def body(b: ir.IRBuilder, args: list, scores: list) -> list:
            m, l, acc = args[1 : 1 + rows], args[1 + rows : 1 + 2 * rows], args[1 + 2 * rows :]
            return self.softmax(b, LaneLayout(s_ty).atom, args[0], m, l, acc, scores)

        arch, waves, wave_rows = s_ty.hw
        name = f"softmax_{arch}_{waves}x{wave_rows}_{s_ty.m}x{s_ty.n}x{acc_ty.n}"
        values = shared_code(b, name, [scale, *flat(parts)], items_of(b, s), body)
        ends = [0, *itertools.accumulate((len(values) - 2 * rows - tiles, rows, rows, tiles))]
        out = [array_of(b, values[i:j]) for i, j in itertools.pairwise(ends)]
        return context.make_tuple(b, sig.return_type, out)

    def softmax_end(
        self, context: Any, b: ir.IRBuilder, sig: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        return context.make_tuple(b, sig.return_type, [m, l, acc])

    def softmax(
        self, b: ir.IRBuilder, atom: Atom, scale: ir.Value, old: list, old_sums: list, old_tiles: list, scores: list
    ) -> list:
        """Weights, maxima, sums and accumulator, one after the other."""
        negative_scale = b.fneg(scale)
        per_block, columns = len(scores) // len(old), len(old_tiles) // len(old)

        # A weight is 2 ** (s * scale + offset), offset = -m * scale. The rounding of the offset is the same in all
        # weights, sums and rescalings of a row, so that it cancels.
        old_offsets = [b.fmul(x, negative_scale) for x in old]

        # Each lane looks at its own part of the rows. Only when a maximum has grown by more than float32 can bear does
        # a wave find the new ones. A comparison with NaN (rows that have seen nothing but -inf) counts as grown.
        highest = [largest_of(b, block) for block in in_blocks(scores, per_block)]

        def has_grown(high: ir.Value, offset: ir.Value) -> ir.Value:
            excess = b.fcmp_unordered(">", math(b, "fma", high, scale, offset), const(F32, LAZY_EXPONENT))
            return b.or_(excess, self.is_huge(b, offset))

        grown = functools.reduce(b.or_, map(has_grown, highest, old_offsets))

        def rescale() -> list:
            maxima, offsets, sums, tiles, moved = [], [], [], [], []
            for r, before in enumerate(old):
                new = over_groups(b, atom, lambda x, y: math(b, "maxnum", x, y), highest[r])
                # A row whose own maximum may lag stays as it is, times 1: whatever the others are, it is the same bits.
                new = b.select(has_grown(new, old_offsets[r]), math(b, "maxnum", before, new), before)
                base = b.select(b.fcmp_ordered("==", new, const(F32, NEG_INF)), const(F32, 0.0), new)
                offset = b.fmul(base, negative_scale)
                huge = self.is_huge(b, offset)
                exact = b.or_(huge, self.is_huge(b, old_offsets[r]))
                change = b.select(exact, b.fmul(b.fsub(before, base), scale), b.fsub(offset, old_offsets[r]))
                shrink = exp2(b, change)
                factor = splat(b, shrink, atom.registers)
                zero = const(F32, 0.0)
                # Where the product is too large to be rounded, the maximum is subtracted before it.
                less = splat(b, b.select(huge, base, zero), atom.registers)
                maxima.append(new)
                offsets.append(b.select(huge, zero, offset))
                sums.append(b.fmul(old_sums[r], shrink))
                tiles += [b.fmul(v, factor) for v in old_tiles[r * columns : (r + 1) * columns]]
                moved += [b.fsub(v, less) for v in scores[r * per_block : (r + 1) * per_block]]
            return [*maxima, *offsets, *sums, *tiles, *moved]

        parts = [old, old_offsets, old_sums, old_tiles, scores]
        joined = iter(if_then(b, any_lane(b, atom, grown), flat(parts), rescale))
        maxima, offsets, sums, tiles, scores = ([next(joined) for _ in part] for part in parts)

        factor = splat(b, scale, atom.registers)
        addends = [splat(b, offset, atom.registers) for offset in offsets for _ in range(per_block)]
        powers = [math(b, "fma", v, factor, x) for v, x in zip(scores, addends, strict=True)]
        p = [each_element(b, v, lambda e: exp2(b, e)) for v in powers]
        for r, block in enumerate(in_blocks(p, per_block)):
            sums[r] = b.fadd(sums[r], over_groups(b, atom, b.fadd, tree(b, b.fadd, block)))
        return [*p, *maxima, *sums, *tiles]

    @staticmethod
    def is_huge(b: ir.IRBuilder, offset: ir.Value) -> ir.Value:
        """Whether an offset's rounding makes weights too large; also true of a row that has seen only -inf."""
        return b.fcmp_unordered(">", math(b, "fabs", offset), const(F32, HUGE_EXPONENT))
