"""NVIDIA's architectures with matrix instructions on 2-byte numbers and asynchronous copies: Ampere and later.

Source: the CUDA programming guide, table of technical specifications per compute capability (shared memory of a block).
"""

from __future__ import annotations

from dataclasses import replace

from rocmkern.architectures.record import KIB, Architecture

_AMPERE = Architecture(
    name="", target="cuda", families=("ampere", "nvidia", "gpu"), wave=32, shared_bytes=163 * KIB, matrix="mma.sync"
)
_ADA = replace(_AMPERE, families=("ada", "nvidia", "gpu"), shared_bytes=99 * KIB)
_HOPPER = replace(_AMPERE, families=("hopper", "nvidia", "gpu"), shared_bytes=227 * KIB, matrix="wgmma", overlaps=True)
_BLACKWELL = replace(_HOPPER, families=("blackwell", "nvidia", "gpu"), matrix="mma.sync")

NVIDIA = (
    replace(_AMPERE, name="sm_80", processor="sm_80"),
    replace(_AMPERE, name="sm_86", processor="sm_86", shared_bytes=99 * KIB),
    replace(_ADA, name="sm_89", processor="sm_89"),
    # wgmma is in code for this processor only, not for later ones too.
    replace(_HOPPER, name="sm_90", processor="sm_90a"),
    replace(_BLACKWELL, name="sm_100", processor="sm_100"),
    replace(_BLACKWELL, name="sm_103", processor="sm_103"),
    replace(_BLACKWELL, name="sm_120", processor="sm_120", shared_bytes=99 * KIB),
    replace(_BLACKWELL, name="sm_121", processor="sm_121", shared_bytes=99 * KIB),
)
