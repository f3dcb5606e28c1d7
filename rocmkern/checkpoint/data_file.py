"""Files as untrusted input: regular files, read by position, whose end and whose time of change are watched.

Nothing is mapped into memory. A mapped page that is gone, because somebody cut the file, kills the process by SIGBUS,
and no check before can exclude it; a read only ends early, which is an error like any other.
"""

from __future__ import annotations

import os
import stat
import weakref
from pathlib import Path

import numpy as np

from rocmkern.runtime.errors import CheckpointError

#: What files begin with that are something else than their name says, and what to do about it.
_POINTER = "a Git LFS pointer, which stands for the file: fetch it with `git lfs pull`"
_PAGE = "an HTML page: what was downloaded is not the file itself"
_PICKLE = "a Python pickle, which is not opened because that runs code: convert it to safetensors"
_GGML = "a GGML file of before GGUF: convert the model again"
_OTHERS = (
    (b"version https://git-lfs.github.com/spec/", _POINTER),
    (b"<!doctype html", _PAGE),
    (b"<html", _PAGE),
    (b"PK\x03\x04", "a ZIP archive, as torch.save writes: convert it with safetensors.torch.save_file"),
    *((bytes([0x80, protocol]), _PICKLE) for protocol in range(2, 6)),
    (b"\x1f\x8b", "compressed by gzip: decompress it first"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file: convert it to safetensors"),
    *((magic, _GGML) for magic in (b"tjgg", b"fmgg", b"lmgg")),
    (b"GGUF", "a GGUF file: give it a name that ends in .gguf"),
)
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class DataFile:
    """A regular file that is open for reading. It is closed when nothing refers to it any more.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    path : str
    size : int
        Bytes, when it was opened. If that changes, or the time of modification, reading is an error.

    Raises
    ------
    CheckpointError
        It cannot be opened, or is no regular file.
    """

    size: int

    def __init__(self, path: Path):
        self.path: str = str(path)
        try:
            # A FIFO would otherwise wait here for somebody who writes.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened: {_kind_of(path) or error.strerror}") from error
        weakref.finalize(self, os.close, fd).atexit = False
        self._fd, status = fd, os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path} is {_named(status.st_mode)}, not a file")
        self.size, self._changed = status.st_size, status.st_mtime_ns

    def read(self, offset: int, count: int, what: str) -> np.ndarray:
        """Bytes from a position on, uint8; ``what`` names them in errors."""
        out = np.empty(count, np.uint8)
        self.read_into(out, offset, what)
        return out

    def read_into(self, out: np.ndarray, offset: int, what: str) -> None:
        """Fill a contiguous uint8 array with the bytes from a position on.

        Raises
        ------
        CheckpointError
            The file was cut or written since it was opened, or cannot be read.
        """
        view, done = out.data, 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise CheckpointError(f"{self.path} cannot be read, {what}: {error.strerror}") from error
            if not got:
                raise CheckpointError(
                    f"{self.path} was cut since it was opened: {what} needs bytes {offset} to {offset + len(view)}, "
                    f"and it ends at {os.fstat(self._fd).st_size}. Fetch it again and open it again"
                )
            done += got
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self.size, self._changed):
            raise CheckpointError(f"{self.path} was written since it was opened, reading {what}. Open it again")

    def head(self) -> bytes:
        """The first bytes, as many as tell what it is."""
        return self.read(0, min(self.size, 64), "its beginning").tobytes()

    def other_kind(self) -> str:
        """What it is if it is something else than it should be, and what to do; empty: that cannot be told."""
        head = self.head()
        if not head:
            return "empty"
        beginning = head.lstrip().lower()
        for magic, kind in _OTHERS:
            if head.startswith(magic) or (magic.startswith(b"<") and beginning.startswith(magic)):
                return kind
        return ""


def read_text(path: Path, most: int) -> str:
    """A whole file in UTF-8 of at most so many bytes."""
    file = DataFile(path)
    if file.size > most:
        raise CheckpointError(f"{path} has {file.size} bytes; at most {most} are read")
    try:
        return file.read(0, file.size, "all of it").tobytes().decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error}") from error


def _kind_of(path: Path) -> str:
    """What a path that cannot be opened leads to, if that is no regular file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    return "" if stat.S_ISREG(mode) else f"it is {_named(mode)}"


def _named(mode: int) -> str:
    return next((name for is_one, name in _KINDS if is_one(mode)), "no regular file")
