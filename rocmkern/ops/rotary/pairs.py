"""What a rotation turns, as views: the pairs of the rotated part of a head, and the rest of it."""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern.calls.view import View


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

    def of(self, x: View, part: int = 0) -> View:
        """View ``[2, ..., dim // 2]`` of the first and of the second elements of the pairs of one part."""
        step, half = x.strides[-1], self.dim // 2
        between, along = (step, 2 * step) if self.interleaved else (half * step, step)
        return x.part(part * self.dim * step, (2, *x.shape[:-1], half), (between, *x.strides[:-1], along))

    def rest(self, x: View) -> View:
        """View of what is not rotated."""
        return x[..., self.parts * self.dim :]
