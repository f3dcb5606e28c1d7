"""Expressions of elementwise operations as LLVM IR, for float32 scalars and for vectors of any width.

`ExpressionEmitter` has a method for each primitive of `language.expression`. What LLVM has an instruction or an
intrinsic for is here; a target derives and brings its powers, logarithms and hyperbolic tangents, and whatever it does
better. How the elements of a tile are visited is the business of a target's ``elementwise``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from llvmlite import ir

from rocmkern.tile._lowering.shared.activations import Activations
from rocmkern.tile._lowering.shared.ir_types import const
from rocmkern.tile._lowering.shared.tensors import call
from rocmkern.tile.language.expression import Expression

#: Relations of comparisons; only != is true of NaN.
RELATIONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
#: Primitives whose names are Python's.
RENAMED = {"and": "and_", "or": "or_", "not": "not_"}


class ExpressionEmitter(ABC):
    """Emits expressions by one builder; an operation makes one for all its elements."""

    activations: ClassVar[Activations]
    #: Primitives that take no vectors.
    of_scalars: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, b: ir.IRBuilder):
        self.b = b

    def emit(self, expression: Expression, arguments: Sequence[ir.Value]) -> ir.Value:
        """The result for arguments of one type: float32, or vectors of as many."""
        ty = arguments[0].type
        return expression.evaluate(arguments, self.primitive, lambda number: const(ty, number))

    def takes_vectors(self, expression: Expression) -> bool:
        """Whether the arguments of an expression may be vectors."""
        return self.of_scalars.isdisjoint(step.operation for step in expression.steps)

    def primitive(self, name: str, *operands: ir.Value) -> ir.Value:
        """One step of an expression."""
        if name in RELATIONS:
            return self.compared(RELATIONS[name], *operands)
        return getattr(self, RENAMED.get(name, name))(*operands)

    def intrinsic(self, name: str, *operands: ir.Value) -> ir.Value:
        """``llvm.<name>`` of float32 or vectors."""
        ty = operands[0].type
        suffix = f"v{ty.count}f32" if isinstance(ty, ir.VectorType) else "f32"
        return call(self.b, f"llvm.{name}.{suffix}", ty, list(operands))

    # ------------------------------------------------------------------------------------------ what a target brings
    @abstractmethod
    def exp2(self, x: ir.Value) -> ir.Value:
        """``2 ** x``; it may be 0 below 2 ** -126."""

    @abstractmethod
    def log2(self, x: ir.Value) -> ir.Value:
        """Base-2 logarithm."""

    @abstractmethod
    def tanh(self, x: ir.Value) -> ir.Value:
        """Hyperbolic tangent."""

    # ---------------------------------------------------------------------------------------------------- arithmetic
    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.fadd(x, y)

    def sub(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.fsub(x, y)

    def mul(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.fmul(x, y)

    def div(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.fdiv(x, y)

    def neg(self, x: ir.Value) -> ir.Value:
        return self.b.fmul(x, const(x.type, -1.0))

    def fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return self.intrinsic("fma", x, y, z)

    def abs(self, x: ir.Value) -> ir.Value:
        return self.intrinsic("fabs", x)

    def sqrt(self, x: ir.Value) -> ir.Value:
        return self.intrinsic("sqrt", x)

    def minimum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.intrinsic("minnum", x, y)

    def maximum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.intrinsic("maxnum", x, y)

    def reciprocal_or_zero(self, x: ir.Value) -> ir.Value:
        zero = const(x.type, 0.0)
        return self.b.select(self.b.fcmp_ordered("==", x, zero), zero, self.b.fdiv(const(x.type, 1.0), x))

    def silu(self, x: ir.Value) -> ir.Value:
        return self.activations.silu(self.b, x)

    def gelu(self, x: ir.Value) -> ir.Value:
        return self.activations.gelu(self.b, x)

    def gelu_tanh(self, x: ir.Value) -> ir.Value:
        return self.activations.gelu_tanh(self.b, x)

    # ---------------------------------------------------------------------------------------------------- conditions
    def compared(self, relation: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """A comparison as a condition."""
        compare = self.b.fcmp_unordered if relation == "!=" else self.b.fcmp_ordered
        return compare(relation, x, y)

    def and_(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.and_(x, y)

    def or_(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.or_(x, y)

    def not_(self, x: ir.Value) -> ir.Value:
        return self.b.not_(x)

    def select(self, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.b.select(condition, x, y)
