"""Where the elements of an array lie: address, shape, strides, element type. What operations hand on.

Operations bring arguments into canonical form by views only (transpose, broadcast, extra axes). That is arithmetic on
shapes, strides and addresses, the same for host and device memory: a `View` has nothing else, and no way to an element.
Only `View.numpy`, of host memory, gives an array that can be read or written; a call that asked for it depends on
values, so that it cannot be done again from notes (see `plan`). `values.look` and `values.converted` are for what can.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from rocmkern.calls import notes
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.geometry import index_view, reshape_strides, resolve_reshape, transpose_axes
from rocmkern.runtime.views import memory_view

if TYPE_CHECKING:
    from rocmkern.calls.streams import Origin
    from rocmkern.runtime.device import Device
    from rocmkern.runtime.manager import DeviceTensor

HOST: Literal["host memory"] = "host memory"
Shape = tuple[int, ...]


class _Fields:
    """What a view has, until it is one: then nothing changes any more."""

    __slots__ = ("address", "dtype", "origin", "owner", "place", "read_only", "shape", "strides")

    address: int
    shape: Shape
    strides: Shape
    dtype: np.dtype
    owner: Any
    place: Device | Literal["host memory"]
    read_only: bool
    origin: Origin | None


class View(_Fields):
    """Memory with a shape.

    Attributes
    ----------
    address : int
        Of element 0; 0 where there is no element.
    shape, strides : tuple of int
        Strides in bytes.
    dtype : numpy.dtype
        Element type.
    owner : object
        Keeps the memory alive: in device memory a `DeviceTensor`.
    place : Device or "host memory"
        Where the memory belongs.
    read_only : bool
        Whether writing is forbidden.
    origin : Origin, optional
        Of device memory of another library: where it goes on with the array.
    """

    __slots__ = ()

    def __new__(
        cls,
        address: int,
        shape: Shape,
        strides: Shape,
        dtype: np.dtype,
        owner: Any,
        place: Device | Literal["host memory"] = HOST,
        read_only: bool = False,
        origin: Origin | None = None,
    ) -> View:
        # Every operation makes some, and a frozen dataclass takes five times as long.
        fields: Any = _Fields()
        fields.address, fields.shape, fields.strides, fields.dtype = address, shape, strides, dtype
        fields.owner, fields.place, fields.read_only, fields.origin = owner, place, read_only, origin
        fields.__class__ = cls
        view: View = fields
        return view

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{self!r} does not change: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self!r} does not change: {name} cannot be deleted")

    # No library finds a way to the elements.
    __array_ufunc__ = None
    __iter__ = None
    __reversed__ = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, not of gaps between them."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def on_device(self) -> bool:
        """Whether the elements lie where the CPU cannot read them."""
        place = self.place
        return not (isinstance(place, str) or place.host_accessible)

    @property
    def is_aligned(self) -> bool:
        """Whether all elements lie at multiples of their alignment."""
        bits = self.address
        for length, stride in zip(self.shape, self.strides, strict=True):
            if length == 0:
                return True
            if length > 1:
                bits |= stride
        return bits % self.dtype.alignment == 0

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a view without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<View {self.dtype.name}{list(self.shape)} in {self.place}>"

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self!r} has no truth value: look at its size, or at the values of .numpy()")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{self!r} is no array: .numpy() gives one, of host memory")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"{self!r} is an address in this process, which cannot be copied or pickled")

    # Views of the same memory

    def part(self, offset: int, shape: Shape, strides: Shape, read_only: bool = False) -> View:
        """Elements of the same memory, the first so many bytes further on, in any shape and strides."""
        address = self.address + offset if 0 not in shape else 0
        return View(
            address, shape, strides, self.dtype, self.owner, self.place, self.read_only or read_only, self.origin
        )

    def __getitem__(self, index: Any) -> View:
        """Basic indexing: integers, slices, None and ``...``; a full index gives a view without axes."""
        if index is None:
            return self.part(0, (1, *self.shape), (0, *self.strides))
        return self.part(*index_view(self.shape, self.strides, index))

    def transpose(self, *axes: int | Shape) -> View:
        """The axes in this order; reversed if none is given."""
        wanted: Any = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = transpose_axes(len(self.shape), wanted)
        shape, strides = self.shape, self.strides
        return self.part(0, tuple([shape[axis] for axis in order]), tuple([strides[axis] for axis in order]))

    @property
    def T(self) -> View:
        """The axes reversed."""
        return self.part(0, self.shape[::-1], self.strides[::-1])

    def swapaxes(self, a: int, b: int) -> View:
        """Two axes exchanged."""
        shape, strides = list(self.shape), list(self.strides)
        shape[a], shape[b], strides[a], strides[b] = shape[b], shape[a], strides[b], strides[a]
        return self.part(0, tuple(shape), tuple(strides))

    def reshape(self, *shape: int | Shape) -> View:
        """Another shape (one length may be -1); `ArgumentError` where that would take a copy."""
        wanted: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        new_shape = resolve_reshape(self.shape, wanted)
        strides = reshape_strides(self.shape, self.strides, new_shape, self.dtype.itemsize)
        if strides is None:
            given = f"{new_shape} for {self!r} with strides {self.strides}"
            raise ArgumentError("shape", given, "a shape that is a view of these strides")
        return self.part(0, new_shape, strides)

    def broadcast_to(self, shape: Shape) -> View:
        """Repeated along new axes and along axes of length 1, with stride 0; ValueError where that does not fit."""
        new = len(shape) - len(self.shape)
        strides = [0] * new
        for length, stride, wanted in zip(self.shape, self.strides, shape[max(new, 0) :], strict=new >= 0):
            if length != wanted and length != 1:
                raise ValueError(f"{self!r} does not broadcast to {shape}")
            strides.append(stride if length == wanted else 0)
        if len(strides) != len(shape):
            raise ValueError(f"{self!r} does not broadcast to {shape}")
        return self.part(0, tuple(shape), tuple(strides), read_only=True)

    def windows(self, shape: Shape, strides: Shape) -> View:
        """Elements from the first one on, in any shape and strides within the same memory; they may overlap."""
        return self.part(0, shape, strides, read_only=True)

    def placed(self, place: Device | Literal["host memory"]) -> View:
        """The same memory, said to belong to a place."""
        return View(self.address, self.shape, self.strides, self.dtype, self.owner, place, self.read_only, self.origin)

    def cast(self, dtype: np.dtype) -> View:
        """The same bits as another element type of the same size."""
        assert dtype.itemsize == self.dtype.itemsize
        return View(self.address, self.shape, self.strides, dtype, self.owner, self.place, self.read_only, self.origin)

    def numpy(self) -> np.ndarray:
        """An array over the memory itself, which it keeps alive.

        Raises
        ------
        TypeError
            For device memory, which the CPU cannot read.
        """
        array = host_array(self)
        notes.refuse("the call looks at values in host memory")
        return array


def host_array(view: View) -> np.ndarray:
    """As `View.numpy`, but a plan hears nothing of it: for those who tell it themselves."""
    if view.on_device:
        raise TypeError(f"{view!r} cannot be read by the CPU: copy it to host memory first (results.read)")
    owner = view.owner
    # The array itself, where it is one: another takes microseconds.
    if type(owner) is np.ndarray and owner.shape == view.shape and owner.strides == view.strides:
        same = owner.dtype is view.dtype and owner.flags.writeable != view.read_only
        if same and (not owner.size or owner.__array_interface__["data"][0] == view.address):
            return owner
    return memory_view(view.address, view.shape, view.strides, view.dtype, owner, view.read_only)


def view_of(x: np.ndarray | DeviceTensor, origin: Origin | None = None) -> View:
    """View of a NumPy array, or of a `DeviceTensor`, whose memory it keeps alive. ``origin``: see `View`."""
    if isinstance(x, np.ndarray):
        address = x.__array_interface__["data"][0] if x.size else 0
        return View(address, x.shape, x.strides, x.dtype, x, HOST, not x.flags.writeable)
    owner = x.keep_alive()
    device = x.device
    return View(
        x.data_ptr, x.shape, x.strides, x.dtype, owner if device.host_accessible else x, device, x.read_only, origin
    )


@functools.lru_cache(256)
def absent(ndim: int, dtype: np.dtype | str) -> View:
    """View of a tensor that a launch leaves out: all its axes have length 0, and it lies nowhere."""
    dtype = np.dtype(dtype)
    return View(0, (0,) * ndim, (dtype.itemsize,) * ndim, dtype, None)


def describe(x: Any) -> str:
    """What something is, in the words of an error message."""
    if isinstance(x, np.ndarray | View):
        return f"{x.dtype} array of shape {x.shape}"
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
