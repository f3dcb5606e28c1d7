"""Names of tensors and keys, which come from a file and go into messages."""

from __future__ import annotations

from rocmkern.runtime.errors import CheckpointError

#: Bytes of a name. GGUF allows 64 for tensors and more for keys, safetensors any number; models have about 100.
LONGEST = 1024


def checked_name(name: bytes | str, path: str, what: str) -> str:
    """A name of a file as text.

    Raises
    ------
    CheckpointError
        It is empty, too long, no UTF-8, or has control characters, which no model has and a terminal would obey.
    """
    try:
        text = name.decode() if isinstance(name, bytes) else name
        length = len(text.encode())
    except UnicodeError:
        raise CheckpointError(f"{path}: {what} {shown(name)} is not UTF-8") from None
    if not text:
        raise CheckpointError(f"{path}: {what} is empty")
    if length > LONGEST:
        raise CheckpointError(f"{path}: {what} {shown(text)} has {length} bytes; at most {LONGEST} are allowed")
    if not text.isprintable():
        raise CheckpointError(f"{path}: {what} {shown(text)} has characters that cannot be printed")
    return text


def shown(name: object) -> str:
    """A name, or what stands in the place of one, for a message."""
    if isinstance(name, (str, bytes)):
        name = name[:100]
    try:
        return short(repr(name))
    except RecursionError:
        return "something nested"


def short(text: str, most: int = 80) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= most else text[:most] + "..."
