"""Block sizes of the cross-entropy for each architecture, as data: blocks are those of products.

A row is computed alike whatever the number of rows is, so blocks are chosen among those that compute a row alike.
"""

from __future__ import annotations

from typing import Any

from rocmkern.architectures import tuned
from rocmkern.ops.linear import tuning as _linear

#: Tokens of a block of `logit_sums`. Each share of the vocabulary writes 16 bytes a row.
SHARES = {"python": 32, "cpu": 4096, "amd": 2048, "nvidia": 2048}
#: Rows of a block that goes through numbers of rows, and its waves.
ROWS = {"python": (16, 1), "cpu": (64, 1), "amd": (256, 4), "nvidia": (256, 4)}


#: Rows of the one block that there is for 2-byte elements, where that is not one of those of batch-invariant products.
#: With few rows the weights are what takes time.
_HALF_ROWS = {"hopper": 128}


def logits(config: type, arch: str, rows: int, itemsize: int) -> Any:
    """Variant of a kernel that computes blocks of logits, for so many rows."""
    half = tuned(_HALF_ROWS, arch, None) if itemsize == 2 else None
    sizes = tuned(_linear.SIZES, arch)
    return config(arch=arch, **(sizes.config(half, itemsize) if half else sizes.config(rows, itemsize, True)))


def numbers(config: type, arch: str) -> Any:
    """Variant of a kernel that goes through numbers of rows."""
    rows, waves = tuned(ROWS, arch)
    return config(arch=arch, block_m=rows, waves=waves)


def share(arch: str) -> int:
    """Tokens of a share of the vocabulary."""
    return tuned(SHARES, arch)
