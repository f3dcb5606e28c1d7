"""The processors that kernels are compiled for, by name: one record each (see `record`).

To add one, add its record to `amd`, `nvidia` or `host`.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Mapping
from typing import TypeVar, overload

from rocmkern.architectures.amd import AMD
from rocmkern.architectures.host import HOST
from rocmkern.architectures.nvidia import NVIDIA
from rocmkern.architectures.record import Architecture, Card, ComputeUnit
from rocmkern.runtime.errors import TargetError

__all__ = ["Architecture", "Card", "ComputeUnit", "architecture", "compiled_as", "known", "tuned"]

_RECORDS = {record.name: record for record in (*HOST, *AMD, *NVIDIA)}
_Sizes = TypeVar("_Sizes")
_Default = TypeVar("_Default")


def architecture(name: str) -> Architecture:
    """The record of an architecture; features after a colon (``gfx90a:xnack-``) do not matter here.

    Raises
    ------
    TargetError
        If there is none of this name.
    """
    try:
        return _RECORDS[name.split(":")[0]]
    except KeyError:
        raise _unknown(name) from None


def known(target: str | None = None) -> list[str]:
    """Names of the architectures that a target compiles for, or of all, in alphabetical order."""
    return sorted(name for name, record in _RECORDS.items() if target in (None, record.target))


def _unknown(name: str) -> TargetError:
    return TargetError(f"architecture {name!r} is not known; known: {', '.join(known())}")


@functools.cache
def compiled_as(name: str) -> str:
    """What kernels are compiled for on a card: its own architecture, or the generic target of its family.

    The latter for a card that is newer than these records; it is said once, as a warning.

    Raises
    ------
    TargetError
        If the card is of no family that kernels exist for.
    """
    processor = name.split(":")[0]
    if processor in _RECORDS:
        return processor
    generic = next((r.name for r in _RECORDS.values() if r.runs_on and re.fullmatch(r.runs_on, processor)), None)
    if generic is None:
        raise _unknown(name)
    warnings.warn(
        f"{processor} is not known to this version of rocmkern; kernels are compiled for {generic}, which every card "
        "of its family runs: correct, but not tuned for it",
        RuntimeWarning,
        stacklevel=2,
    )
    return generic


@overload
def tuned(table: Mapping[str, _Sizes], name: str) -> _Sizes: ...
@overload
def tuned(table: Mapping[str, _Sizes], name: str, default: _Default, /) -> _Sizes | _Default: ...
def tuned(table: Mapping[str, _Sizes], name: str, *default: _Default) -> _Sizes | _Default:
    """The sizes of an architecture: the entry for itself, or for its closest relatives that have one.

    Parameters
    ----------
    table : mapping
        Sizes by the name of an architecture (``"gfx1103"``) or of a family (``"rdna3"``, ``"amd"``, ``"gpu"``; see
        `Architecture.families`).
    name : str
        Name of an architecture.
    default : optional
        What is returned where the table has nothing for it.

    Raises
    ------
    TargetError
        If the architecture is not known, or the table has nothing for it and there is no default.
    """
    names = architecture(name).tuned_as
    for each in names:
        if each in table:
            return table[each]
    if default:
        return default[0]
    raise TargetError(f"no sizes for {name}: an entry is needed for one of {', '.join(names)}; got {', '.join(table)}")
