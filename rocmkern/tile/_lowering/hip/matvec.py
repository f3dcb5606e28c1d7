"""Rows of quantized blocks times a vector, for rows along lanes.

A lane has a part of each of its wave's rows, whole blocks or 32 elements of one. Numbers become float16, two in a
word, without their scale; fused multiply-adds take a half of a word, and float32 or a half of the vector's, and add
float32. Scales are applied to the sums.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.hip.backend import TILE
from rocmkern.tile._lowering.hip.emit import GLOBAL, array_of, elements_of, flags_of, opaque, vector_of
from rocmkern.tile._lowering.hip.emit import math as intrinsic
from rocmkern.tile._lowering.hip.layouts import LaneLayout, LineLayout
from rocmkern.tile._lowering.hip.memory import CHUNK_BYTES, in_space, load_from, memory_int, widen
from rocmkern.tile._lowering.hip.pipeline import StageLowering
from rocmkern.tile._lowering.hip.quantized import Reader, block_of, in_order, words_of
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I8, I32, I64, const
from rocmkern.tile._lowering.shared.lanes import FoldingBuilder, PairReader
from rocmkern.tile._lowering.shared.tensors import if_else
from rocmkern.tile.formats import FORMATS, RUN, Format, Run
from rocmkern.tile.language.kinds import DTYPES, STORABLE

#: Elements that a lane takes of a block at a time.
UNIT = 32


class MatvecLowering(StageLowering):
    """`tile.matvec`."""

    def matvec(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, vector: Any,
        valid: Any,
    ) -> ir.Value:  # fmt: skip
        _, x_ty, index_ty, col0_ty, n_ty, vector_ty, valid_ty = sig.args
        layout = LaneLayout(TILE.Tile(valid_ty.m, n_ty.literal_value, valid_ty.hw))
        packed = isinstance(x_ty, TILE.Quantized) and x_ty.format in PairReader.FORMATS
        if (
            not packed
            or vector_ty.dtype not in STORABLE
            or not isinstance(layout, LineLayout)
            or layout.registers % UNIT
        ):
            return super().matvec(context, b, sig, cfg, x, index, col0, n, vector, valid)
        layout.check(TILE.Tile(valid_ty.m, n_ty.literal_value, valid_ty.hw))
        data, (count, columns), strides = self.unpack_tensor(context, b, x_ty, x)
        base, kind = in_space(b, data, GLOBAL), FORMATS[x_ty.format]
        offsets = self.row_offsets(context, b, index_ty, index, strides[:-1], layout.row_blocks)
        # A row that does not exist is read as the first one.
        offsets = [b.select(ok, offset, const(I64, 0)) for ok, offset in zip(flags_of(b, valid), offsets, strict=True)]
        rows = [b.gep(base, [offset], source_etype=I8) for offset in offsets]
        first = b.add(self.scalar(context, b, col0_ty, col0, "i64"), b.zext(layout.first_column(b), I64))
        starts = [
            layout.width * c + e
            for c in range(layout.vectors(n_ty.literal_value))
            for e in range(0, layout.registers, UNIT)
        ]
        tensor = self.unpack_tensor(context, b, vector_ty, vector)

        def sums() -> list[ir.Value]:
            totals = [const(F32, 0.0)] * len(rows)
            for start in starts:
                column = b.add(first, const(I64, start))
                exists = b.icmp_signed("<", column, columns)
                column = b.select(exists, column, const(I64, 0))
                values = self.values(b, vector_ty.dtype, tensor, column)
                # Beside a float16, a number that lacks a power of two is no matter.
                parts = self.dots(b, kind, rows, column, values, vector_ty.dtype != "float16")
                totals = [
                    b.fadd(total, b.select(exists, part, const(F32, 0.0)))
                    for total, part in zip(totals, parts, strict=True)
                ]
            return totals

        some = b.and_(*(b.icmp_signed(">", extent, const(I64, 0)) for extent in (count, columns)))
        totals = if_else(b, some, sums, lambda: [const(F32, 0.0)] * len(rows))
        return array_of(b, [layout.over_lanes(b, b.fadd, total) for total in totals])

    @staticmethod
    def values(b: ir.IRBuilder, dtype: str, vector: tuple, column: ir.Value) -> list[ir.Value]:
        """`UNIT` elements of a vector (data, shape and strides) from a column on, as float32."""
        data, _, (stride,) = vector
        base, element, size = in_space(b, data, GLOBAL), memory_int(dtype), DTYPES[dtype]
        place, count = b.mul(column, stride), CHUNK_BYTES // size
        piece = ir.VectorType(element, count)

        def together() -> list[ir.Value]:
            starts = [b.add(place, const(I64, size * i)) for i in range(0, UNIT, count)]
            return [load_from(b, base, start, piece, CHUNK_BYTES) for start in starts]

        def one_by_one() -> list[ir.Value]:
            places = [b.add(place, b.mul(stride, const(I64, i))) for i in range(UNIT)]
            elements = [load_from(b, base, at, element, size) for at in places]
            return [vector_of(b, elements[i : i + count]) for i in range(0, UNIT, count)]

        aligned = b.icmp_signed("==", b.and_(b.ptrtoint(data, I64), const(I64, CHUNK_BYTES - 1)), const(I64, 0))
        regular = b.and_(aligned, b.icmp_signed("==", stride, const(I64, size)))
        pieces = if_else(b, regular, together, one_by_one)
        return [x for bits in pieces for x in elements_of(b, widen(b, bits, dtype))]

    @classmethod
    def dots(
        cls, b: ir.IRBuilder, kind: Format, rows: list[ir.Value], column: ir.Value, values: list[ir.Value], whole: bool
    ) -> list[ir.Value]:
        """Sums of products of `UNIT` elements of each row, from a column on that is a multiple of it, and values.

        ``whole``: numbers get the power of two that they lack; otherwise the sums do.
        """
        block, inside = block_of(b, kind, column)
        parts, plain = [], None
        for row in rows:
            fold = FoldingBuilder(b)
            reader = Reader(fold, words_of(b, row, block))
            first = const(I32, 0) if kind.elements == UNIT else fold.sum(inside, 0, UNIT.bit_length() - 1)
            runs = [kind.emit(fold, reader, fold.add(first, const(I32, i)), RUN) for i in range(0, UNIT, RUN)]
            if runs[0].minimum is not None and plain is None:
                one = opaque(b, const(F32, 1.0), "v")  # known, it would not be fused with the conversion
                plain = functools.reduce(lambda total, x: intrinsic(b, "fma", x, one, total), values, const(F32, 0.0))
            if whole and runs[0].factor != 1:
                runs = [
                    replace(run, numbers=[reader.fma_pairs(x, run.factor, -0.0) for x in run.numbers], factor=1.0)
                    for run in runs
                ]
            parts.append(cls.dot_of_runs(b, kind, runs, values, plain, reader.nan))
        return parts

    @staticmethod
    def dot_of_runs(
        b: ir.IRBuilder, kind: Format, runs: list[Run], values: list[ir.Value], plain: Any, nan: list[ir.Value]
    ) -> ir.Value:
        """The sum for one row; ``plain`` is that of the values, ``nan`` says where a number should have been NaN."""
        total, shared = const(F32, 0.0), [runs] if kind.group >= UNIT else [[run] for run in runs]
        taken = iter(values)
        for together in shared:
            part = const(F32, 0.0)
            for run in together:
                for number in in_order(b, run.numbers):
                    part = intrinsic(b, "fma", b.fpext(number, F32), next(taken), part)
            run = together[0]
            part = part if run.factor == 1 else b.fmul(part, const(F32, run.factor))
            total = intrinsic(b, "fma", part, run.scale, total)
        if runs[0].minimum is not None:
            total = b.fsub(total, b.fmul(plain, runs[0].minimum))
        is_nan = functools.reduce(b.or_, nan, const(I1, 0))
        return b.select(is_nan, const(F32, math.nan), total)
