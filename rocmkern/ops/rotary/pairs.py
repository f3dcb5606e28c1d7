"""What a rotation turns, as views: the pairs of the rotated part of a head, and the rest of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Pairs:
    """Which elements of a head are pairs.

    Attributes
    ----------
    interleaved : bool
        Whether the elements of a pair are neighbours; else they are half of the part apart.
    dim : int
        Rotated elements of each part.
    parts : int
        1, or 2 for 2-D positions.
    """

    interleaved: bool
    dim: int
    parts: int = 1

    def of(self, x: Any, part: int = 0) -> Any:
        """View ``[2, ..., dim // 2]`` of the first and of the second elements of the pairs of one part."""
        turned = x[..., part * self.dim : (part + 1) * self.dim]
        if self.interleaved:
            return np.moveaxis(turned.reshape(*x.shape[:-1], self.dim // 2, 2), -1, 0)
        return np.moveaxis(turned.reshape(*x.shape[:-1], 2, self.dim // 2), -2, 0)

    def rest(self, x: Any) -> Any:
        """View of what is not rotated."""
        return x[..., self.parts * self.dim :]
