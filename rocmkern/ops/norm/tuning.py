"""Block sizes of the norms for each architecture: what `rocmkern.ops.streaming` says, and the following."""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern.architectures import tuned
from rocmkern.ops.streaming import longest_whole_row

#: Columns up to which the compiler's choice of registers lets enough blocks run at once.
_SHORT = 2048


@dataclass(frozen=True)
class Norms:
    """Blocks of the norms on one architecture; 0: as it comes.

    Attributes
    ----------
    resident_rms : int
        Blocks that a multiprocessor should hold at once of an RMS norm without a residual.
    resident_layer : int
        Of a layer norm of rows that a tile holds.
    resident_longer_layer : int
        Of one of longer rows, where several waves share a row.
    stepping : int
        Blocks of a layer norm for each that runs at the same time, if they keep its weights for all their rows.
    """

    resident_rms: int = 0
    resident_layer: int = 0
    resident_longer_layer: int = 0
    stepping: int = 0


SIZES = {
    "python": Norms(stepping=2),
    "cpu": Norms(stepping=16),
    "amd": Norms(),
    "nvidia": Norms(resident_rms=6, resident_layer=6, resident_longer_layer=4),
}


def resident_rms(arch: str, columns: int, itemsize: int) -> int:
    """Blocks of an RMS norm, with rows of so many columns, to hold at once; 0: as it comes."""
    return tuned(SIZES, arch).resident_rms if itemsize <= 2 and columns > _SHORT else 0


def resident_layer(arch: str, columns: int, itemsize: int) -> int:
    """The same of a layer norm."""
    if itemsize > 2 or columns <= _SHORT:
        return 0
    sizes = tuned(SIZES, arch)
    return sizes.resident_layer if columns <= longest_whole_row(arch) else sizes.resident_longer_layer


def stepping(arch: str) -> int:
    """Blocks of a layer norm for each that runs at the same time; 0: one for each row block."""
    return tuned(SIZES, arch).stepping
