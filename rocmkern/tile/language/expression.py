"""Expressions: what an elementwise operation computes of the numbers at one place of its arguments.

A function of numbers that `map` is given, or that an elementwise operation is declared by, is traced: called once with
stand-ins for its arguments (`Traced`), which note down what is done with them. What comes of it is an `Expression`, a
list of steps, each a primitive of earlier ones, every distinct one once ::

    >>> print(trace(lambda x, y: T.where(x > 0.0, x, 0.0) * y))
    <lambda>(x, y): %2 = 0.0; %3 = gt(x, %2); %4 = select(%3, x, %2); %5 = mul(%4, y)

Numbers are float32. Each step is rounded, and nothing is contracted: a product and a sum that are to be rounded once
are `multiply_add`. `PRIMITIVES` has the meaning of each primitive in NumPy; targets emit the same steps
(`Expression.evaluate`).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from rocmkern.runtime.errors import TileError

V = TypeVar("V")

# --------------------------------------------------------------------------------------------------------- primitives


def _fma(x: Any, y: Any, z: Any) -> np.ndarray:
    """The product is exact in float64."""
    return (np.multiply(x, y, dtype=np.float64) + z).astype(np.float32)


def _reciprocal_or_zero(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, np.float32(0), np.float32(1) / x)


def _activation(factor: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """``x * factor(x)`` in float64, with the limit at minus infinity."""

    def function(x: np.ndarray) -> np.ndarray:
        bounded = np.where(x < -1e3, -1e3, np.asarray(x, np.float64))
        return (np.where(x < 0, bounded, x) * factor(bounded)).astype(np.float32)

    return function


_erfc = np.vectorize(math.erfc, otypes=[np.float64])

#: Numbers of numbers, and conditions of numbers.
NUMBERS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "neg": np.negative, "abs": np.abs,
    "minimum": np.fmin, "maximum": np.fmax, "fma": _fma, "exp2": np.exp2, "log2": np.log2, "tanh": np.tanh,
    "sqrt": np.sqrt, "reciprocal_or_zero": _reciprocal_or_zero,
    "silu": _activation(lambda x: 1 / (1 + np.exp(-x))),
    "gelu": _activation(lambda x: _erfc(-x / math.sqrt(2)) / 2),
    "gelu_tanh": _activation(lambda x: 1 / (1 + np.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)))),
}  # fmt: skip
COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
CONDITIONS: dict[str, Callable[..., Any]] = {"and": np.logical_and, "or": np.logical_or, "not": np.logical_not}
#: Those of them that Python has operators for, of two numbers.
OPERATORS = ("add", "sub", "mul", "div", *COMPARISONS)
#: All of them, and a number by a condition: meaning in NumPy, by name.
PRIMITIVES: dict[str, Callable[..., Any]] = {**NUMBERS, **COMPARISONS, **CONDITIONS, "select": np.where}

# -------------------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Step:
    """One value of an expression.

    Attributes
    ----------
    operation : str
        ``"argument"``, ``"constant"``, or one of `PRIMITIVES`.
    operands : tuple of int
        Numbers of earlier steps.
    value : float
        Of a constant; a float32.
    """

    operation: str
    operands: tuple[int, ...] = ()
    value: float = 0.0


@dataclass(frozen=True)
class Expression:
    """What is computed of some arguments, which are the first steps; the last step is the result."""

    name: str
    arguments: tuple[str, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        names: list[str] = [*self.arguments]
        lines = []
        for number, step in enumerate(self.steps[len(names) :], len(names)):
            operands = ", ".join(names[i] for i in step.operands)
            names.append(f"%{number}")
            lines.append(f"%{number} = " + (f"{step.operation}({operands})" if step.operands else repr(step.value)))
        return f"{self.name}({', '.join(self.arguments)}): {'; '.join(lines) or names[-1]}"

    def evaluate(
        self, arguments: Sequence[V], primitive: Callable[..., V], constant: Callable[[float], V]
    ) -> V:  # numpydoc: the two callables are a target's
        """Compute the result, step by step.

        Parameters
        ----------
        arguments : sequence
            A value for each argument.
        primitive : callable
            ``primitive(name, *operands)``: the value of a step.
        constant : callable
            ``constant(number)``: the value that is a constant.
        """
        values = list(arguments)
        for step in self.steps[len(values) :]:
            if step.operation == "constant":
                values.append(constant(step.value))
            else:
                values.append(primitive(step.operation, *(values[i] for i in step.operands)))
        return values[-1]

    def numbers(self, *arguments: Any) -> np.ndarray:
        """What it is in NumPy, of float32 arrays and numbers."""
        given = [np.asarray(x, np.float32) for x in arguments]
        result = self.evaluate(given, lambda name, *operands: PRIMITIVES[name](*operands), np.float32)
        value, shape = np.asarray(result, np.float32), np.broadcast_shapes(*(x.shape for x in given))
        return value if value.shape == shape else np.broadcast_to(value, shape).copy()  # may be written


# ------------------------------------------------------------------------------------------------------------ tracing


class _Trace:
    """The steps so far, every distinct one once."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._numbers: dict[tuple[str, tuple[int, ...], str], int] = {}

    def number(self, step: Step) -> int:
        key = step.operation, step.operands, repr(step.value)  # 0.0 and -0.0 are equal, but not the same
        if key not in self._numbers:
            self._numbers[key] = len(self.steps)
            self.steps.append(step)
        return self._numbers[key]


