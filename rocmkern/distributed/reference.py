"""Attention over ranks means what attention of one process does."""

from __future__ import annotations

from typing import Any

from rocmkern.ops.attention import reference

__all__ = ["distributed_attention"]


def distributed_attention(
    q: Any, k: Any, v: Any, *, ranks: int = 2, split: str = "", mode: str = "", **options: Any
) -> Any:
    """`rocmkern.reference.flash_attention`: how tokens are shared out does not matter."""
    return reference.flash_attention(q, k, v, **options)
