"""Memory for pieces of arrays that is taken once and used in turn, for as long as a call goes on.

What comes while something else is used needs as many sets as are in use at the same time, however many pieces come.
Memory that is taken anew for each piece would be given back, and with an allocator of the host's stay with the process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


class Turns:
    """Sets of arrays for one piece, used in turn: what an earlier turn wrote is gone when its set comes again.

    Parameters
    ----------
    like : sequence of torch.Tensor
        An array of each kind that a set has.
    axis : int
        Of the rows.
    longest : int
        Rows of the longest piece.
    sets : int
    dtype : torch.dtype, optional
        That of `like` by default.
    """

    def __init__(self, like: Sequence[Any], axis: int, longest: int, sets: int = 1, dtype: Any = None):
        self._like, self.axis, self._longest, self._dtype = like, axis, longest, dtype
        self._memory: list[list[Any]] = [[] for _ in range(sets)]
        self._turn = 0

    def next(self, rows: int) -> list[Any]:
        """Contiguous arrays of so many rows, of undefined content."""
        self._turn = (self._turn + 1) % len(self._memory)
        memory = self._memory[self._turn]
        if not memory:
            memory += [x.new_empty(math.prod(self._shape(x, self._longest)), dtype=self._dtype) for x in self._like]
        shapes = [self._shape(x, rows) for x in self._like]
        return [x[: math.prod(shape)].view(shape) for x, shape in zip(memory, shapes, strict=True)]

    def _shape(self, x: Any, rows: int) -> list[int]:
        return [rows if axis == self.axis else length for axis, length in enumerate(x.shape)]
