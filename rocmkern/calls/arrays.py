"""What an operation takes and gives: NumPy arrays, `DeviceTensor` and ``__dlpack__`` objects such as torch tensors.

`accept` turns an argument into an `Argument`, a NumPy view that shares its memory; `accept_out` does so for ``out=``,
which has further rules; `allocate` makes a result of the kind of another operand. Nothing is copied, and nothing but
`allocate` allocates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from rocmkern.calls import recording as _recording
from rocmkern.calls import streams as _streams
from rocmkern.calls.view import DeviceView, device_view, write
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, RocmkernError, TargetError, masked_array_error
from rocmkern.runtime.foreign import ForeignArray
from rocmkern.runtime.interface import LEGACY_STREAM
from rocmkern.runtime.layout import StridedLayout, layout_of
from rocmkern.runtime.memory import POISON_BYTE
from rocmkern.runtime.torch_tensors import check_marks, plain_tensor, torch_of

FLOAT32 = np.dtype(np.float32)
FLOATS = (FLOAT32, np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
BOOL = (np.dtype(np.bool_),)
INT32 = (np.dtype(np.int32),)
UINT8 = (np.dtype(np.uint8),)
#: dtypes of quantized keys and values.
QUANTIZED = tuple(np.dtype(d) for d in (np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
INTEGERS = (*INT32, np.dtype(np.int64))
#: Lengths of the rows that elementwise operations work on, the first that divides the problem.
LINE_LENGTHS = (1024, 512, 256)

HOST = "host memory"
# DLPack device types whose memory this process can read: kDLCPU, kDLCUDAHost, kDLROCMHost.
_DLPACK_HOST = (1, 3, 11)
TORCH_DTYPES = {f"torch.{dtype}": dtype for dtype in (*FLOATS, *BOOL, *UINT8, *INTEGERS, *QUANTIZED)}
# Libraries whose arrays may be written, though their DLPack capsules from before version 1.0 do not say so.
_WRITABLE_LIBRARIES = ("torch", "cupy")
_WRITABLE = "NumPy, DeviceTensor, PyTorch, CuPy, or an object whose DLPack capsule (1.0) has no read-only flag"
# Effort that NumPy may spend on the exact overlap of two strided arrays; beyond it they count as overlapping.
_OVERLAP_WORK = 100_000

_poison: Callable[[np.ndarray], None] | None = None


@dataclass(frozen=True)
class Argument:
    """An argument or a result of an operation.

    Attributes
    ----------
    name : str
        The argument's name, for errors.
    array : numpy.ndarray
        View of its memory.
    source : object
        The object itself, as the caller gave it or gets it.
    place : object
        Where the memory belongs: `HOST`, or the device of a `DeviceTensor`.
    converted_from : numpy.ndarray, optional
        The caller's elements where `array` is a converted copy of them.
    """

    name: str
    array: np.ndarray
    source: Any
    place: Any
    converted_from: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def aligned(self) -> np.ndarray:
        """The view, or a copy where elements do not lie at multiples of their size (a field of packed records)."""
        if self.array.flags.aligned:
            return self.array
        if self.on_device:
            raise ArgumentError(self.name, "a device array that is not aligned", "elements at multiples of their size")
        return self.array.copy()

    @property
    def on_device(self) -> bool:
        """Whether the elements lie where the CPU cannot read them."""
        return isinstance(self.array, DeviceView)


def describe(x: Any) -> str:
    """What something is, in the words of an error message."""
    if isinstance(x, np.ndarray):
        return f"{x.dtype} array of shape {x.shape}"
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def kind_of_elements(x: Any) -> str | None:
    """``"bool"``, ``"int"`` or ``"float"`` for an array of any library, told by the name of its dtype; None for others.

    For the words of an error: what is wrong with x is not known yet.
    """
    name = str(getattr(x, "dtype", "")).rpartition(".")[2]
    return next((kind for kind in ("bool", "int", "float") if kind in name), None)


def as_bool(name: str, x: Any) -> str:
    """How one writes an array as truth values, for the words of an error."""
    return f"{name}.bool()" if torch_of(x) is not None else f"{name}.astype(bool)"


def accept(name: str, x: Any, dtypes: tuple[np.dtype, ...] = FLOATS) -> Argument:
    """Check the kind and the dtype of an argument.

    Parameters
    ----------
    name : str
        The argument's name, for errors.
    x : numpy.ndarray, DeviceTensor, or object with ``__dlpack__`` or ``__cuda_array_interface__``
    dtypes : tuple of numpy.dtype
        What is allowed; float32, float16 and bfloat16 by default.

    Returns
    -------
    Argument

    Raises
    ------
    ArgumentTypeError
        Something else (a list, a masked array, another dtype).
    ArgumentError
        A tensor that requires a gradient.
    TargetError
        Memory of a device that no target here can reach.
    """
    array, place = _view(name, x)
    if array.dtype not in dtypes:
        raise ArgumentTypeError(name, describe(array), f"dtype {' or '.join(str(d) for d in dtypes)}")
    return Argument(name, array, x, place)


def _view(name: str, x: Any) -> tuple[np.ndarray, Any]:
    """NumPy view of the memory of x, and where that memory belongs."""
    if isinstance(x, np.ma.MaskedArray):
        raise masked_array_error(name)
    if isinstance(x, np.ndarray):
        return np.asarray(x), HOST
    from rocmkern.runtime.manager import DeviceTensor

    if isinstance(x, DeviceTensor):
        return (x.numpy_view() if x.device.host_accessible else device_view(x)), x.device
    torch = torch_of(x)
    if torch is not None:
        plain_tensor(torch, x, name)
    else:
        check_marks(x, name)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        device_type, index = _ask(name, x, x.__dlpack_device__)
        if int(device_type) in _DLPACK_HOST:
            return _dlpack_view(name, x), HOST
        view = _dlpack_device_view(name, x, int(device_type), int(index))
        return view, view.place
    if hasattr(x, "__cuda_array_interface__"):
        view = _interface_view(name, x)
        return view, view.place
    raise ArgumentTypeError(
        name, describe(x), "an array: NumPy, DeviceTensor, or an object with __dlpack__ or __cuda_array_interface__"
    )


def _dlpack_device_view(name: str, x: Any, device_type: int, index: int) -> DeviceView:
    """View of the device memory of an object with ``__dlpack__``, on the current stream of its library."""
    from rocmkern.runtime import dlpack

    kind = dlpack.check_device_type(device_type, name)
    device = _reachable(name, x, kind, index)
    origin = _streams.origin_of(x, index)
    plain = _plain_torch(x)
    if plain is not None:
        return _foreign_view(plain, device, origin, False)
    # CUDA's default stream is 1 in the protocol, ROCm's is 0.
    stream = LEGACY_STREAM if kind == "cuda" and origin.stream == 0 else origin.stream
    there = _ask(name, x, lambda: dlpack.read_dlpack(x, stream=stream, argument=name))
    return _foreign_view(there, device, origin, _is_read_only(there, x))


def _plain_torch(x: Any) -> ForeignArray | None:
    """A torch tensor in device memory (`plain_tensor`) as its attributes say; a DLPack capsule costs 30 us more.

    None for everything else, and for an element type that operations do not take.
    """
    if torch_of(x) is None:
        return None
    dtype = TORCH_DTYPES.get(str(x.dtype))
    if dtype is None:
        return None
    strides = tuple(step * dtype.itemsize for step in x.stride())
    return ForeignArray(x.data_ptr(), tuple(x.shape), strides, dtype, None, None, False, None, x)


def torch_layout(x: Any) -> StridedLayout | None:
    """StridedLayout of a torch tensor in device memory; None if it is none that operations take."""
    plain = _plain_torch(x)
    if plain is None:
        return None
    from rocmkern.runtime import dlpack

    device_type, index = x.__dlpack_device__()
    device = _reachable("x", x, dlpack.check_device_type(int(device_type), "x"), int(index))
    return layout_of(device, plain.address, plain.dtype, plain.shape, plain.strides)


def _interface_view(name: str, x: Any) -> DeviceView:
    """View of the device memory of an object with ``__cuda_array_interface__``."""
    from rocmkern.runtime.interface import read_cuda_array_interface

    there = read_cuda_array_interface(x.__cuda_array_interface__, x, name)
    device = _reachable(name, x, None, None, there.address)
    # An array without a stream is ready; Numba's, for one, go on with the default stream.
    origin = _streams.Origin(_streams.handle_of(there.stream))
    return _foreign_view(there, device, origin, _is_read_only(there, x))


def _reachable(name: str, x: Any, kind: str | None, index: int | None, address: int = 0) -> Any:
    """The device that an array lies on."""
    from rocmkern.runtime.devices import device_of

    try:
        return device_of(kind, index, address)
    except TargetError as error:
        raise TargetError(
            f"{name}: {describe(x)} lies in device memory that cannot be reached here: copy it to host memory. {error}"
        ) from error


def _foreign_view(there: ForeignArray, device: Any, origin: Any, read_only: bool) -> DeviceView:
    from rocmkern.runtime.manager import DeviceTensor

    tensor = DeviceTensor.from_foreign(
        there.owner, there.address, there.shape, there.dtype, there.strides, device, read_only=read_only
    )
    return device_view(tensor, origin)


def _is_read_only(there: ForeignArray, x: Any) -> bool:
    """Whether writing is forbidden; so it is where nothing says that it is allowed: JAX's arrays never change."""
    if there.read_only is not None:
        return there.read_only
    library = _streams.library_of(x)
    return library is None or library.__name__ not in _WRITABLE_LIBRARIES


