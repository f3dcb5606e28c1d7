"""What the gradients of operations share: which are wanted, and where they go.

A gradient has the shape and the dtype of its argument, and the kind of the first array of the call. ``needs`` names the
arguments whose gradients are wanted; they come in the order of the operation's arguments, a single one by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic

from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import Argument, accept_outs
from rocmkern.calls.types import Array
from rocmkern.calls.view import View
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError


class Wanted(Generic[Array]):
    """The gradients that a call is asked for, and then gives.

    Parameters
    ----------
    needs : sequence of str, or None
        Names of the arguments; None is all that are given.
    arguments : mapping of str to Argument or None
        What has a gradient, in the order of the operation; None: not given.
    """

    def __init__(self, needs: Any, arguments: Mapping[str, Argument | None]):
        given = {name: x for name, x in arguments.items() if x is not None}
        names = list(given) if needs is None else _names(needs, list(given))
        self._like = {name: x for name, x in given.items() if name in names}
        self._results: dict[str, Argument[Array]] = {}

    def place(self, out: Any, accumulate: bool, inputs: Sequence[Argument]) -> bool:
        """Check ``out=`` and ``accumulate=``, and return the latter; the first of ``inputs`` says where results lie."""
        accumulate = accumulates(accumulate, out)
        if out is None:
            for name, x in self._like.items():
                self._results[name] = _results.allocate(f"d{name}", x.shape, x.dtype, inputs[0])
            return accumulate
        names = ", ".join(f"d{name}" for name in self._like)
        outs = (out,) if len(self._like) == 1 and not isinstance(out, (tuple, list)) else out
        likes = [(x.shape, x.dtype) for x in self._like.values()]
        words = f"a tuple of {len(likes)} arrays, for {names}"
        self._results = dict(zip(self._like, accept_outs(outs, likes, words, inputs), strict=True))
        return accumulate

    def view(self, name: str) -> View | None:
        """Where a gradient goes; None where it is not wanted."""
        return self._results[name].view if name in self._results else None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not any(result.view.size for result in self._results.values())

    @property
    def sources(self) -> Array | tuple[Array, ...]:
        """The gradients as the caller gets them."""
        sources = tuple(result.source for result in self._results.values())
        return sources if len(sources) > 1 else sources[0]


def accumulates(accumulate: bool, out: Any) -> bool:
    """Whether gradients are added to what ``out=`` holds, which must be given then."""
    accumulate = _checks.flag("accumulate", accumulate)
    if accumulate and out is None:
        raise ArgumentError("accumulate", "True without out=", "out= with the sums so far, or False")
    return accumulate


def _names(needs: Any, allowed: list[str]) -> list[str]:
    """The names that ``needs`` holds."""
    words = f"a tuple of some of {', '.join(map(repr, allowed))}"
    if isinstance(needs, str) or not isinstance(needs, Iterable):
        raise ArgumentTypeError("needs", repr(needs), words)
    names = list(needs)
    wrong = [name for name in names if not isinstance(name, str) or name not in allowed]
    if wrong:
        raise ArgumentError("needs", f"{wrong[0]!r} among {len(names)} names", words)
    if not names or len({*names}) != len(names):
        given = "a name more than once" if names else "an empty one"
        raise ArgumentError("needs", given, f"{words}, each at most once")
    return names
