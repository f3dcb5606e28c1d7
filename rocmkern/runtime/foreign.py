"""What is known of an array that another library owns, however it was told (CUDA array interface, DLPack)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class ForeignArray:
    """Memory of another library.

    Attributes
    ----------
    address : int
        Address of element 0; 0 if there is no element.
    shape : tuple of int
        Shape.
    strides : tuple of int
        Strides in bytes.
    dtype : numpy.dtype
        Element type, ``ml_dtypes.bfloat16`` included.
    device_kind : str or None
        ``"host"``, ``"hip"`` or ``"cuda"``; None where the interface does not say (the CUDA array interface serves
        both kinds of GPU).
    device_index : int or None
        Number of the device; None where the interface does not say.
    read_only : bool or None
        Whether writing is forbidden; None where the interface does not say (a DLPack capsule from before version 1).
    stream : int or None
        Stream that the data is ready on, for the CUDA array interface; None if nothing is to be waited for.
    owner : object
        Keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    device_kind: str | None
    device_index: int | None
    read_only: bool | None
    stream: int | None
    owner: Any
