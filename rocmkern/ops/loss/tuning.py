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


def logits(config: type, arch: str, rows: int, itemsize: int) -> Any:
    """Variant of a kernel that computes blocks of logits, for so many rows."""
    block = tuned(_linear.SIZES, arch).config(rows, itemsize, True)
    names = ("block_m", "block_n", "block_k", "waves")
    return config(arch=arch, **{name: block[name] for name in names})


def numbers(config: type, arch: str) -> Any:
    """Variant of a kernel that goes through numbers of rows."""
    rows, waves = tuned(ROWS, arch)
    return config(arch=arch, block_m=rows, waves=waves)


def share(arch: str) -> int:
    """Tokens of a share of the vocabulary."""
    return tuned(SHARES, arch)
