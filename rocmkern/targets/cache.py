"""Compiled variants on disk: found, or compiled once and kept.

A variant is looked for in two places:

1. ``rocmkern/targets/shipped``, which a wheel may bring. What lies there is as good as the library's own Python files,
   so it is trusted as they are, whoever installed them.
2. The user's `cache_directory`. It and what lies in it must be this user's alone (`runtime.directories`); otherwise it
   is left alone, with one warning, and variants are compiled in each process.

A file is called ``target-kernel-key-compiler.entry``. The key says what was compiled (`source.variant_key`), the last
part by which versions of the compiler under which of numba's variables: only shipped entries are used whatever is
installed, and local ones where no compiler is. Where a variable of numba's asks for other code, what a wheel brought is
passed over. What cannot be used for any reason is compiled again and replaced.

Threads and processes that want the same variant wait for the first of them: threads by the target's lock, processes by
a file lock. A lock that cannot be had costs time and nothing else. A fork waits for the end of a compilation: a child
could do nothing with a compiler that it finds in the middle of something. So does a call whose forerunner was
interrupted: the compilation goes on, in a thread of its own (`apart`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from rocmkern.runtime import fork
from rocmkern.runtime.directories import cache_directory, is_others, make_own, shared_with
from rocmkern.runtime.errors import RocmkernWarning, TargetError
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.numba_switches import code_settings
from rocmkern.runtime.once import once
from rocmkern.targets import entries
from rocmkern.targets.apart import apart
from rocmkern.targets.entries import Entry, EntryError
from rocmkern.targets.messages import announce_compilation
from rocmkern.targets.source import Key

Loaded = TypeVar("Loaded")

SUFFIX = ".entry"
SHIPPED = Path(__file__).with_name("shipped")
#: Longer than any variant takes to compile on a busy machine; then both compile.
LOCK_TIMEOUT_S = 120.0
#: A file that was not finished for so long never is.
LEFT_OVER_S = 3600.0
_UNFINISHED = ".tmp"
_warned: set[str] = set()
_compiling = Mutex()


def obtain(
    key: Key,
    compiler: Callable[[], str | None],
    make: Callable[[], Entry],
    use: Callable[[Entry], Loaded],
    made: Callable[[], Loaded | None] = lambda: None,
) -> Loaded:
    """A variant, ready for use.

    Parameters
    ----------
    key : Key
        Which.
    compiler : callable
        Versions of the compiler in one line; None where there is none.
    make : callable
        Compiles it.
    use : callable
        Makes of an entry what is wanted, and remembers it; raises `EntryError` where it cannot be used. Behind a
        compilation it is called in another thread than the caller's.
    made : callable
        What `use` remembers: it may have been called for a caller that was interrupted.
    """
    loaded, directory, versions = None, None, None
    if key.kept:
        loaded = None if code_settings() else _shipped(key, use)
        if loaded is not None:
            return loaded
        versions = compiler()
        directory = own_directory()
        if directory is not None:
            loaded = _kept(directory, key, versions, use)
    if loaded is None:
        _let_forks_wait()
        loaded = apart(lambda: _compiled(key, directory, versions, make, use, made))
    return loaded


def refuse_within() -> None:
    """`ReentryError` in the middle of a compilation of this thread: no other can begin, and somebody waits for it."""
    alone(_compiling)


def _compiled(
    key: Key,
    directory: Path | None,
    versions: str | None,
    make: Callable[[], Entry],
    use: Callable[[Entry], Loaded],
    made: Callable[[], Loaded | None],
) -> Loaded:
    """A variant that was not found: as somebody else has left it meanwhile, or compiled, and kept if there is where."""
    with alone(_compiling), _locked(directory, key) if directory is not None else contextlib.nullcontext():
        loaded = made()
        if loaded is None and directory is not None:
            loaded = _kept(directory, key, versions, use)
        if loaded is None:
            announce_compilation(key, directory)
            entry = make()
            loaded = _fresh(entry, use)
            if directory is not None:
                store(directory, entry)
    return loaded


@once
def _let_forks_wait() -> None:
    # deferred: start-up
    import logging  # noqa: F401  # numba needs its lock while it compiles: see `await_lock`

    fork.await_lock(sys.modules[__name__], "_compiling")


def own_directory() -> Path | None:
    """The cache directory, if it is this user's alone or does not exist yet; None, and one warning, otherwise."""
    directory = cache_directory()
    if directory is None:
        return None
    try:
        status = os.stat(directory)
    except FileNotFoundError:
        return directory
    except OSError:
        return None
    problem = shared_with(status)
    if problem is None:
        return directory if stat.S_ISDIR(status.st_mode) else None
    if str(directory) not in _warned:
        _warned.add(str(directory))
        yours = "" if is_others(status) else f"chmod go-w {directory}, or "
        warnings.warn(
            f"compiled kernels are neither read from nor kept in {directory}: {problem}; "
            f"{yours}set ROCMKERN_CACHE_DIR to a directory of your own",
            RocmkernWarning,
            stacklevel=2,
        )
    return None