def same_place(first: Argument, others: Iterable[Argument | None]) -> None:
    """Refuse a mixture of host memory and devices, naming both arguments."""
    for x in others:
        if x is not None and x.place != first.place:
            raise ArgumentError(x.name, f"an array in {x.place}", f"an array in {first.place}, as {first.name}")


def same_dtype(first: Argument, others: Iterable[Argument]) -> None:
    """Refuse mixed dtypes, naming both arguments."""
    for x in others:
        if x.dtype != first.dtype:
            raise ArgumentTypeError(x.name, f"dtype {x.dtype}", f"{first.dtype}, the dtype of {first.name}")


def accept_out(
    out: Any,
    shape: tuple[int, ...],
    dtype: np.dtype,
    inputs: Iterable[Argument | None] = (),
    *,
    elementwise: bool = False,
    name: str = "out",
) -> Argument:
    """Check an ``out=`` argument.

    Parameters
    ----------
    out : object
        As for `accept`.
    shape, dtype : tuple of int, numpy.dtype
        Exactly what the result has.
    inputs : iterable of Argument or None
        What must not overlap with it. The first one says where it has to be.
    elementwise : bool
        Whether it may *be* one of the inputs: the same elements in the same places.
    name : str
        Name for errors.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Another shape, dtype or device; read-only; overlapping with itself or with an input.
    """
    result = accept(name, out, (dtype,))
    array = result.array
    if array.shape != tuple(shape):
        raise ArgumentError(name, f"shape {array.shape}", f"shape {tuple(shape)}")
    if not array.flags.writeable:
        words = "a read-only array"
        if not isinstance(out, np.ndarray) and not hasattr(out, "read_only"):
            words = f"{describe(out)}, which does not say that it may be written"
        raise ArgumentError(name, words, f"an array that can be written: {_WRITABLE}")
    if not array.flags.aligned:
        raise ArgumentError(name, "an array that is not aligned", "elements at multiples of their size")
    if _overlaps_itself(array):
        raise ArgumentError(name, f"strides {array.strides} with shape {array.shape}", "elements that do not overlap")
    given = [x for x in inputs if x is not None]
    if given:
        same_place(given[0], [result])
    for x in given:
        if elementwise and _same_elements(array, x.array):
            continue
        # An input may lie in host memory beside a result on a device.
        if x.on_device == result.on_device and overlap(
            array, x.array if x.converted_from is None else x.converted_from
        ):
            allowed = "memory apart from the inputs"
            raise ArgumentError(
                name, f"memory that overlaps with {x.name}", f"{allowed}, or one of them" if elementwise else allowed
            )
    return result


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays share an element; True as well where that would take too long to find out."""
    result = np.may_share_memory(a, b)
    if result:
        with suppress(RuntimeError):  # TooHardError, which lives in different modules in different versions of NumPy
            result = np.shares_memory(a, b, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]  # any number is allowed
    recorder = _recording.active()
    if recorder is not None and not result:
        recorder.found_apart(a, b)
    return result


def _same_elements(a: np.ndarray, b: np.ndarray) -> bool:
    same_start = a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    return same_start and a.dtype == b.dtype and a.shape == b.shape and a.strides == b.strides


def _overlaps_itself(a: np.ndarray) -> bool:
    """Whether two indices may name the same byte: each axis must step over all that the shorter steps cover."""
    if a.size <= 1:
        return False
    covered = a.itemsize
    for step, length in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if step < covered:
            return True
        covered += step * (length - 1)
    return False


def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype, like: Argument | None = None) -> Argument:
    """A new result of the kind of `like` (NumPy if None), not initialised. The only place where results come from.

    Parameters
    ----------
    name : str
        Name of the result.
    shape, dtype : tuple of int, numpy.dtype
    like : Argument, optional
        The first input of the operation.

    Returns
    -------
    Argument
        With `source` to be returned to the caller.
    """
    if like is not None and isinstance(like.array, DeviceView):
        return _allocate_on_device(name, shape, dtype, like)
    if like is not None and like.place != HOST:
        source = like.source.manager.empty(shape, dtype, uninitialized=True)
        array = source.numpy_view()
    else:
        source = array = _empty(name, shape, dtype)
        if like is not None and not isinstance(like.source, np.ndarray):
            source = _like_dlpack(array, like.source)
    if _poison is not None and array.size:
        _poison(array)
    return Argument(name, array, source, HOST if like is None else like.place)


def _empty(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A new host array; one that no memory could hold is refused by name."""
    try:
        return np.empty(shape, dtype)
    except ValueError:  # more bytes, or a longer axis, than NumPy counts
        words = f"a result of shape {shape}, {math.prod(shape) * dtype.itemsize} bytes"
        raise ArgumentError(name, words, "less than 2 ** 63 bytes: smaller arguments") from None


