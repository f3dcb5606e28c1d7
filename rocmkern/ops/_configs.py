"""Which compiled variant an operation uses: block sizes per architecture, as data, and the few rules to pick them.

The number of variants stays small because only these things are compiled in: the row count of a tile (4 sizes), the
bucket of the head dimension, whether scores are modified, and the element type.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern.kernels import (
    apply_mask,
    causal_mask,
    combine_splits,
    flash_attention,
    merge_attention,
    qk_scores,
    repeat_kv,
    scale,
    softmax,
    weighted_values,
)

#: Longest head dimension that attention takes.
MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class Blocks:
    """Block sizes of one architecture.

    Attributes
    ----------
    rows : tuple of int
        Tile rows to choose from, smallest first: the first that holds the problem's rows, else the last.
    keys : dict of int to int
        Keys per step for each of ``rows``.
    head_dims : tuple of int
        Buckets of the head dimension.
    line : tuple of (int, int)
        Rows and columns of a block in operations that only stream through memory.
    """

    rows: tuple[int, ...]
    keys: dict[int, int]
    head_dims: tuple[int, ...]
    line: tuple[int, int]


_CPU = Blocks(rows=(1, 4, 16, 64), keys={1: 128, 4: 128, 16: 64, 64: 64}, head_dims=(64, 128, 256), line=(4, 256))
_TABLE = {
    # Small on purpose: tests of a few dozen rows cross block borders.
    "python": Blocks(rows=(16,), keys={16: 16}, head_dims=(64, 256), line=(16, 64)),
    "cpu-avx512": _CPU,
    "cpu-avx2": _CPU,
    "cpu-portable": _CPU,
}


def blocks(arch: str) -> Blocks:
    """The block sizes of an architecture."""
    return _TABLE[arch]


def _bucket(sizes: tuple[int, ...], needed: int) -> int:
    return next((s for s in sizes if s >= needed), sizes[-1])


def attention(arch: str, rows: int, head_dim: int, value_dim: int, score_mods: bool) -> flash_attention.Config:
    """Variant for ``rows`` tile rows (queries times packed heads) of these dimensions."""
    sizes = blocks(arch)
    block_m = _bucket(sizes.rows, rows)
    dim = _bucket(sizes.head_dims, max(head_dim, value_dim))
    return flash_attention.Config(
        arch=arch, block_m=block_m, block_n=sizes.keys[block_m], head_dim=dim, value_dim=dim, score_mods=score_mods
    )


def scores(arch: str, rows: int, head_dim: int) -> qk_scores.Config:
    """Variant of ``qk_scores``."""
    sizes = blocks(arch)
    block_m = _bucket(sizes.rows[-2:], rows)
    return qk_scores.Config(
        arch=arch, block_m=block_m, block_n=sizes.keys[block_m], head_dim=_bucket(sizes.head_dims, head_dim)
    )


def values(arch: str, rows: int, value_dim: int) -> weighted_values.Config:
    """Variant of ``weighted_values``."""
    sizes = blocks(arch)
    block_m = _bucket(sizes.rows[-2:], rows)
    return weighted_values.Config(
        arch=arch, block_m=block_m, block_n=sizes.keys[block_m], value_dim=_bucket(sizes.head_dims, value_dim)
    )


_LINE_CONFIGS = {
    "apply_mask": apply_mask.Config,
    "causal_mask": causal_mask.Config,
    "combine_splits": combine_splits.Config,
    "merge_attention": merge_attention.Config,
    "repeat_kv": repeat_kv.Config,
    "scale": scale.Config,
    "softmax": softmax.Config,
}


def line(name: str, arch: str, **features: bool):
    """Variant of an operation that streams through memory."""
    block_m, block_n = blocks(arch).line
    return _LINE_CONFIGS[name](arch=arch, block_m=block_m, block_n=block_n, **features)
