"""Locks and forks: whoever of the parent's threads held a lock does not exist in the child.

So a child gets new locks. Where what a lock guards would be of no use half done (a compiler's state), a fork waits
until nobody holds it.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from rocmkern.runtime.mutex import Mutex

# No callbacks, and so no code that runs when an owner goes: those that are gone are dropped when there are many.
_owners: list[tuple[weakref.ref[Any], tuple[str, ...]]] = []
_MANY = 64
_limit = _MANY
#: A fork does not wait longer.
_PATIENCE_S = 30.0


def renew_locks(owner: Any, *names: str) -> None:
    """Let a forked child have new locks in place of some attributes of an object, as long as that lives."""
    global _limit
    if len(_owners) >= _limit:
        _owners[:] = [known for known in _owners if known[0]() is not None]
        _limit = max(_MANY, 2 * len(_owners))
    _owners.append((weakref.ref(owner), names))


def await_lock(owner: Any, name: str) -> None:
    """Let forks wait for a lock, and a forked child have a new one; `owner` lives as long as the process.

    Forks take such locks in the reverse order of their registration, so what is held together with this one, such as
    the lock of `logging`, must have been registered before: otherwise a fork has that and waits for this.
    """
    renew_locks(owner, name)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lambda: getattr(owner, name).acquire(timeout=_PATIENCE_S),
            after_in_parent=lambda: _release(getattr(owner, name)),
        )


def _release(lock: Any) -> None:
    if lock._is_owned():  # if not, it could not be had
        lock.release()


def _after_fork_in_child() -> None:
    for reference, names in list(_owners):
        owner = reference()
        for name in names if owner is not None else ():
            setattr(owner, name, Mutex())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
