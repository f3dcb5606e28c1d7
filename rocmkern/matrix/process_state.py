"""What a call may not change in its process: how NumPy treats float errors, the working directory, the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

import numpy as np


class ProcessState:
    """The state of the process when the object is made."""

    def __init__(self) -> None:
        self._float_errors = np.geterr()
        self._directory = _directory()
        self._environment = dict(os.environ)

    def changes(self) -> list[str]:
        """What differs now, in words; one entry for each."""
        found = _changes("np.seterr: {} is {}, was {}", self._float_errors, np.geterr())
        directory = _directory()
        if directory != self._directory:
            found.append(f"the working directory is {directory}, was {self._directory}")
        return found + _changes("os.environ: {} is {}, was {}", self._environment, dict(os.environ))

    def restore(self) -> None:
        """Set all of it as it was then."""
        np.seterr(**self._float_errors)
        if self._directory is not None and _directory() != self._directory:
            with suppress(OSError):  # it was removed
                os.chdir(self._directory)
        now = dict(os.environ)
        for name in now.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in self._environment.items():
            if now.get(name) != value:
                os.environ[name] = value


def _directory() -> str | None:
    """The working directory; None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _changes(text: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [text.format(name, after.get(name, "not set"), before.get(name, "not set")) for name in names]
