"""Whether arrays share elements. Told from addresses, shapes and strides alone, in host and device memory alike."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from rocmkern.calls import recording as _recording
from rocmkern.calls.view import View
from rocmkern.runtime.geometry import byte_extent

# Effort that NumPy may spend on the exact overlap of two strided arrays; beyond it they count as overlapping.
_WORK = 100_000


def overlap(a: View, b: View) -> bool:
    """Whether two arrays share an element; True as well where that would take too long to find out."""
    result = _extents_meet(a, b)
    if result:
        with suppress(RuntimeError):  # TooHardError, which lives in different modules in different versions of NumPy
            result = np.shares_memory(_unread(a), _unread(b), max_work=_WORK)  # type: ignore[arg-type]  # any number
    recorder = _recording.active()
    if recorder is not None and not result:
        recorder.found_apart(a, b)
    return result


def same_elements(a: View, b: View) -> bool:
    """Whether two arrays are the same elements in the same places."""
    return (a.address, a.dtype, a.shape, a.strides) == (b.address, b.dtype, b.shape, b.strides)


def overlaps_itself(a: View) -> bool:
    """Whether two indices may name the same byte: each axis must step over all that the shorter steps cover."""
    if a.size <= 1:
        return False
    covered = a.itemsize
    for step, length in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if step < covered:
            return True
        covered += step * (length - 1)
    return False


def _extents_meet(a: View, b: View) -> bool:
    if 0 in a.shape or 0 in b.shape:
        return False
    (a_first, a_end), (b_first, b_end) = (byte_extent(x.shape, x.strides, x.itemsize) for x in (a, b))
    return a.address + a_first < b.address + b_end and b.address + b_first < a.address + a_end


class _Interface:
    def __init__(self, interface: dict[str, Any]):
        self.__array_interface__ = interface


def _unread(a: View) -> np.ndarray:
    """An array for NumPy's solver, which does not look at elements; it must not leave this module."""
    return np.asarray(
        _Interface(
            {
                "data": (a.address, True),
                "shape": a.shape,
                "strides": a.strides,
                "typestr": f"|V{a.itemsize}",
                "version": 3,
            }
        )
    )
