"""The directory on disk that is this library's (compiled kernels, answers of drivers), and whom it is shared with.

What lies there may become machine code of this process, so it is used only where nobody else can have written it: each
directory and each file belongs to the user of the process, and no one else may write it. The directories above are not
looked at: whoever may write those can put another directory in place, but not one that passes, unless it is this user's
own; and then every file in it is too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

#: Names the directory.
CACHE_VARIABLE = "ROCMKERN_CACHE_DIR"


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The directory, which need not exist: ``ROCMKERN_CACHE_DIR``, else ``rocmkern`` in the user's cache directory.

    None where there is none: ``HOME`` is not set, and the user has no home directory in the list of users.
    """
    explicit = environ.get(CACHE_VARIABLE)
    base = environ.get("XDG_CACHE_HOME")
    path = explicit or (os.path.join(base, "rocmkern") if base else os.path.join("~", ".cache", "rocmkern"))
    expanded = os.path.expanduser(path)
    return None if expanded.startswith("~") else Path(expanded)


def make_own(directory: Path) -> None:
    """Make a directory, where there is none, that nobody else may write, whatever the umask says."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def is_others(status: os.stat_result) -> bool:
    """Whether a file or directory belongs to another user."""
    return hasattr(os, "geteuid") and status.st_uid != os.geteuid()


def shared_with(status: os.stat_result) -> str | None:
    """Who else may have written a file or directory, in words; None where nobody."""
    if not hasattr(os, "geteuid"):
        return None  # Windows: a user's profile is that user's
    if is_others(status):
        return f"it belongs to another user (number {status.st_uid}; this process runs as {os.geteuid()})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write it"
    return None


class Refused(OSError):
    """A file is there that must not be used; the message says why."""


def read_plain_file(
    path: str | os.PathLike[str], largest: int, objection: Callable[[os.stat_result], str | None] = shared_with
) -> bytes:
    """The contents of a file, of the very file that was examined.

    Parameters
    ----------
    path : path
        Where it lies.
    largest : int
        Bytes that it may have.
    objection : callable
        Says of a file's status what is wrong with it; None: nothing. Default: `shared_with`.

    Raises
    ------
    Refused
        If it is no plain file (a link, a directory, a FIFO or device, for which nothing is waited), too long, or
        objected to.
    OSError
        If there is none, or it cannot be read.
    """
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        problem = objection(status) if stat.S_ISREG(status.st_mode) else "it is not a plain file"
        if problem is None and status.st_size > largest:
            problem = f"it has more than {largest} bytes"
        if problem is not None:
            raise Refused(f"{path}: {problem}")
        with open(handle, "rb", closefd=False) as file:
            return file.read(largest)
    finally:
        os.close(handle)  # a file object closes nothing where it could not be made: of a directory, say
