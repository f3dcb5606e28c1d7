"""Being told of every launch of this process: before it starts, and after it was submitted.

A test run wants to know which kernel was launched last when a process dies, and looks at guard bands after each one.
Without a watcher a launch costs nothing more; what was prepared before the first watcher came is not watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rocmkern.tile.language.kernel import Kernel


@dataclass(frozen=True)
class Watcher:
    """What is called with the kernel's name, in the thread that launches.

    Attributes
    ----------
    before, after : callable, optional
        Called right before a launch, and when it was submitted (on a CPU: when it is done).
    code : callable, optional
        Called right before a launch with the sha256 of the code that a driver was given for it, where there is one.
    """

    before: Callable[[str], None] | None = None
    after: Callable[[str], None] | None = None
    code: Callable[[str], None] | None = None


#: Who is told of launches now.
watchers: tuple[Watcher, ...] = ()


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Tell a watcher of the launches of all threads, within the block."""
    global watchers
    watchers = (*watchers, watcher)
    try:
        yield
    finally:
        watchers = tuple(each for each in watchers if each is not watcher)


@contextmanager
def launching(name: str, code: str = "") -> Iterator[None]:
    """The launch of a kernel, of code with this sha256; an error within is no launch that was submitted."""
    for watcher in watchers:
        if watcher.before is not None:
            watcher.before(name)
        if watcher.code is not None and code:
            watcher.code(code)
    yield
    for watcher in watchers:
        if watcher.after is not None:
            watcher.after(name)


def announced(name: str, start: Callable[[], tuple[Any, ...]], code: str = "") -> Callable[[], tuple[Any, ...]]:
    """A driver's launch call that tells the watchers; the same call where nobody watches."""
    if not watchers:
        return start

    def launch() -> tuple[Any, ...]:
        with launching(name, code):
            return start()

    return launch


#: Called with (target, kernel, args, stream, prepared) after each launch; `prepared` can make it again.
Observer = Callable[[Any, Kernel, Sequence[Any], int, Any], None]


class _Thread(threading.local):
    observer: Observer | None = None


#: ``observer`` is told of this thread's launches.
thread: _Thread = _Thread()