class Traced:
    """A number, or a condition, in a function that is being traced."""

    __slots__ = ("is_condition", "number", "trace")

    trace: _Trace
    number: int
    is_condition: bool

    def __init__(self, trace: _Trace, number: int, is_condition: bool = False):
        self.trace, self.number, self.is_condition = trace, number, is_condition

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Traced:
        """An operator whose other side is a number of NumPy; its functions are refused."""
        name = next((name for name in OPERATORS if PRIMITIVES[name] is ufunc), None)
        return apply(name, *operands) if name and method == "__call__" else self._unknown()

    def __add__(self, other: Any) -> Traced:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Traced:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Traced:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Traced:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Traced:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Traced:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return apply("div", other, self)

    def __neg__(self) -> Traced:
        return apply("neg", self)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return apply("abs", self)

    def __lt__(self, other: Any) -> Traced:
        return apply("lt", self, other)

    def __le__(self, other: Any) -> Traced:
        return apply("le", self, other)

    def __gt__(self, other: Any) -> Traced:
        return apply("gt", self, other)

    def __ge__(self, other: Any) -> Traced:
        return apply("ge", self, other)

    def __eq__(self, other: object) -> Traced:  # type: ignore[override]
        return apply("eq", self, other)

    def __ne__(self, other: object) -> Traced:  # type: ignore[override]
        return apply("ne", self, other)

    def __and__(self, other: Any) -> Traced:
        return apply("and", self, other)

    def __or__(self, other: Any) -> Traced:
        return apply("or", self, other)

    def __invert__(self) -> Traced:
        return apply("not", self)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __pow__(self, exponent: Any) -> NoReturn:
        raise TileError("there is no `**`: multiply, or use T.exp2(y * T.log2(x))")

    def __bool__(self) -> bool:
        raise TileError(
            "a number is not known while the function is traced, so it decides nothing: for `if`, `and`, `or`, `not`, "
            "min() and max() use T.where(condition, a, b), `&`, `|`, `~`, T.minimum and T.maximum"
        )

    def _unknown(self, *_: Any) -> NoReturn:
        raise TileError(
            "a number is not known while the function is traced: functions of `math` and NumPy do not take it; use "
            "arithmetic, abs(), T.exp2, T.log2, T.sqrt, T.tanh, T.where, T.minimum, T.maximum, T.multiply_add"
        )


for _name in ("float", "int", "index", "iter", "len", "getitem", "array"):
    setattr(Traced, f"__{_name}__", Traced._unknown)


def apply(name: str, *operands: Any) -> Traced:
    """A primitive of traced values and numbers."""
    trace = next(x.trace for x in operands if isinstance(x, Traced))
    conditions = name in CONDITIONS
    for position, x in enumerate(operands):
        is_condition = isinstance(x, Traced) and x.is_condition
        if is_condition != (conditions or (name == "select" and position == 0)):
            wanted = "a number" if is_condition else "a condition, such as x > 0"
            raise TileError(f"{name}: argument {position + 1} must be {wanted}")
    numbers = tuple(_number(trace, name, x) for x in operands)
    return Traced(trace, trace.number(Step(name, numbers)), conditions or name in COMPARISONS)


def _number(trace: _Trace, name: str, x: Any) -> int:
    """Number of the step that is a traced value, or a number as a constant."""
    if isinstance(x, Traced):
        if x.trace is not trace:
            raise TileError(f"{name}: a number of another function that is being traced")
        return x.number
    if isinstance(x, np.ndarray) and x.ndim == 0:  # what NumPy makes of its numbers on the left of a comparison
        x = x[()]
    if isinstance(x, bool) or not isinstance(x, int | float | np.integer | np.floating):
        raise TileError(f"{name}: cannot combine a traced number with {type(x).__name__} {x!r}")
    with np.errstate(over="ignore"):
        return trace.number(Step("constant", value=float(np.float32(x))))


@functools.cache
def trace(fn: Callable[..., Any]) -> Expression:
    """The expression of a function of numbers.

    Raises
    ------
    TileError
        If the function does what cannot be traced.
    """
    parameters = inspect.signature(fn).parameters.values()
    names = tuple(p.name for p in parameters)
    if not names or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        raise TileError(f"{fn.__name__}: a function of numbers has one positional parameter or more, and no others")
    steps = _Trace()
    arguments = [Traced(steps, steps.number(Step("argument", value=float(i)))) for i in range(len(names))]
    try:
        result = fn(*arguments)
        if isinstance(result, Traced) and result.is_condition:
            raise TileError("it returns a condition: T.where(condition, 1.0, 0.0) is a number")
        last = _number(steps, "the result", result)
    except TileError as error:
        raise TileError(f"{fn.__name__}: {error}") from None
    return Expression(fn.__name__, names, _reached(list(steps.steps), last, len(names)))


def _reached(steps: list[Step], last: int, arguments: int) -> tuple[Step, ...]:
    """The arguments and the steps that the last one needs, numbered anew; the last one is the result."""
    needed = {last}
    for number in range(last, -1, -1):
        if number in needed:
            needed.update(steps[number].operands)
    kept = [*range(arguments), *sorted(n for n in needed if n >= arguments)]
    if last < arguments:
        kept.append(last)
    places = {number: place for place, number in enumerate(kept)}
    return tuple(Step(steps[n].operation, tuple(places[i] for i in steps[n].operands), steps[n].value) for n in kept)