def _allocate_on_device(name: str, shape: tuple[int, ...], dtype: np.dtype, like: Argument) -> Argument:
    view = like.array
    assert isinstance(view, DeviceView)
    manager = view.owner.manager
    library = None if view.origin is None else _streams.library_of(like.source)
    home = _streams.launched_on(manager, _streams.choose(manager, [view]))
    tensor, source = new_result(shape, dtype, manager, home, library)
    recorder = _recording.active()
    if recorder is not None:
        recorder.allocated(tensor, view, source)
    return Argument(name, device_view(tensor), source, like.place)


def new_result(
    shape: tuple[int, ...], dtype: np.dtype, manager: Any, stream: int, library: Any = None
) -> tuple[Any, Any]:
    """A new `DeviceTensor` that `stream` writes, and the caller's object of it: of a library with ``from_dlpack``."""
    tensor = manager.empty(shape, dtype, uninitialized=True, stream=stream)
    if _poison is not None and tensor.nbytes:
        tensor.device.fill(tensor.data_ptr, tensor.nbytes, POISON_BYTE, stream)
    return tensor, tensor if library is None else library.from_dlpack(_DeviceExporter(tensor))


def temporary(shape: tuple[int, ...], dtype: np.dtype, view: np.ndarray, stream: Any = None) -> Any:
    """A new `DeviceTensor` beside a device array, for the inner results of an operation; its content is undefined.

    It is ready on the stream that an operation on that array uses, with this ``stream=`` argument.
    """
    assert isinstance(view, DeviceView)
    manager = view.owner.manager
    home = _streams.launched_on(manager, _streams.choose(manager, [view], stream))
    tensor = manager.empty(shape, dtype, uninitialized=True, stream=home)
    recorder = _recording.active()
    if recorder is not None:
        recorder.allocated(tensor, view)
    return tensor


