"""Reading ``__cuda_array_interface__`` (versions 2 and 3), which CUDA and ROCm libraries share."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.runtime.foreign import ForeignArray
from rocmkern.runtime.geometry import check_shape, contiguous_strides

BFLOAT16: np.dtype = np.dtype(ml_dtypes.bfloat16)

LEGACY_STREAM = 1
"""Stream value of the interface that stands for the default stream of a device."""

PER_THREAD_STREAM = 2
"""Stream value of the interface that stands for the default stream of the calling thread."""


def read_typestr(typestr: Any, argument: str) -> np.dtype:
    """Return the dtype of a type string.

    NumPy has no type string for bfloat16; PyTorch and ml_dtypes write ``"<V2"``, which is read as bfloat16 here.
    """
    allowed = "the type string of a little-endian bool, integer, float or complex dtype, '<V2' for bfloat16"
    if not isinstance(typestr, str):
        raise ArgumentTypeError(argument, f"typestr {typestr!r}", allowed)
    if typestr in ("<V2", "|V2", "bfloat16"):
        return BFLOAT16
    try:
        dtype = np.dtype(typestr)
    except TypeError:
        raise ArgumentTypeError(argument, f"typestr {typestr!r}", allowed) from None
    if dtype.kind not in "biufc" or not dtype.isnative:
        raise ArgumentTypeError(argument, f"typestr {typestr!r}", allowed)
    return dtype


def read_stream(stream: Any, argument: str) -> int | None:
    """Return the ``stream`` entry of the interface if it is legal: None, 1, 2 or a handle. 0 is forbidden."""
    allowed = "None, 1 (legacy default stream), 2 (per-thread default stream) or a stream handle; 0 is ambiguous"
    if stream is None:
        return None
    if isinstance(stream, bool) or not hasattr(stream, "__index__"):
        raise ArgumentTypeError(argument, f"stream {stream!r}", allowed)
    if operator.index(stream) <= 0:
        raise ArgumentError(argument, f"stream {stream!r}", allowed)
    return operator.index(stream)


def read_cuda_array_interface(interface: Mapping[str, Any], owner: Any, argument: str = "array") -> ForeignArray:
    """Return what a ``__cuda_array_interface__`` dictionary says.

    Parameters
    ----------
    interface : mapping
        The dictionary; it is not changed.
    owner : object
        The object that it was read from, kept alive by the result.
    argument : str
        Name of the argument for errors.

    Returns
    -------
    ForeignArray
        With ``device_kind`` and ``device_index`` None: the interface does not say whose memory it is.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For a missing or malformed entry, stream 0, a mask, a null pointer with elements.
    """
    missing = [key for key in ("shape", "typestr", "data", "version") if key not in interface]
    if missing:
        raise ArgumentTypeError(argument, f"an interface without {', '.join(missing)}", "version 2 or 3, complete")
    if interface["version"] not in (2, 3):
        raise ArgumentTypeError(argument, f"interface version {interface['version']!r}", "version 2 or 3")
    if interface.get("mask") is not None:
        raise ArgumentTypeError(argument, "an array with a mask", "an array without a mask")
    shape = check_shape(interface["shape"], f"{argument}.shape")
    dtype = read_typestr(interface["typestr"], argument)
    strides = interface.get("strides")
    if strides is None:
        strides = contiguous_strides(shape, dtype.itemsize)
    elif len(strides) != len(shape):
        raise ArgumentError(argument, f"strides {strides!r} for shape {shape!r}", "one stride per dimension, or None")
    data = interface["data"]
    if not (isinstance(data, tuple) and len(data) == 2 and (data[0] is None or hasattr(data[0], "__index__"))):
        raise ArgumentTypeError(argument, f"data {data!r}", "a pair (address, read-only)")
    address = operator.index(data[0] or 0)
    if address <= 0 and 0 not in shape:
        raise ArgumentError(argument, f"address {address} with shape {shape!r}", "the address of the first element")
    return ForeignArray(
        address=address,
        shape=shape,
        strides=tuple(map(operator.index, strides)),
        dtype=dtype,
        device_kind=None,
        device_index=None,
        read_only=bool(data[1]),
        stream=read_stream(interface.get("stream"), argument),
        owner=owner,
    )
