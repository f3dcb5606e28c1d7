"""Tensor maps: what Hopper's copy engine is told of a tensor, as a kernel parameter (CUDA driver API, tensor maps).

A map follows from the launch words of its tensor, so a launch makes it of them.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rocmkern.targets.entries import EntryError, checked, is_count, is_symbol

#: Bytes of a map, and a divisor of its address.
MAP_BYTES, MAP_ALIGNMENT = 128, 64
#: Bytes of a row of a window, which is also what the swizzle repeats after.
ROW_BYTES = 128
_ITEMSIZE = 2
_LARGEST_EXTENT, _LARGEST_STRIDE = 2**31, 2**40
_MOST_AXES, _MOST_ROWS = 5, 256
_DTYPES = ("float16", "bfloat16")
#: Strides are multiples of this; an axis of one element has any of them.
_STRIDE_UNIT = _NO_STRIDE = 16


@dataclass(frozen=True)
class TensorMap:
    """A map that a kernel takes.

    Attributes
    ----------
    symbol : str
        Name of the parameter.
    at, ndim : int
        Number of the tensor's first launch word, and its axes.
    rows : int
        Rows that are copied at a time, of `ROW_BYTES` each.
    dtype : str
        Element type: float16 or bfloat16.
    """

    symbol: str
    at: int
    ndim: int
    rows: int
    dtype: str

    @classmethod
    def of(cls, fields: Any, words: int) -> TensorMap:
        """A map of the fields that an entry of the cache has, for a kernel that takes so many launch words.

        Raises
        ------
        EntryError
            If they are not those of a map of one of the kernel's tensors.
        """
        if not isinstance(fields, dict):
            raise EntryError("a tensor map is of another type")
        checked(
            fields, symbol=is_symbol, at=is_count(words), ndim=is_count(_MOST_AXES, 2), rows=is_count(_MOST_ROWS, 1),
            dtype=lambda value: value in _DTYPES,
        )  # fmt: skip
        if fields["at"] + 1 + 2 * fields["ndim"] > words:
            raise EntryError("a tensor map lies outside the launch words")
        return cls(**fields)

    def words(self, words: Sequence[int]) -> tuple[int, ...]:
        """The tensor's words among those of a launch."""
        return tuple(words[self.at : self.at + 1 + 2 * self.ndim])

    def encode(self, words: tuple[int, ...]) -> bytes | None:
        """The map of a tensor; None if the copy engine does not take such a tensor."""
        return _encode(words, self.rows, self.dtype)


def with_maps(ptx: str, prefix: str) -> tuple[str, tuple[TensorMap, ...]]:
    """PTX whose kernel takes the maps that it names after its other parameters, and what they are."""
    names = sorted(set(re.findall(rf"\b{prefix}\w+", ptx)))
    maps = []
    for name in names:
        at, ndim, rows, dtype = name.removeprefix(prefix).split("_")
        maps.append(TensorMap(name, int(at), int(ndim), int(rows), dtype))
    parameters = "".join(f",\n\t.param .align {MAP_ALIGNMENT} .b8 {name}[{MAP_BYTES}]" for name in names)
    return re.sub(r"(\.entry\s+[\w$]+\s*\([^)]*?)(\s*\))", rf"\1{parameters}\2", ptx, count=1), tuple(maps)


def axes_of(words: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Extent and stride in bytes of each axis but the last, the innermost first, as a map has them.

    Parameters
    ----------
    words : tuple of int
        A tensor's launch words: address, extents, strides in bytes.

    Returns
    -------
    list of (int, int) or None
        None where the copy engine does not take such a tensor.
    """
    ndim = len(words) // 2
    address, shape, strides = words[0], words[1 : 1 + ndim], words[1 + ndim :]
    if not address or address % 16 or strides[-1] != _ITEMSIZE or not all(0 < n < _LARGEST_EXTENT for n in shape):
        return None
    *outer, rows = zip(shape[:-1], strides[:-1], strict=True)
    # A kernel that indexes an axis of stride 0 says 0 for every index (`rings.index_mapped`): the map has one element
    # of it. Of rows it asks for a range, of which the copy engine fills with zeros what is not in the map.
    axes = [(1, _NO_STRIDE) if n == 1 or step == 0 else (n, step) for n, step in outer]
    axes.append((1, _NO_STRIDE) if rows[0] == 1 else rows)
    if any(step % _STRIDE_UNIT or not 0 < step < _LARGEST_STRIDE for _, step in axes):
        return None
    axes.reverse()
    return axes


@functools.lru_cache(4096)
def _encode(words: tuple[int, ...], rows: int, dtype: str) -> bytes | None:
    # deferred: optional dependency
    from cuda.bindings import driver

    axes = axes_of(words)
    if axes is None:
        return None
    ndim, address, columns = len(words) // 2, words[0], words[len(words) // 2]
    kinds, u32, u64 = driver.CUtensorMapDataType, driver.cuuint32_t, driver.cuuint64_t
    kind = {
        "float16": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "bfloat16": kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    }[dtype]
    status, encoded = driver.cuTensorMapEncodeTiled(
        kind,
        ndim,
        address,
        [u64(columns), *(u64(n) for n, _ in axes)],
        [u64(step) for _, step in axes],
        [u32(ROW_BYTES // _ITEMSIZE), u32(rows), *[u32(1)] * (ndim - 2)],
        [u32(1)] * ndim,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        return None
    return struct.pack("=16Q", *(int(x) for x in encoded.opaque))
