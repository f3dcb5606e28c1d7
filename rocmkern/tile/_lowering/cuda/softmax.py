"""The step of an online softmax."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.emit import (
    any_in_warp,
    divide,
    exp2,
    fabs,
    fmax,
    over_lanes,
    pack,
    split_at,
    tree,
    unpack,
)
from rocmkern.tile._lowering.cuda.layouts import base_rows, complete_rows, elements_of, partial_rows
from rocmkern.tile._lowering.cuda.rotary import RotaryLowering
from rocmkern.tile._lowering.shared import squares
from rocmkern.tile._lowering.shared.ir_types import F32, const
from rocmkern.tile._lowering.shared.tensors import fma, if_else


class SoftmaxLowering(RotaryLowering):
    """Running statistics of rows."""

    def square_step(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, scale: Any, total: Any) -> ir.Value:
        ty, rows = sig.args[0], self.by_slot(sig.args[0], unpack(b, tile))
        old, before = (complete_rows(b, t, x) for t, x in zip(sig.args[1:], (scale, total), strict=True))
        plain = [self.over_row(b, ty, self.sum_of_squares(b, row), b.fadd) for row in rows]
        done = [squares.is_plain(b, *each) for each in zip(plain, old, strict=True)]

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
            return [b.select(*each) for each in zip(done * 2, as_they_are(), new + sums, strict=True)]

        larger = functools.partial(fmax, b)
        # Lanes that share a row agree; where it lies along several warps, these have no other.
        results = if_else(b, any_in_warp(b, b.not_(tree(b, done, b.and_))), scaled, as_they_are)
        halves = results[: len(rows)], results[len(rows) :]
        return context.make_tuple(b, sig.return_type, [pack(b, half) for half in halves])

    def multiply_rows(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, scale: Any, factor: Any) -> ir.Value:
        rows = [complete_rows(b, ty, x) for ty, x in zip(sig.args[1:], (scale, factor), strict=True)]
        products = [squares.joined(b, *each) for each in zip(*rows, strict=True)]
        values = list(zip([slot for slot, _ in elements_of(sig.args[0])], unpack(b, tile), strict=True))

        def in_order() -> list[ir.Value]:
            factors = [squares.in_order(b, *each, *pair) for each, *pair in zip(products, *rows, strict=True)]
            return [b.fmul(b.fmul(v, factors[slot][0]), factors[slot][1]) for slot, v in values]

        ordinary = tree(b, [each for _, each in products], b.and_)
        at_once = [products[slot][0] for slot, _ in values]
        return pack(
            b,
            if_else(
                b,
                any_in_warp(b, b.not_(ordinary)),
                in_order,
                lambda: [b.fmul(v, product) for (_, v), product in zip(values, at_once, strict=True)],
            ),
        )

    @staticmethod
    def sum_of_squares(b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        """Four sums side by side, so that they do not wait for each other."""
        parts = [b.fmul(v, v) for v in values[:4]]
        for i, v in enumerate(values[4:]):
            parts[i % 4] = fma(b, v, v, parts[i % 4])
        return tree(b, parts, b.fadd)

    #: How far below the running maximum the base of the weights may lie, in base-2 exponent.
    DROP = 4.0

    def softmax_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, s: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        s_ty, acc_ty = sig.args[0], sig.args[4]
        factor = self.scalar(context, b, sig.args[1], scale, "f32")
        negative_factor = b.fmul(factor, const(F32, -1.0))
        scores, accumulator = unpack(b, s), unpack(b, acc)
        held, old_sums = base_rows(b, sig.args[2], m), partial_rows(b, None, sig.args[3], l)
        old, old_maxima = held[: len(held) // 2], held[len(held) // 2 :]
        larger = functools.partial(fmax, b)

        # The base of a tile's weights is its own maximum, unless that is far below the running one: the largest
        # weight is then 1 in every tile, which rounding to 16 bits does not change. With 64 keys a tile that makes the
        # error of the result 7 % smaller than the running maximum as the base does, and 11 % smaller than a maximum
        # that may lag behind. Scores that are masked throughout leave the base, and so the row, as it is.
        highest = [over_lanes(b, tree(b, row, larger), larger) for row in self.by_slot(s_ty, scores)]
        maxima = [larger(x, y) for x, y in zip(old_maxima, highest, strict=True)]
        drop = divide(b, const(F32, self.DROP), factor)
        new = []
        for high, maximum, base in zip(highest, maxima, old, strict=True):
            far = b.fcmp_ordered("<", high, b.fsub(maximum, drop))
            masked = b.fcmp_ordered("==", high, const(F32, float("-inf")))
            new.append(b.select(masked, base, b.select(far, maximum, high)))

        # A weight is 2 ** (s * scale + offset) in one FMA, with offset = -base * scale. Its rounding is the same in all
        # weights, sums and rescalings of a row, so it cancels in the result.
        before, offsets = ([b.fmul(x, negative_factor) for x in rows] for rows in (old, new))

        def common() -> list[ir.Value]:
            shrink = [exp2(b, b.fsub(x, y)) for x, y in zip(offsets, before, strict=True)]
            return [*offsets, *shrink, *scores]

        def rare() -> list[ir.Value]:
            """Where the offset or the product could overflow, the base is subtracted before the product.

            Constant inputs of 133120, a bias of the lowest float32; also rows that have seen nothing yet.
            """
            bases = [self.finite_base(b, x) for x in new]
            products = [b.fmul(x, negative_factor) for x in bases]
            huge = [self.is_huge(b, x) for x in products]
            shrink = []
            for i, base in enumerate(bases):
                exact = b.fmul(b.fsub(old[i], base), factor)
                either = b.or_(huge[i], self.is_huge(b, before[i]))
                shrink.append(exp2(b, b.select(either, exact, b.fsub(products[i], before[i]))))
            zero = const(F32, 0.0)
            subtracted = [b.select(big, base, zero) for big, base in zip(huge, bases, strict=True)]
            left = [b.select(big, zero, x) for big, x in zip(huge, products, strict=True)]
            moved = [b.fsub(x, subtracted[r]) for (r, _), x in zip(elements_of(s_ty), scores, strict=True)]
            return [*left, *shrink, *moved]

        unusual = tree(b, [self.is_huge(b, x) for x in (*before, *offsets)], b.or_)
        state = if_else(b, any_in_warp(b, unusual), rare, common)
        offsets, shrink, scores = split_at(state, [len(old), len(old), len(scores)])

        accumulator = [b.fmul(x, shrink[r]) for (r, _), x in zip(elements_of(acc_ty), accumulator, strict=True)]
        weights = [exp2(b, fma(b, x, factor, offsets[r])) for (r, _), x in zip(elements_of(s_ty), scores, strict=True)]
        totals = [tree(b, row, b.fadd) for row in self.by_slot(s_ty, weights)]
        sums = [fma(b, x, y, z) for x, y, z in zip(old_sums, shrink, totals, strict=True)]
        return context.make_tuple(
            b, sig.return_type, [pack(b, x) for x in (weights, [*new, *maxima], sums, accumulator)]
        )

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
