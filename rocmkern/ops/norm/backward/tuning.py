"""How many blocks share the rows of the gradient of a norm: what `rocmkern.ops.streaming` says, and the following."""

from __future__ import annotations

from rocmkern.architectures import tuned

#: Each adds up its rows, so bits of the gradient of a weight depend on it: it does not depend on the device's size.
#: On a CPU they are cores, on a GPU more blocks than run at once; what they write is a share of what is read.
SIZES = {"python": 3, "cpu": 64, "amd": 512, "nvidia": 512}


def most_blocks(arch: str) -> int:
    """The most blocks among which rows are shared."""
    return tuned(SIZES, arch)
