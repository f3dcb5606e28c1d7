"""Small tensors that a manager keeps until it is closed: constants, and counters that are zero between calls.

They count as held, but not as leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np

from rocmkern.runtime import fork
from rocmkern.runtime.handle import Handle
from rocmkern.runtime.mutex import Mutex, alone

_CONSTANTS = 64
_FEWEST_COUNTERS = 256

Kept = TypeVar("Kept", bound=Handle)


class Constants(Generic[Kept]):
    """Copies of small arrays by their content, as many as were asked for last."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, tuple[int, ...], bytes], Kept] = {}
        self._lock = Mutex()
        fork.renew_locks(self, "_lock")

    def get(self, a: np.ndarray, make: Callable[[], Kept]) -> Kept:
        """The copy of an array, made by `make` when its content is first asked for."""
        key = (a.dtype.str, a.shape, a.tobytes())
        with alone(self._lock):
            tensor = self._made.pop(key, None)
            if tensor is None:
                tensor = make()
            self._made[key] = tensor
            self._forget()
        return tensor

    def _forget(self) -> None:
        while len(self._made) > _CONSTANTS:
            del self._made[next(iter(self._made))]

    def clear(self) -> None:
        """Let go of all."""
        self._made.clear()


class Counters(Generic[Kept]):
    """Zeros with which kernels count, by who may use them at the same time."""

    def __init__(self) -> None:
        self._made: dict[Hashable, list[Kept]] = {}
        self._lock = Mutex()
        fork.renew_locks(self, "_lock")

    def get(self, count: int, user: Hashable, make: Callable[[int], Kept]) -> Kept:
        """At least `count` zeros for a user, made by `make`, which is given how many."""
        with alone(self._lock):
            made = self._made.setdefault(user, [])
            if not made or made[-1].size < count:
                # Those before may be in use still, and stay: all of them are no more than the last one.
                made.append(make(max(_FEWEST_COUNTERS, 1 << (count - 1).bit_length())))
            return made[-1]

    def clear(self) -> None:
        """Let go of all."""
        self._made.clear()
