"""What the roundings of attention over ranks cost: as much as of one process, whose sums are in another order."""

from __future__ import annotations

from typing import Any

from rocmkern.ops.attention import roundings

__all__ = ["distributed_attention"]


def distributed_attention(
    q: Any, k: Any, v: Any, *, ranks: int = 2, split: str = "", mode: str = "", **options: Any
) -> Any:
    """`rocmkern.reference.roundings.flash_attention`."""
    return roundings.flash_attention(q, k, v, **options)
