"""Operations: what a kernel may do, declared once for the interpreter and all targets.

::

    def _reduced(tile):
        return RowsKind(want(TileKind, tile).m, "f32", tile.hw)

    @operation(_reduced)
    def rowmax(tile: Tile) -> Rows:
        \"\"\"Largest value of each row; NaN is ignored. Does not consume.\"\"\"
        return np.fmax.reduce(tile, axis=1)

The function is the meaning of the operation. Its annotations say what a kernel hands over and gets; what its body sees
are NumPy arrays, in place of tiles, rows, tensors and operands (a stage is there as it is), and NumPy arrays are what
it returns. The rule takes the kinds of the arguments and returns the kind of the result, or refuses: see `kinds`.
``consumes`` names the arguments whose tiles, operands and stages are dead afterwards; a target may reuse their storage.

When a kernel calls an operation in the interpreter, the rule is asked first, so that what the compilers refuse is
refused in the same words; then what is consumed is marked, and the meaning computes. `binding` makes the same record
known to numba, and each target has a method of the operation's name that emits its code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from rocmkern.runtime.errors import TileError
from rocmkern.tile.language import values
from rocmkern.tile.language.expression import Expression
from rocmkern.tile.language.kinds import ScalarKind
from rocmkern.tile.language.values import TAKEN, key_of, value_of

F = TypeVar("F", bound=Callable[..., Any])

#: Kinds of arguments that an operation remembers the result's kind of.
KEPT = 1024
#: In their place where the result depends on what the integers are; and an integer of which that is not known.
LITERAL: Any = object()
UNKNOWN: ScalarKind = ScalarKind("int64")
KEYWORDS = "tile operations take positional arguments only"


@dataclass(frozen=True)
class Operation:
    """One operation of the tile language.

    Attributes
    ----------
    name : str
        What kernels call it; of an operator, its name in Python's module ``operator``.
    meaning : callable
        What it computes, of NumPy arrays.
    rule : callable
        The kind of the result, of the kinds of the arguments; it raises `TileError`.
    consumes : tuple of str
        Parameters whose tiles, operands and stages are dead afterwards.
    expression : Expression, optional
        Of an elementwise operation: what it computes of the numbers at one place. Targets emit it.
    scalar : callable, optional
        The same as a function of traced numbers, for use in a function of `map`.
    by : str
        Its name in what is said of a value that it consumed.
    """

    name: str
    meaning: Callable[..., Any]
    rule: Callable[..., Any]
    consumes: tuple[str, ...] = ()
    expression: Expression | None = None
    scalar: Callable[..., Any] | None = None
    by: str = ""
    signature: inspect.Signature = field(init=False, compare=False)
    _consumed: frozenset[int] = field(init=False, compare=False, repr=False)
    _all_from: int | None = field(init=False, compare=False, repr=False)
    _known: dict[tuple[Any, ...], tuple[Any, Any]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        signature = inspect.signature(self.meaning)
        consumed = [each for each in enumerate(signature.parameters.values()) if each[1].name in self.consumes]
        several = [number for number, p in consumed if p.kind is inspect.Parameter.VAR_POSITIONAL]
        for name, value in {
            "signature": signature,
            "by": self.by or self.name,
            "_consumed": frozenset(number for number, _ in consumed),
            "_all_from": several[0] if several else None,
            "_known": {},
        }.items():
            object.__setattr__(self, name, value)

    def typed(self, kinds: tuple[Any, ...]) -> Any:
        """The kind of the result.

        Raises
        ------
        TileError
            That begins with the operation's name.
        """
        try:
            self.signature.bind(*kinds)
            return self.rule(*kinds)
        except (TypeError, TileError) as error:
            raise TileError(f"{self.name}: {error}") from None

    def consumed(self, number: int) -> bool:
        """Whether an argument is consumed if it is a tile, an operand or a stage."""
        return number in self._consumed or (self._all_from is not None and number >= self._all_from)

    def __call__(self, *given: Any) -> Any:
        """Compute it in the interpreter."""
        key = tuple(map(key_of, given))
        known = self._known.get(key)
        if known is LITERAL:
            known = self._known.get((key, _integers(given)))
        kind = (known or self._found(key, given))[0]
        arguments = []
        for number, x in enumerate(given):
            take = TAKEN.get(type(x))
            arguments.append(x if take is None else take(x, self.by if self.consumed(number) else None))
        try:
            if values.block.quiet:
                result = self.meaning(*arguments)
            else:
                with np.errstate(all="ignore"):
                    result = self.meaning(*arguments)
        except TileError as error:
            raise TileError(f"{self.name}: {error}") from None
        return value_of(result, kind)

    def _found(self, key: tuple, given: tuple) -> tuple:
        """The kind of the result, of values. It is kept, because the interpreter asks at every call.

        Most rules do not care what an integer is, so it is not a part of the key unless they do.
        """
        if len(self._known) >= KEPT:
            self._known.clear()
        kinds = tuple(map(values.kind_of, given))
        # Values are kept with it whose keys are theirs only while they live.
        kept = [x for x in given if not isinstance(x, np.ndarray | values.Tile | values.Stage)]
        unknown = tuple([UNKNOWN if type(x) is int else kind for x, kind in zip(given, kinds, strict=True)])
        try:
            known = self._known[key] = self.typed(unknown), kept
        except TileError:
            known = self.typed(kinds), kept
            self._known[key] = LITERAL
            self._known[key, _integers(given)] = known
        return known


def _integers(given: tuple) -> tuple[int, ...]:
    return tuple([x for x in given if type(x) is int])


#: All operations, by name.
OPERATIONS: dict[str, Operation] = {}
#: Operators, by the function of Python's module ``operator`` that is the operator.
OPERATORS: dict[Callable[..., Any], Operation] = {}
#: The operation that a function declares, which is what kernels call.
OF_FUNCTION: dict[Callable[..., Any], Operation] = {}


def operation(
    rule: Callable[..., Any],
    consumes: tuple[str, ...] = (),
    expression: Expression | None = None,
    scalar: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Declare an operation: the decorated function is its meaning. See `Operation` for the arguments."""

    def declared(meaning: F) -> F:
        record = Operation(meaning.__name__, meaning, rule, consumes, expression, scalar)

        @functools.wraps(meaning)
        def function(*given: Any, **named: Any) -> Any:
            if named:
                raise TileError(f"{record.name}: {KEYWORDS}")
            if scalar is not None and any(map(values.is_traced, given)):
                return scalar(*given)
            return record(*given)

        OPERATIONS[record.name] = OF_FUNCTION[function] = record
        return function  # type: ignore[return-value]

    return declared


def operator_of(
    op: Callable[..., Any],
    rule: Callable[..., Any],
    meaning: Callable[..., Any],
    consumes: tuple[str, ...] = (),
    by: str = "",
) -> None:
    """Declare an operator of Python for values of the tile language."""
    record = Operation(op.__name__.rstrip("_"), meaning, rule, consumes, by=by)
    OPERATORS[op] = values.operators[op] = record