def assign(array: np.ndarray, values: Any, stream: Any) -> None:
    """Write host values, broadcast to its shape, to an array in host or device memory."""
    if not isinstance(array, DeviceView):
        array[...] = values
    elif array.size:
        write(array, values, stream)


class _DeviceExporter:
    """A new `DeviceTensor` as other libraries take it over. It is written on the stream that they go on with."""

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **_ignored: Any
    ) -> Any:
        # Not before the consumer's last use is its memory handed out again.
        self._tensor.record_stream(_streams.handle_of(stream))
        return self._tensor.__dlpack__(stream=-1, max_version=max_version)


def _set_all_bits(array: np.ndarray) -> None:
    array.reshape(-1).view(np.uint8).fill(POISON_BYTE)


@contextmanager
def poison_outputs(fill: Callable[[np.ndarray], None] = _set_all_bits) -> Iterator[None]:
    """Fill new results with NaN, so that an element that a kernel does not write shows. For tests; not per thread.

    Parameters
    ----------
    fill : callable
        Fills new arrays in host memory; default: all bits set, which is how those in device memory are filled.
    """
    global _poison
    before, _poison = _poison, fill
    try:
        yield
    finally:
        _poison = before


def heads_second(x: np.ndarray, layout: str) -> np.ndarray:
    """View ``[B, H, S, D]`` of an array in `layout`; packed sequences (``"packed"``) are one batch."""
    if layout == "bhsd":
        return x
    return (x[None] if layout == "packed" else x).transpose(0, 2, 1, 3)