def file_name(key: Key, versions: str) -> str:
    """What the file of a variant is called in a user's directory."""
    return f"{_stem(key)}-{hashlib.sha256(versions.encode()).hexdigest()[:8]}{SUFFIX}"


def shipped_name(key: Key) -> str:
    """What it is called in a wheel."""
    return f"{_stem(key)}{SUFFIX}"


def is_kept(path: Path, key: Key, compiler: str | None) -> bool:
    """Whether a file holds a variant, of that compiler or (None) of any."""
    try:
        entries.load(path, key.digest, compiler, shared_with)
    except (OSError, EntryError):
        return False
    return True


def store(directory: Path, entry: Entry) -> None:
    """Keep an entry where `obtain` looks for it; a directory that cannot be written does not matter."""
    with contextlib.suppress(OSError):
        make_own(directory)
        write_atomically(directory / file_name(Key.of(entry), entry.compiler), entries.encode(entry))
        _remove_left_over(directory)


def _remove_left_over(directory: Path) -> None:
    """Files that a process which was killed did not finish; what is young, another one may be writing."""
    for path in directory.glob(f"*{_UNFINISHED}"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > LEFT_OVER_S:
                path.unlink()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or none, in place of whatever is there; nobody else may read it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _stem(key: Key) -> str:
    return f"{key.target}-{key.kernel.rpartition('.')[2]}-{key.digest[:32]}"


def _fresh(entry: Entry, use: Callable[[Entry], Loaded]) -> Loaded:
    """What was compiled just now, for use."""
    try:
        return use(entry)
    except EntryError as error:
        raise TargetError(f"kernel {entry.kernel}, compiled for {entry.arch}, cannot be used here: {error}") from None


def _shipped(key: Key, use: Callable[[Entry], Loaded]) -> Loaded | None:
    with contextlib.suppress(OSError, EntryError):
        return use(entries.load(SHIPPED / shipped_name(key), key.digest, None, _unlike_the_library))
    return None


def _unlike_the_library(status: os.stat_result) -> str | None:
    """Why a file may not be trusted as this one is; None where it may."""
    library = os.stat(__file__)
    if status.st_uid != library.st_uid:
        return "it belongs to somebody else than the library"
    if status.st_mode & ~library.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "it may be written by more users than the library"
    return None


def _kept(directory: Path, key: Key, versions: str | None, use: Callable[[Entry], Loaded]) -> Loaded | None:
    names = [file_name(key, versions)] if versions is not None else _of_any_compiler(directory, key)
    for name in names:
        with contextlib.suppress(OSError, EntryError):
            return use(entries.load(directory / name, key.digest, versions, shared_with))
    return None


def _of_any_compiler(directory: Path, key: Key) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(path.name for path in directory.glob(f"{_stem(key)}-*{SUFFIX}"))
    return []


@contextlib.contextmanager
def _locked(directory: Path, key: Key) -> Iterator[None]:
    """Keep other processes from compiling the same variant."""
    # deferred: start-up
    from filelock import FileLock, Timeout

    locks = directory / "locks"
    # One of 256, so that locks do not pile up.
    lock = FileLock(locks / f"{key.digest[:2]}.lock", timeout=LOCK_TIMEOUT_S, mode=0o600)
    # Without the lock another process may compile the same at the same time, and the last one's entry stays.
    with contextlib.suppress(OSError, Timeout, NotImplementedError):
        make_own(directory)
        make_own(locks)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
