"""Arrays in device memory that lend it by the CUDA array interface, which both kinds of GPU use: Numba."""

from __future__ import annotations

from typing import Any

from rocmkern.calls.adapters.foreign import device_of, device_view, is_read_only
from rocmkern.calls.streams import Origin, handle_of
from rocmkern.calls.view import View
from rocmkern.runtime.interface import read_cuda_array_interface
from rocmkern.runtime.torch_tensors import check_marks


def view(name: str, x: Any) -> View:
    """View of the memory of an array, ready on the stream that it names."""
    check_marks(x, name)
    there = read_cuda_array_interface(x.__cuda_array_interface__, x, name)
    device = device_of(name, x, None, None, there.address)
    # An array without a stream is ready; Numba's, for one, go on with the default stream.
    return device_view(there, device, Origin(handle_of(there.stream)), is_read_only(there, x))
