"""What the tile language knows about each architecture, as data.

Sources: AMD's instruction set documents (CDNA 2, 3 and 4, RDNA 2, 3 and 4), NVIDIA's CUDA programming guide, table of
technical specifications per compute capability.
"""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass

from rocmkern.runtime.errors import TargetError


@dataclass(frozen=True)
class Architecture:
    """One processor as the tile language sees it.

    Attributes
    ----------
    wave : int
        Lanes of a wave (a warp); 1 where a block is one thread.
    shared_bytes : int
        Shared memory that one block may use, in bytes.
    matrix : str
        Kind of matrix instruction: ``"wmma-gfx11"``, ``"wmma-gfx12"``, ``"mfma"``, ``"mfma-gfx908"``, ``"mma.sync"``,
        ``"wgmma"`` (and mma.sync), or ``""`` (FMA only).
    banks : int
        Banks of shared memory, of 4 bytes each.
    """

    wave: int
    shared_bytes: int
    matrix: str
    banks: int = 32


_KIB = 1024
_CDNA = Architecture(64, 64 * _KIB, "mfma")
_RDNA2 = Architecture(32, 64 * _KIB, "")
_RDNA3 = Architecture(32, 64 * _KIB, "wmma-gfx11")
_RDNA4 = Architecture(32, 64 * _KIB, "wmma-gfx12")
#: What LLVM compiles for, and HIP users have.
AMD = {
    "gfx908": Architecture(64, 64 * _KIB, "mfma-gfx908"),
    "gfx90a": _CDNA,
    "gfx942": _CDNA,
    "gfx950": Architecture(64, 160 * _KIB, "mfma", banks=64),
    "gfx9-4-generic": _CDNA,
    **dict.fromkeys((*(f"gfx103{i}" for i in range(7)), "gfx10-3-generic"), _RDNA2),
    **dict.fromkeys((*(f"gfx110{i}" for i in range(4)), *(f"gfx115{i}" for i in range(4)), "gfx11-generic"), _RDNA3),
    **dict.fromkeys(("gfx1200", "gfx1201", "gfx12-generic"), _RDNA4),
}
#: The target that runs on every processor of a family, and the names of the family.
_GENERIC = {
    "gfx9-4-generic": r"gfx9[45][0-9a-f]",
    "gfx10-3-generic": r"gfx103[0-9a-f]",
    "gfx11-generic": r"gfx11[05][0-9a-f]",
    "gfx12-generic": r"gfx120[0-9a-f]",
}
_TABLE = {
    "python": Architecture(1, 1024 * _KIB, ""),
    # One thread's share of a level-2 cache: a larger window would be slower than no window at all.
    "cpu-avx512": Architecture(1, 1024 * _KIB, ""),
    "cpu-avx2": Architecture(1, 1024 * _KIB, ""),
    "cpu-portable": Architecture(1, 1024 * _KIB, ""),
    **AMD,
    "sm_80": Architecture(32, 163 * _KIB, "mma.sync"),
    "sm_86": Architecture(32, 99 * _KIB, "mma.sync"),
    "sm_89": Architecture(32, 99 * _KIB, "mma.sync"),
    "sm_90": Architecture(32, 227 * _KIB, "wgmma"),
    "sm_100": Architecture(32, 227 * _KIB, "mma.sync"),
    "sm_120": Architecture(32, 99 * _KIB, "mma.sync"),
}


def architecture(name: str) -> Architecture:
    """Look an architecture up by name; features after a colon (``gfx90a:xnack-``) do not matter here."""
    try:
        return _TABLE[name.split(":")[0]]
    except KeyError:
        raise _unknown(name) from None


def known(prefix: str = "") -> list[str]:
    """Names of the architectures that begin with `prefix`, in alphabetical order."""
    return sorted(name for name in _TABLE if name.startswith(prefix))


def _unknown(name: str) -> TargetError:
    return TargetError(f"architecture {name!r} is not known; known: {', '.join(known())}")


@functools.cache
def compiled_as(name: str) -> str:
    """What kernels are compiled for on a card: its own architecture, or the generic target of its family.

    The latter for a card that is newer than this table; it is said once, as a warning.

    Raises
    ------
    TargetError
        If the card is of no family that kernels exist for.
    """
    processor = name.split(":")[0]
    if processor in _TABLE:
        return processor
    generic = next((target for target, family in _GENERIC.items() if re.fullmatch(family, processor)), None)
    if generic is None:
        raise _unknown(name)
    warnings.warn(
        f"{processor} is not known to this version of rocmkern; kernels are compiled for {generic}, which every card "
        "of its family runs: correct, but not tuned for it",
        RuntimeWarning,
        stacklevel=2,
    )
    return generic


def shared_memory_bytes(name: str) -> int:
    """Shared memory that one block may use on an architecture, in bytes."""
    return architecture(name).shared_bytes
