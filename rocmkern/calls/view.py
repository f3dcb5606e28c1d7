"""Shape, strides and address of an array in device memory, as a NumPy view that is never read.

Operations bring arguments into canonical form by views only (transpose, broadcast, extra axes). NumPy does that
arithmetic on shapes, strides and addresses without looking at elements, so the same code serves host and device arrays.
Whatever would touch an element raises instead of reading an address that the CPU cannot reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.calls.streams import choose, ordered

_VIEWS = frozenset(
    ("transpose", "broadcast_to", "expand_dims", "moveaxis", "swapaxes", "reshape", "may_share_memory", "shares_memory")
)


class DeviceView(np.ndarray):
    """View of device memory.

    ``place`` is the device, ``owner`` the `DeviceTensor` that keeps the memory alive, ``origin`` the `Origin` of an
    array of another library (None: our own).
    """

    place: Any
    owner: Any
    origin: Any

    def __array_finalize__(self, parent: Any) -> None:
        self.place, self.owner = getattr(parent, "place", None), getattr(parent, "owner", None)
        self.origin = getattr(parent, "origin", None)

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("an array in device memory cannot be computed with on the CPU")

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__ not in _VIEWS:
            raise TypeError(f"{func.__name__}: an array in device memory cannot be read by the CPU")
        result = super().__array_function__(func, types, args, kwargs)
        if type(result) is np.ndarray:
            # broadcast_to returns a plain array, which the CPU could read.
            result = result.view(DeviceView)
            result.__array_finalize__(args[0])
        return result

    def __getitem__(self, index: Any) -> np.ndarray:
        entries = index if isinstance(index, tuple) else (index,)
        if not all(e is None or e is Ellipsis or isinstance(e, (int, slice)) for e in entries):
            raise TypeError("an array in device memory takes integers, slices, None and ... as an index")
        # An Ellipsis makes NumPy return a view even where all axes are indexed.
        return super().__getitem__(entries if Ellipsis in entries else (*entries, Ellipsis))

    def _unreadable(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("an array in device memory cannot be read or written by the CPU")

    __setitem__ = astype = copy = item = tolist = tobytes = fill = __iter__ = __float__ = __int__ = __bool__ = (
        _unreadable
    )
    any = all = sum = min = max = flatten = ravel = __array__ = __repr__ = __str__ = _unreadable  # type: ignore[assignment]


class _Memory:
    """What NumPy makes the view from."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, read_only: bool):
        self.__array_interface__ = {
            "data": (address, read_only),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{itemsize}",
            "version": 3,
        }


def device_view(tensor: Any, origin: Any = None) -> DeviceView:
    """View of a `DeviceTensor`; it keeps the tensor's memory alive. ``origin``: see `DeviceView`."""
    if tensor.size:
        memory = _Memory(tensor.data_ptr, tensor.shape, tensor.strides, tensor.dtype.itemsize, tensor.read_only)
        view = np.asarray(memory).view(tensor.dtype).view(DeviceView)
    else:
        # No element and no address, which NumPy does not take.
        view = np.empty(tensor.shape, tensor.dtype).view(DeviceView)
        view.flags.writeable = not tensor.read_only
    view.place, view.owner, view.origin = tensor.device, tensor, origin
    return view


def write(view: DeviceView, values: Any, stream: Any) -> None:
    """Copy host values, broadcast to the shape of the view, to device memory, in the order of the stream."""
    tensor = view.owner
    manager = tensor.manager
    part = tensor._view(address(view) - tensor.data_ptr, view.shape, view.strides)
    source = np.broadcast_to(values, view.shape).astype(view.dtype)
    asked = choose(manager, [view], stream)
    ordered(lambda: part.copy_(source), manager, [view], manager.stream, "a copy of values from the host", asked)


def read(view: DeviceView) -> np.ndarray:
    """Copy device memory to a new host array, after all work on it."""
    tensor = view.owner
    manager = tensor.manager
    part = tensor._view(address(view) - tensor.data_ptr, view.shape, view.strides)
    return ordered(part.to_numpy, manager, [view], manager.stream, "a copy of values to the host")


def address(view: np.ndarray) -> int:
    """Address of element 0; 0 where there is no element."""
    return view.__array_interface__["data"][0] if view.size else 0
