"""The step of an online softmax, with a maximum that may lag behind."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from llvmlite import ir

from rocmkern.tile import squares
from rocmkern.tile.cuda.emit import (
    any_in_warp,
    exp2,
    fabs,
    fma,
    fmax,
    if_else,
    over_lanes,
    pack,
    split_at,
    tree,
    unpack,
)
from rocmkern.tile.cuda.layouts import complete_rows, elements_of, partial_rows
from rocmkern.tile.cuda.tiles import TileLowering
from rocmkern.tile.tensors import F32, const


class SoftmaxLowering(TileLowering):
    """Running statistics of rows."""

    def square_step(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, scale: Any, total: Any) -> ir.Value:
        ty, rows = sig.args[0], self.by_slot(sig.args[0], unpack(b, tile))
        old, before = (complete_rows(b, t, x) for t, x in zip(sig.args[1:], (scale, total), strict=True))
        plain = [self.over_row(b, ty, self.sum_of_squares(b, row), b.fadd) for row in rows]
        done = tree(b, [squares.is_plain(b, *each) for each in zip(plain, old, strict=True)], b.and_)

        def as_they_are() -> list[ir.Value]:
            pairs = [squares.add_plain(b, *each) for each in zip(plain, old, before, strict=True)]
            return [x for column in zip(*pairs, strict=True) for x in column]

        def scaled() -> list[ir.Value]:
            largest = [self.over_row(b, ty, tree(b, [fabs(b, v) for v in row], larger), larger) for row in rows]
            new = [squares.scale_of(b, *each) for each in zip(largest, old, strict=True)]
            sums = []
            for row, was, now, sum_before in zip(rows, old, new, before, strict=True):
                more = self.over_row(b, ty, tree(b, [squares.square(b, v, now) for v in row], b.fadd), b.fadd)
                sums.append(b.fadd(squares.rescale(b, sum_before, was, now), more))
            return new + sums

        larger = functools.partial(fmax, b)
        # Lanes that share a row agree; where it lies along several warps, these have no other.
        results = if_else(b, any_in_warp(b, b.not_(done)), scaled, as_they_are)
        halves = results[: len(rows)], results[len(rows) :]
        return context.make_tuple(b, sig.return_type, [pack(b, half) for half in halves])

    @staticmethod
    def sum_of_squares(b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        """Four sums side by side, so that they do not wait for each other."""
        parts = [b.fmul(v, v) for v in values[:4]]
        for i, v in enumerate(values[4:]):
            parts[i % 4] = fma(b, v, v, parts[i % 4])
        return tree(b, parts, b.fadd)

    #: A row's maximum may lag behind by this much, in base-2 exponent, before the accumulator is rescaled.
    LAZY_EXPONENT = 8.0

    def softmax_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, s: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        s_ty, acc_ty = sig.args[0], sig.args[4]
        factor = self.scalar(context, b, sig.args[1], scale, "f32")
        negative_factor = b.fmul(factor, const(F32, -1.0))
        scores, old, accumulator = (unpack(b, x) for x in (s, m, acc))
        old_sums = partial_rows(b, sig.args[3], l)
        slots = len(old)
        larger = functools.partial(fmax, b)

        # A weight is 2 ** (s * scale + offset) in one FMA, with offset = -m * scale. Its rounding is the same in all
        # weights, sums and rescalings of a row, so it cancels in the result. Where that or the product could overflow
        # (constant inputs of 133120, a bias of the lowest float32) m is subtracted before the product.
        offsets = [b.fmul(x, negative_factor) for x in old]

        # Each lane looks at its own part of the rows: only when a maximum has grown much does a warp find the new ones.
        highest = [tree(b, row, larger) for row in self.by_slot(s_ty, scores)]
        excess = [fma(b, high, factor, x) for high, x in zip(highest, offsets, strict=True)]
        grown = [b.fcmp_ordered(">", x, const(F32, self.LAZY_EXPONENT)) for x in excess]
        grown += [self.is_huge(b, x) for x in offsets]

        def rescale() -> list[ir.Value]:
            new = [larger(before, over_lanes(b, high, larger)) for high, before in zip(highest, old, strict=True)]
            bases = [self.finite_base(b, x) for x in new]
            products = [b.fmul(x, negative_factor) for x in bases]
            huge = [self.is_huge(b, x) for x in products]
            shrink = []
            for i in range(slots):
                exact = b.fmul(b.fsub(old[i], bases[i]), factor)
                exponent = b.select(b.or_(huge[i], self.is_huge(b, offsets[i])), exact, b.fsub(products[i], offsets[i]))
                shrink.append(exp2(b, exponent))
            zero = const(F32, 0.0)
            subtracted = [b.select(big, base, zero) for big, base in zip(huge, bases, strict=True)]
            left = [b.select(big, zero, x) for big, x in zip(huge, products, strict=True)]
            sums = [b.fmul(x, y) for x, y in zip(old_sums, shrink, strict=True)]
            scaled = [b.fmul(x, shrink[r]) for (r, _), x in zip(elements_of(acc_ty), accumulator, strict=True)]
            moved = [b.fsub(x, subtracted[r]) for (r, _), x in zip(elements_of(s_ty), scores, strict=True)]
            return [*new, *left, *sums, *scaled, *moved]

        parts = [old, offsets, old_sums, accumulator, scores]
        state = if_else(b, any_in_warp(b, tree(b, grown, b.or_)), rescale, lambda: [*itertools.chain(*parts)])
        maxima, offsets, sums, accumulator, scores = split_at(state, [len(part) for part in parts])

        weights = [exp2(b, fma(b, x, factor, offsets[r])) for (r, _), x in zip(elements_of(s_ty), scores, strict=True)]
        totals = [tree(b, row, b.fadd) for row in self.by_slot(s_ty, weights)]
        sums = [b.fadd(x, y) for x, y in zip(sums, totals, strict=True)]
        return context.make_tuple(b, sig.return_type, [pack(b, x) for x in (weights, maxima, sums, accumulator)])

    @staticmethod
    def is_huge(b: ir.IRBuilder, offset: ir.Value) -> ir.Value:
        """Whether an exponent is too large to be the addend of an FMA; also true of a row that has seen only -inf.

        Its rounding error, up to 2 ** -25 of it, is an exponent as well: beyond this bound it could overflow.
        """
        return b.fcmp_ordered(">", fabs(b, offset), const(F32, 2.0**24))

    @staticmethod
    def finite_base(b: ir.IRBuilder, maximum: ir.Value) -> ir.Value:
        """The maximum, and 0 for a row that has seen only -inf."""
        return b.select(b.fcmp_ordered("==", maximum, const(F32, float("-inf"))), const(F32, 0.0), maximum)
