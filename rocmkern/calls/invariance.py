"""Whether operations are batch-invariant: whether no bit of a row depends on what else is in its call.

An operation normally takes the fastest way for the call that it gets, and the order of additions differs from way to
way: few rows are multiplied otherwise than many, and a few queries have their keys split over the whole device. Within
`batch_invariant` the way is chosen by what belongs to the row alone. Who chooses (`launch` and `tuning` of the
families) asks `active`. Kernels do not know of it: what becomes of a row of a tile never depends on its other rows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, TypeVar

from rocmkern.runtime.errors import ArgumentTypeError

Function = TypeVar("Function", bound=Callable[..., Any])
_PAUSING = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

_active: ContextVar[bool] = ContextVar("batch_invariant", default=False)
#: Whether the calls of this thread are batch-invariant.
active: Callable[[], bool] = _active.get


class _Block:
    """The block of `batch_invariant`; it may be entered again."""

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        self._tokens.append(_active.set(True))

    def __exit__(self, *error: object) -> None:
        _active.reset(self._tokens.pop())

    def __call__(self, function: Function) -> Function:
        if any(kind(function) for kind in _PAUSING):
            allowed = "a function that runs to its end when it is called; in others: `with rocmkern.batch_invariant():`"
            raise ArgumentTypeError("function", f"{function.__qualname__}, which pauses and goes on", allowed)

        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with _Block():
                return function(*args, **kwargs)

        return within  # type: ignore[return-value]


def batch_invariant() -> _Block:
    """Make the results of this thread's calls independent of the batch, to the bit, within the block.

    A row of a result is then the same bits whatever other rows there are in the call, how many there are, where it is
    among them, and into which pieces a prompt is cut, down to one token::

        with rocmkern.batch_invariant():
            whole = rocmkern.flash_attention(q, k, v, causal=True)
            last = rocmkern.decode_attention(q[:, :, -1:], k, v)  # the last row of it

    A row is what an operation defines without looking at another one: a query of a head of a sequence with the keys and
    values that it may see, a row of ``x`` of `linear`, a line of a norm, a token of `sample`. Among each other,
    `flash_attention` (dense or packed), `decode_attention` and `paged_attention` over caches of the dtype of the
    queries agree in the same way.

    Notes
    -----
    It may be nested, and is a decorator of functions as well, ``@rocmkern.batch_invariant()``, but not of generators
    and coroutines. It holds for the thread (and the task of asyncio) that enters it, and for what is called there; a
    thread that is started within does not inherit it.

    Promised for the same version of this library and of what compiles it, on the same target and architecture, for the
    same element types, options, dimensions and weights of the row. Where the memory lies, its alignment, and whether
    rows are contiguous does not matter; whether a weight is stored by rows or by columns may.

    Not promised: that results are those of calls outside of the block; which bits a NaN has, and that rows agree that
    see NaN or infinity among their values; and equal results on different devices.

    A function that PyTorch compiles may be called within the block. What it exports does not keep the block: that is
    refused, and what was exported may be called within one.

    Calls with ``num_splits`` above 1 are refused: the number of parts is part of the arithmetic.
    """
    return _Block()
