"""What a process has one of: made by the first thread that asks, while the others wait.

`functools.cache` is no lock: threads that ask at once each run the function, and each get an object of their own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from rocmkern.runtime.mutex import Mutex

Function = TypeVar("Function", bound=Callable[..., Any])

# One lock for all, which a thread may take again: what is made may ask for more, in any order.
_making = Mutex()


def once(function: Function) -> Function:
    """Decorate a function of hashable arguments: it is run once for each; an error is not kept.

    The result has ``cache_clear``, as of `functools.cache`.
    """
    results: dict[tuple[Hashable, ...], Any] = {}

    @functools.wraps(function)
    def result(*arguments: Hashable) -> Any:
        try:
            return results[arguments]
        except KeyError:
            pass  # what follows is no part of this error
        with _making:
            if arguments not in results:
                # Where a signal's handler has asked meanwhile, what it has made.
                return results.setdefault(arguments, function(*arguments))
            return results[arguments]

    result.cache_clear = results.clear  # type: ignore[attr-defined]
    return result  # type: ignore[return-value]


def making() -> bool:
    """Whether this thread is making something, so that others wait for it."""
    owned: bool = _making._is_owned()
    return owned


def _after_fork_in_child() -> None:
    global _making
    _making = Mutex()  # a thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
