"""A compiled variant on disk: one format for all targets. Data, and nothing that is executed to read it.

::

    magic     8 bytes   b"rocmkern"
    version   u32       FORMAT
    header    u32       its length
    code      u64       its length
    header    JSON, sorted keys, no spaces, ASCII (`Entry` without ``code``)
    code      the machine code: an ELF object or code object, PTX
    checksum  32 bytes  SHA-256 of all before it

All numbers are little-endian. The checksum is looked at before anything else, so what was cut, changed or appended is
refused; the key in the header before anything is used, so what lies under another entry's name is. A checksum does not
say who wrote a file: that is asked of the file itself (`load`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rocmkern.runtime.directories import read_plain_file

MAGIC = b"rocmkern"
#: Changes with the layout of the file or the fields of the header.
FORMAT = 1
#: No kernel comes near this; a larger file is not one of ours.
LARGEST = 64 * 2**20
_HEAD = struct.Struct("<8sIIQ")
_CHECKSUM = hashlib.sha256().digest_size


class EntryError(Exception):
    """An entry is not what it should be, in words. It is compiled again; no user sees this."""


@dataclass(frozen=True)
class Entry:
    """A compiled variant.

    Attributes
    ----------
    key : str
        Of what this was compiled, as a digest (see `source.variant_key`): kernel, library, configuration, machine.
    target, arch, kernel, config : str
        The same in words.
    dtypes : tuple of str
        Element types of the tensors.
    compiler : str
        Name and version of what compiled it.
    machine : tuple of str
        Features that the processor must have; empty for GPUs, where ``arch`` says all.
    launch : mapping of str to values that JSON has
        What the target needs to launch it.
    code : bytes
        The machine code.
    """

    key: str
    target: str
    arch: str
    kernel: str
    config: str
    dtypes: tuple[str, ...]
    compiler: str
    machine: tuple[str, ...]
    launch: Mapping[str, Any]
    code: bytes


_TEXTS = ("key", "target", "arch", "kernel", "config", "compiler")
_LISTS = ("dtypes", "machine")
_FIELDS = {*_TEXTS, *_LISTS, "launch"}


def encode(entry: Entry) -> bytes:
    """The contents of a file."""
    header = _json({name: getattr(entry, name) for name in _FIELDS})
    body = _HEAD.pack(MAGIC, FORMAT, len(header), len(entry.code)) + header + entry.code
    return body + hashlib.sha256(body).digest()


def decode(data: bytes) -> Entry:
    """The entry that a file holds.

    Raises
    ------
    EntryError
        If these are not the contents of one.
    """
    if len(data) < _HEAD.size + _CHECKSUM:
        raise EntryError("it is too short")
    magic, version, header_length, code_length = _HEAD.unpack_from(data)
    if magic != MAGIC or version != FORMAT:
        raise EntryError("it is of another format")
    if len(data) != _HEAD.size + header_length + code_length + _CHECKSUM:
        raise EntryError("its length is not what it says")
    view = memoryview(data)
    if hashlib.sha256(view[:-_CHECKSUM]).digest() != data[-_CHECKSUM:]:
        raise EntryError("its checksum is wrong")
    start = _HEAD.size + header_length
    return Entry(**_header(data[_HEAD.size : start]), code=data[start:-_CHECKSUM])


def _header(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
        canonical = _json(fields) == text  # no field twice, no number of another spelling
    except (ValueError, RecursionError):
        raise EntryError("its header is not JSON") from None
    if not canonical or not isinstance(fields, dict) or fields.keys() != _FIELDS:
        raise EntryError("its header has other fields")
    if not all(isinstance(fields[name], str) for name in _TEXTS) or not isinstance(fields["launch"], dict):
        raise EntryError("a field of its header is of another type")
    for name in _LISTS:
        if not isinstance(fields[name], list) or not all(isinstance(item, str) for item in fields[name]):
            raise EntryError("a field of its header is of another type")
        fields[name] = tuple(fields[name])
    return fields


def _json(fields: Any) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def load(
    path: str | os.PathLike[str], key: str, compiler: str | None, objection: Callable[[os.stat_result], str | None]
) -> Entry:
    """Read a file that should hold an entry.

    Parameters
    ----------
    path : path
        Where it lies.
    key : str
        The key that it must have.
    compiler : str, optional
        What it must have been compiled by.
    objection : callable
        See `directories.read_plain_file`.

    Raises
    ------
    EntryError
        If it holds no entry, or another one.
    OSError
        If there is no such file, or it must not be used or cannot be read.
    """
    entry = decode(read_plain_file(path, LARGEST, objection))
    if entry.key != key or compiler not in (None, entry.compiler):
        raise EntryError("it is another variant's")
    return entry


def checked(launch: Mapping[str, Any], **allowed: Callable[[Any], bool]) -> Mapping[str, Any]:
    """The launch fields of an entry, if they are the named ones and each is allowed.

    Raises
    ------
    EntryError
        Otherwise.
    """
    if launch.keys() != allowed.keys():
        raise EntryError(f"it says {', '.join(sorted(launch))} of the launch instead of {', '.join(sorted(allowed))}")
    for name, is_allowed in allowed.items():
        if not is_allowed(launch[name]):
            raise EntryError(f"it says that {name} is {launch[name]!r}")
    return launch


def is_symbol(value: Any) -> bool:
    """Whether a value can be the name of a function in machine code."""
    return isinstance(value, str) and 0 < len(value) < 8192 and value.isascii() and value.isprintable()


def is_count(largest: int, smallest: int = 0) -> Callable[[Any], bool]:
    """Whether a value is an integer within bounds."""
    return lambda value: type(value) is int and smallest <= value <= largest


def is_flag(value: Any) -> bool:
    """Whether a value is True or False."""
    return type(value) is bool
