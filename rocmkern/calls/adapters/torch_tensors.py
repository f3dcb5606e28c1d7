"""PyTorch's tensors. In device memory their attributes say all: a DLPack capsule would cost 30 us more."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from rocmkern.calls.adapters import dlpack_arrays
from rocmkern.calls.adapters.foreign import device_view
from rocmkern.calls.view import View
from rocmkern.runtime.foreign import ForeignArray
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
    where = dlpack_arrays.place_of(name, x)
    if where is None:
        return dlpack_arrays.view_on_host(name, x)
    there = _attributes(x)
    return dlpack_arrays.view_on_device(name, x, *where) if there is None else device_view(there, *where, False)


def layout(x: Any) -> StridedLayout | None:
    """Layout of a tensor in device memory; None if its element type is none that operations take."""
    there, where = _attributes(x), dlpack_arrays.place_of("x", x)
    if there is None or where is None:
        return None
    return layout_of(where[0], there.address, there.dtype, there.shape, there.strides)


def _attributes(x: Any) -> ForeignArray | None:
    dtype = DTYPES.get(str(x.dtype))
    if dtype is None:
        return None
    strides = tuple([step * dtype.itemsize for step in x.stride()])
    return ForeignArray(x.data_ptr(), tuple(x.shape), strides, dtype, None, None, False, None, x)
