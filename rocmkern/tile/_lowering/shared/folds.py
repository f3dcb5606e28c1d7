"""Rows that are repeated and folded, as GPUs do it: a lane has all the rows that belong together, or none of them."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from rocmkern.tile.language.kinds import threads_per_row


class FoldLowering(ABC):
    """`repeat_rows`, `fold_sum` and `fold_max`, for the lowering of a GPU target to derive from."""

    numba: SimpleNamespace

    @abstractmethod
    def in_lane(self, b: ir.IRBuilder, ty: Any, x: ir.Value) -> list[ir.Value]:
        """What a lane has of complete rows, or of a tile, one row after the other."""

    @abstractmethod
    def of_lane(self, b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        """Rows, or a tile, of which a lane has these values."""

    @abstractmethod
    def larger(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        """The larger of two float32; NaN is ignored."""

    def repeat_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, count: Any) -> ir.Value:
        ty = self.of_lines(sig.args[0], "repeated")
        return self.of_lane(b, self.in_lane(b, ty, x) * (sig.return_type.m // ty.m))

    def fold_sum(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, m: Any) -> ir.Value:
        return self.folded(b, sig, x, b.fadd)

    def fold_max(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, m: Any) -> ir.Value:
        return self.folded(b, sig, x, functools.partial(self.larger, b))

    def folded(self, b: ir.IRBuilder, sig: Any, x: ir.Value, combine: Callable) -> ir.Value:
        """Rows, or a tile, each of those that are combined in its turn."""
        ty = self.of_lines(sig.args[0], "folded")
        values = self.in_lane(b, ty, x)
        size = len(values) * sig.return_type.m // ty.m
        return self.of_lane(b, [functools.reduce(combine, values[i::size]) for i in range(size)])

    def of_lines(self, ty: Any, done: str) -> Any:
        """The type, if its rows lie along lanes."""
        if not threads_per_row(ty.hw):
            raise self.numba.TypingError(f"{ty.hw[0]}: only rows along lanes can be {done}, got {ty}")
        return ty
