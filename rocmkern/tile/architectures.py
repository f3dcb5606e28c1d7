"""What the tile language knows about each architecture, as data.

Sources: AMD's instruction set documents (CDNA 2, 3 and 4, RDNA 2, 3 and 4), NVIDIA's CUDA programming guide, table of
technical specifications per compute capability.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern.runtime.errors import TargetError


@dataclass(frozen=True)
class Architecture:
    """One processor as the tile language sees it.

    Attributes
    ----------
    wave : int
        Lanes of a wave (a warp); 1 where a block is one thread.
    local_bytes : int
        Local memory that one block may use, in bytes.
    matrix : str
        Kind of matrix instruction: ``"wmma-gfx11"``, ``"wmma-gfx12"``, ``"mfma"``, ``"mma.sync"``, ``"wgmma"`` (and
        mma.sync), or ``""`` (FMA only).
    """

    wave: int
    local_bytes: int
    matrix: str


_KIB = 1024
_TABLE = {
    "python": Architecture(1, 1024 * _KIB, ""),
    # One thread's share of a level-2 cache: a larger window would be slower than no window at all.
    "cpu-avx512": Architecture(1, 1024 * _KIB, ""),
    "cpu-avx2": Architecture(1, 1024 * _KIB, ""),
    "cpu-portable": Architecture(1, 1024 * _KIB, ""),
    "gfx90a": Architecture(64, 64 * _KIB, "mfma"),
    "gfx942": Architecture(64, 64 * _KIB, "mfma"),
    "gfx950": Architecture(64, 160 * _KIB, "mfma"),
    "gfx1030": Architecture(32, 64 * _KIB, ""),
    "gfx1100": Architecture(32, 64 * _KIB, "wmma-gfx11"),
    "gfx1101": Architecture(32, 64 * _KIB, "wmma-gfx11"),
    "gfx1102": Architecture(32, 64 * _KIB, "wmma-gfx11"),
    "gfx1151": Architecture(32, 64 * _KIB, "wmma-gfx11"),
    "gfx1200": Architecture(32, 64 * _KIB, "wmma-gfx12"),
    "gfx1201": Architecture(32, 64 * _KIB, "wmma-gfx12"),
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
        raise TargetError(f"architecture {name!r} is not known; known: {', '.join(sorted(_TABLE))}") from None


def local_memory_bytes(name: str) -> int:
    """Local memory that one block may use on an architecture, in bytes."""
    return architecture(name).local_bytes
