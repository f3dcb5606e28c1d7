"""Locks in a forked child: whoever of the parent's threads held them does not exist there."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

# No callbacks, and so no code that runs when an owner goes: those that are gone are dropped when there are many.
_owners: list[tuple[weakref.ref[Any], tuple[str, ...]]] = []
_MANY = 64
_limit = _MANY


def renew_locks(owner: Any, *names: str) -> None:
    """Let a forked child have new locks in place of some attributes of an object, as long as that lives."""
    global _limit
    if len(_owners) >= _limit:
        _owners[:] = [known for known in _owners if known[0]() is not None]
        _limit = max(_MANY, 2 * len(_owners))
    _owners.append((weakref.ref(owner), names))


def _after_fork_in_child() -> None:
    for reference, names in list(_owners):
        owner = reference()
        for name in names if owner is not None else ():
            setattr(owner, name, threading.Lock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