def four_axes(*arrays: np.ndarray, row_axes: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
    """Views with four axes of arrays of one shape, for operations that do not care about leading axes.

    Fewer axes get leading ones of length 1. More are joined where all strides allow it; what is left over is taken
    apart, one tuple of views an index. Nothing is copied, so a view of ``out`` writes to ``out``.

    Parameters
    ----------
    *arrays : numpy.ndarray
        All of the same shape, but for the trailing ones of `row_axes`.
    row_axes : int
        Trailing axes that keep their meaning.
    """
    arrays = _joined(arrays, row_axes, 4)
    extra = arrays[0].ndim - 4
    if extra <= 0:
        yield tuple(x[(None,) * -extra] for x in arrays)
        return
    for index in np.ndindex(arrays[0].shape[:extra]):
        yield tuple(x[index] for x in arrays)


def lines(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """As `four_axes`, with as many leading axes as possible joined: for operations on rows of the last axis."""
    yield from four_axes(*_joined(arrays, 1, 2), row_axes=1)


def flat_lines(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """As `four_axes`, for elementwise operations: all axes are joined that can be, and cut into rows of equal length.

    So a single long row is work for many blocks.
    """
    joined = _joined(arrays, 0, 1)
    columns = joined[0].shape[-1]
    length = next((n for n in LINE_LENGTHS if columns % n == 0), columns)
    yield from four_axes(*(x.reshape(*x.shape[:-1], columns // length, length) for x in joined), row_axes=1)


def joined_rows(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Views of arrays ``[..., M, n]`` with their leading axes joined, of all of them where the strides allow it.

    The arrays have the same shape, but for the last axis.
    """
    return _joined(arrays, 1, 2)


def rows_together(array: np.ndarray) -> int:
    """How many rows ``[..., M, n]`` are one product where the result does not keep them apart.

    By these a configuration is chosen, so that the bits of a result do not depend on where it is written.
    """
    return joined_rows(array)[0].shape[-2]


def _joined(arrays: tuple[np.ndarray, ...], row_axes: int, enough: int) -> tuple[np.ndarray, ...]:
    """Views with neighbouring axes joined where all strides allow it, but not the last ``row_axes``; no copies.

    Nothing is joined once there are only ``enough`` axes.
    """
    i = 0
    while arrays[0].ndim > enough and i < arrays[0].ndim - row_axes - 1:
        shape = arrays[0].shape
        if 1 in shape[i : i + 2] or all(x.strides[i] == x.strides[i + 1] * shape[i + 1] for x in arrays):
            length = shape[i] * shape[i + 1]
            arrays = tuple(x.reshape((*x.shape[:i], length, *x.shape[i + 2 :])) for x in arrays)
        else:
            i += 1
    return arrays


def _dlpack_view(name: str, x: Any) -> np.ndarray:
    """NumPy view of the host memory of an object with ``__dlpack__``."""
    from rocmkern.runtime import dlpack
    from rocmkern.runtime.views import memory_view

    there = _ask(name, x, lambda: dlpack.read_dlpack(x, argument=name))
    read_only = _is_read_only(there, x)
    return memory_view(there.address, there.shape, there.strides, there.dtype, there.owner, read_only)


def _ask(name: str, x: Any, question: Callable[[], Any]) -> Any:
    """The answer of another library; where it refuses, an error that names the argument."""
    try:
        return question()
    except RocmkernError:
        raise
    except Exception as error:  # other libraries raise what they like
        raise ArgumentError(
            name, f"{describe(x)} that refuses to share its memory ({error})", "a plain array"
        ) from error


class _Exporter:
    """A NumPy array as other libraries take it over, bfloat16 included."""

    def __init__(self, array: np.ndarray):
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_ignored: Any) -> Any:
        from rocmkern.runtime import dlpack

        return dlpack.write_capsule(self._array, device_type=dlpack.CPU, device_index=0, max_version=max_version)


def _like_dlpack(array: np.ndarray, example: Any) -> Any:
    """The memory of a NumPy array as an object of the library of `example`; the array itself where that has no way."""
    library: Any = _streams.library_of(example)
    return array if library is None else library.from_dlpack(_Exporter(array))
