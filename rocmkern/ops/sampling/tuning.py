"""Block sizes of sampling for each architecture."""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern.architectures import architecture, tuned
from rocmkern.ops.sampling.kernels import sample


@dataclass(frozen=True)
class Sampling:
    """Parts of a row of logits, columns and waves of a block, which has the row to itself."""

    parts: int
    columns: int
    waves: int


SIZES = {
    "python": Sampling(8, 16, 1),
    "cpu": Sampling(4, 256, 1),
    "gpu": Sampling(8, 512, 8),
}


def sampling(arch: str, per_row: bool) -> sample.Config:
    """Variant of ``sample``; whether every row has numbers of its own."""
    sizes = tuned(SIZES, arch)
    return sample.Config(
        arch=arch,
        waves=sizes.waves,
        block_m=sizes.parts,
        block_n=sizes.columns,
        threads_per_row=architecture(arch).wave,
        per_row=per_row,
    )
