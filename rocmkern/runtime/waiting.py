"""Waiting by polling, with a deadline: a stuck kernel becomes an error that names it instead of a hang."""

from __future__ import annotations

import time
from collections.abc import Callable

from rocmkern.runtime.errors import DeadlineError

_FIRST_SLEEP_S = 20e-6
_LONGEST_SLEEP_S = 2e-3


def poll(
    done: Callable[[], bool],
    what: Callable[[], str],
    deadline_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when `done` does; raise `DeadlineError` naming ``what()`` after `deadline_s` seconds.

    The pauses between two looks grow from 20 us to 2 ms, so that a short wait is short and a long one costs nothing.
    """
    if done():
        return
    end, pause = clock() + deadline_s, _FIRST_SLEEP_S
    while True:
        sleep(pause)
        if done():
            return
        if clock() >= end:
            raise DeadlineError(
                f"{what()} did not finish within {deadline_s:g} s: it is stuck, or deadline_s= of the ResourceManager "
                "is too short. The device is not reset (other programs use it); end this process to get rid of the work"
            )
        pause = min(2 * pause, _LONGEST_SLEEP_S)
