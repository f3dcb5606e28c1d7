"""Block sizes of the products among the steps: those of attention, with at least 16 rows."""

from __future__ import annotations

from rocmkern.ops.attention.tuning import blocks_of
from rocmkern.ops.steps.kernels import qk_scores, weighted_values

_ROWS = 16


def scores(arch: str, rows: int, head_dim: int, itemsize: int, invariant: bool = False) -> qk_scores.Config:
    """Variant of ``qk_scores``; ``invariant`` as in `rocmkern.ops.attention.tuning.attention`."""
    blocks = blocks_of(arch)
    dim = blocks.bucket(head_dim)
    block = blocks.block(rows, dim, itemsize, at_least=_ROWS, invariant=invariant)
    keys = blocks.block_keys(block["block_m"], dim, itemsize)
    return qk_scores.Config(arch=arch, **block, block_n=keys, head_dim=dim)


def values(arch: str, rows: int, value_dim: int, itemsize: int, invariant: bool = False) -> weighted_values.Config:
    """Variant of ``weighted_values``; ``invariant`` as there."""
    blocks = blocks_of(arch)
    dim = blocks.bucket(value_dim)
    block = blocks.block(rows, dim, itemsize, at_least=_ROWS, invariant=invariant)
    keys = blocks.block_keys(block["block_m"], dim, itemsize)
    return weighted_values.Config(arch=arch, **block, block_n=keys, value_dim=dim)
