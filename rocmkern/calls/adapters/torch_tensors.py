"""PyTorch's tensors: their attributes say all, and a DLPack capsule would cost 30 us more in device memory.

New ones come from PyTorch, so from its caching allocator: it knows their stream, which is its current one. A launch on
another stream comes before all later work of that one (`streams.between_uses`), so that memory that is freed while the
launch runs is handed out again behind it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import ml_dtypes
import numpy as np

from rocmkern.calls.adapters import dlpack_arrays
from rocmkern.calls.adapters.foreign import device_view, host_view
from rocmkern.calls.view import HOST, View
from rocmkern.runtime.foreign import ForeignArray
from rocmkern.runtime.geometry import contiguous_strides
from rocmkern.runtime.layout import StridedLayout, layout_of
from rocmkern.runtime.torch_tensors import plain_tensor, torch_of

#: NumPy's dtypes by the names of PyTorch's, as far as operations take them.
DTYPES = {
    f"torch.{dtype}": dtype
    for dtype in map(
        np.dtype,
        (
            np.float32, np.float16, ml_dtypes.bfloat16, np.bool_, np.uint8, np.int32, np.int64,
            np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
        ),
    )
}  # fmt: skip


def view(name: str, x: Any) -> View:
    """View of the memory of a tensor that is plain memory (see `plain_tensor`)."""
    plain_tensor(torch_of(x), x, name)
    there = _attributes(x)
    if there is not None and x.is_cpu:
        return host_view(there, False)
    where = dlpack_arrays.place_of(name, x)
    if where is None:
        return dlpack_arrays.view_on_host(name, x)
    return dlpack_arrays.view_on_device(name, x, *where) if there is None else device_view(there, *where, False)


def layout(x: Any) -> StridedLayout | None:
    """Layout of a tensor; None if its element type is none that operations take."""
    there = _attributes(x)
    if there is None:
        return None
    where = None if x.is_cpu else dlpack_arrays.place_of("x", x)
    return layout_of(HOST if where is None else where[0], there.address, there.dtype, there.shape, there.strides)


def empty(shape: tuple[int, ...], dtype: np.dtype, like: Any) -> Any:
    """A new tensor beside another one, contiguous and not initialised."""
    # Less than `torch.empty` takes.
    strides, theirs, make = _contiguous(shape, dtype)
    return make(shape, strides, dtype=theirs, device=like.device)


@functools.lru_cache(4096)
def _contiguous(shape: tuple[int, ...], dtype: np.dtype) -> tuple[tuple[int, ...], Any, Any]:
    """Strides in elements, PyTorch's dtype, and what makes a tensor of them."""
    torch: Any = sys.modules["torch"]
    return contiguous_strides(shape, 1), getattr(torch, dtype.name), torch.empty_strided


def _attributes(x: Any) -> ForeignArray | None:
    dtype = DTYPES.get(str(x.dtype))
    if dtype is None:
        return None
    strides = tuple([step * dtype.itemsize for step in x.stride()])
    return ForeignArray(x.data_ptr(), tuple(x.shape), strides, dtype, None, None, False, None, x)
