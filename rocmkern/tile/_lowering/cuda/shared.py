"""Rows that all warps of a block have, each with keys of its own: how an online softmax of them ends.

During the softmax a warp has the maximum, the sum and the accumulator of its own keys, for all rows.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.emit import LANES, VOID, asm, barrier, exp2, fmax, lane_index, pack, unpack
from rocmkern.tile._lowering.cuda.layouts import (
    column_of_lane,
    complete_rows,
    elements_of,
    is_shared,
    m_tiles,
    row_of_lane,
    storage,
    warp_index,
)
from rocmkern.tile._lowering.cuda.pipeline import StageLowering
from rocmkern.tile._lowering.cuda.windows import FunctionState, load_shared, states
from rocmkern.tile._lowering.shared.ir_types import I32, const


class SharedLowering(StageLowering):
    """The end of the online softmax."""

    def softmax_end(
        self, context: Any, b: ir.IRBuilder, sig: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        ty, maxima, sums = sig.args[3], complete_rows(b, sig.args[1], m), complete_rows(b, sig.args[2], l)
        if not is_shared(ty) or ty.hw[1] == 1:
            return context.make_tuple(b, sig.return_type, [pack(b, maxima), pack(b, sums), acc])
        factor = self.scalar(context, b, sig.args[0], scale, "f32")
        values, warps, warp = unpack(b, acc), ty.hw[1], warp_index(b)

        # All stages are done with: what they had of shared memory is used again.
        per_warp, statistics = 4 * LANES * storage(ty).count, 8 * ty.m * warps
        memory = self.used_again(b, statistics + warps * per_warp)
        row = b.shl(row_of_lane(b), const(I32, 3))
        with b.if_then(b.icmp_signed("==", column_of_lane(b), const(I32, 0))):
            own = b.add(b.add(memory, b.mul(warp, const(I32, 8 * ty.m))), row)
            for slot, pair in enumerate(zip(maxima, sums, strict=True)):
                code = f"st.shared.v2.b32 [$0+{64 * slot}], {{$1, $2}};"
                asm(b, code, VOID, "r,f,f,~{memory}", [own, *pair], effect=True)
        barrier(b)
        rows = [
            self.joined_row(b, ty, b.add(memory, row), slot, factor, maximum) for slot, maximum in enumerate(maxima)
        ]
        scaled = [b.fmul(x, rows[slot][2]) for (slot, _), x in zip(elements_of(ty), values, strict=True)]

        # Each warp adds up its share of the columns.
        lane = b.add(b.add(memory, const(I32, statistics)), b.shl(lane_index(b), const(I32, 4)))
        own = b.add(lane, b.mul(warp, const(I32, per_warp)))
        for i in range(0, len(scaled), 4):
            code = f"st.shared.v4.b32 [$0+{4 * LANES * i}], {{$1, $2, $3, $4}};"
            asm(b, code, VOID, "r,f,f,f,f,~{memory}", [own, *scaled[i : i + 4]], effect=True)
        barrier(b)
        groups = ty.n // 8 // warps  # of 8 columns, for each m-tile
        first = b.add(lane, b.mul(warp, const(I32, 16 * LANES * groups)))
        result = []
        for i in range(m_tiles(ty)):
            for group in range(groups):
                at = 16 * LANES * (i * ty.n // 8 + group)
                parts = [load_shared(b, first, w * per_warp + at, 4) for w in range(warps)]
                result += [functools.reduce(b.fadd, each) for each in zip(*parts, strict=True)]
        parts = [[x[0] for x in rows], [x[1] for x in rows], result]
        return context.make_tuple(b, sig.return_type, [pack(b, part) for part in parts])

    def joined_row(
        self, b: ir.IRBuilder, ty: Any, address: ir.Value, slot: int, factor: ir.Value, own: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Maximum and sum of a row over all warps, and what this warp's part is to be multiplied by.

        Exponents are differences of rounded products, as in `softmax_step`.
        """
        pairs = [load_shared(b, address, 8 * ty.m * w + 64 * slot, 2) for w in range(ty.hw[1])]
        maximum = functools.reduce(functools.partial(fmax, b), [pair[0] for pair in pairs])
        base = self.finite_base(b, maximum)
        product = b.fmul(base, factor)

        def shrink(x: ir.Value) -> ir.Value:
            mine = b.fmul(x, factor)
            exact = b.fmul(b.fsub(x, base), factor)
            huge = b.or_(self.is_huge(b, product), self.is_huge(b, mine))
            return exp2(b, b.select(huge, exact, b.fsub(mine, product)))

        total = functools.reduce(b.fadd, [b.fmul(part, shrink(x)) for x, part in pairs])
        return maximum, total, shrink(own)

    @staticmethod
    def used_again(b: ir.IRBuilder, nbytes: int) -> ir.Value:
        """Address of shared memory from its beginning on, after all copies to it and all reads of it."""
        asm(b, "cp.async.wait_group 0;", VOID, "~{memory}", [], effect=True)
        barrier(b)
        state = states.setdefault(b.function, FunctionState())
        state.bytes = max(state.bytes, nbytes)
        return StageLowering.local_symbol(b, state.bytes)
