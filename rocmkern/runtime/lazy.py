"""Tensors that are filled when they are first used: what they are made from, and how it gets into memory.

What their handles share until then: `rocmkern.runtime.storage`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np

from rocmkern.runtime import transfer
from rocmkern.runtime.errors import CheckpointError
from rocmkern.runtime.handle import Handle


@runtime_checkable
class TensorSource(Protocol):
    """What a lazy tensor is made from: a tensor in a file, say.

    Attributes
    ----------
    shape : tuple of int
        Known without reading the data, as is `dtype`.
    dtype : numpy.dtype
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def pieces(self) -> Iterable[np.ndarray]:
        """Read the data: arrays which, one after the other, hold all elements in C order. May be called again."""
        ...


def upload(tensor: Handle, source: TensorSource) -> None:
    """Fill a contiguous tensor of a source's shape and dtype with its data.

    Raises
    ------
    CheckpointError
        If the pieces are not what shape and dtype say.
    """
    elements, done = tensor.reshape(-1), 0
    for piece in source.pieces():
        end = done + piece.size
        if piece.dtype != tensor.dtype or end > tensor.size:
            raise CheckpointError(
                f"{source!r} gave {piece.dtype.name}{list(piece.shape)} after {done} elements of "
                f"{tensor.dtype.name}{list(tensor.shape)}"
            )
        transfer.from_host(elements[done:end], piece.reshape(-1))
        done = end
    if done != tensor.size:
        raise CheckpointError(f"{source!r} gave {done} elements of {tensor.dtype.name}{list(tensor.shape)}")
