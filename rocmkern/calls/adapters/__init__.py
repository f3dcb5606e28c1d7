"""How arrays of each library become views: one file a library, or a protocol.

An adapter is a function ``view(name, x)`` that gives the `View` of an array's memory, or raises an error that names the
argument. Which one serves x follows from its type, and is looked up once a type: nothing is asked of x but by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.calls import recording as _recording
from rocmkern.calls.view import View, describe, view_of
from rocmkern.runtime.errors import ArgumentTypeError
from rocmkern.runtime.manager import DeviceTensor
from rocmkern.runtime.torch_tensors import torch_of

Adapter = Callable[[str, Any], View]

_adapters: dict[type, Adapter] = {np.ndarray: lambda name, x: view_of(x)}


def view(name: str, x: Any) -> View:
    """View of the memory of an array.

    Parameters
    ----------
    name : str
        The argument's name, for errors.
    x : object
        A NumPy array, a `DeviceTensor`, or an object with ``__dlpack__`` or ``__cuda_array_interface__``.

    Raises
    ------
    ArgumentTypeError
        Something else.
    ArgumentError
        An array whose elements are not what lies at its address, or that does not share its memory.
    TargetError
        Memory of a device that no target here can reach.
    """
    adapter = _adapters.get(type(x)) or _find(x)
    if adapter is None:
        raise ArgumentTypeError(
            name, describe(x), "an array: NumPy, DeviceTensor, or an object with __dlpack__ or __cuda_array_interface__"
        )
    whole = adapter(name, x)
    _recording.viewed(x, whole)
    return whole


def _find(x: Any) -> Adapter | None:
    """The adapter of the type of x, remembered; an object may also bear a protocol of its own, which is not."""
    kind = type(x)
    adapter = _of_type(kind, x)
    if adapter is not None:
        return _adapters.setdefault(kind, adapter)
    return _of_protocol(x)


def _of_type(kind: type, x: Any) -> Adapter | None:
    # The others are imported when the first of their arrays comes.
    if issubclass(kind, np.ndarray):
        # deferred: start-up
        from rocmkern.calls.adapters import numpy_arrays

        return numpy_arrays.view
    if issubclass(kind, DeviceTensor):
        # deferred: start-up
        from rocmkern.calls.adapters import tensors

        return tensors.view
    if torch_of(x) is not None:
        # deferred: start-up
        from rocmkern.calls.adapters import torch_tensors

        return torch_tensors.view
    return _of_protocol(kind)


def _of_protocol(x: Any) -> Adapter | None:
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        # deferred: start-up
        from rocmkern.calls.adapters import dlpack_arrays

        return dlpack_arrays.view
    if hasattr(x, "__cuda_array_interface__"):
        # deferred: start-up
        from rocmkern.calls.adapters import cuda_interface

        return cuda_interface.view
    return None
