"""What an operation takes: an argument as a view with the checks that every operation makes of it.

`accept` takes an argument, `accept_out` what results are written to, which has further rules. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ml_dtypes
import numpy as np

from rocmkern.calls import adapters
from rocmkern.calls import values as _values
from rocmkern.calls.notes import thread
from rocmkern.calls.overlaps import overlap, overlaps_itself, same_elements
from rocmkern.calls.types import Array
from rocmkern.calls.view import View, describe
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.runtime.torch_tensors import note_write, torch_of

if TYPE_CHECKING:  # Before Python 3.13 a type variable has no default.
    from typing_extensions import TypeVar as TypeVarWithDefault

    Source = TypeVarWithDefault("Source", covariant=True, default=Any)
else:
    Source = TypeVar("Source", covariant=True)

FLOAT32 = np.dtype(np.float32)
FLOATS = (FLOAT32, np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
BOOL = (np.dtype(np.bool_),)
INT32 = (np.dtype(np.int32),)
UINT8 = (np.dtype(np.uint8),)
#: dtypes of quantized keys and values.
QUANTIZED = tuple(np.dtype(d) for d in (np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
INTEGERS = (*INT32, np.dtype(np.int64))

_WRITABLE = "NumPy, DeviceTensor, PyTorch, CuPy, or an object whose DLPack capsule (1.0) has no read-only flag"


@dataclass(slots=True)  # a frozen one takes three times as long
class Argument(Generic[Source]):
    """An argument or a result of an operation.

    Attributes
    ----------
    name : str
        The argument's name, for errors.
    view : View
        Of its memory.
    source : object
        The object itself, as the caller gave it or gets it.
    original : View, optional
        Of the caller's elements where `view` is a converted copy of them.
    shape, dtype
        Of `view`.
    """

    name: str
    view: View
    source: Source
    original: View | None = None
    shape: tuple[int, ...] = field(init=False)
    dtype: np.dtype = field(init=False)

    def __post_init__(self) -> None:
        self.shape, self.dtype = self.view.shape, self.view.dtype

    @property
    def place(self) -> Any:
        """Where the memory belongs: `HOST`, or a device."""
        return self.view.place

    @property
    def on_device(self) -> bool:
        """Whether the elements lie where the CPU cannot read them."""
        return self.view.on_device

    @property
    def unconverted(self) -> View:
        """Of the caller's elements."""
        return self.view if self.original is None else self.original

    def converted(self, make: Callable[[np.ndarray], np.ndarray]) -> Argument[Source]:
        """The same argument with ``make(values)`` in its place: of another element type, or at other addresses.

        See `values.converted`.
        """
        return Argument(self.name, _values.converted(self.view, make), self.source, self.unconverted)

    def aligned(self) -> View:
        """The view; one of a copy where elements do not lie at multiples of their size (fields of packed records)."""
        if self.view.is_aligned:
            return self.view
        if self.on_device:
            raise ArgumentError(self.name, "a device array that is not aligned", "elements at multiples of their size")
        return self.converted(np.ndarray.copy).view


def kind_of_elements(x: Any) -> str | None:
    """``"bool"``, ``"int"`` or ``"float"`` for an array of any library, told by the name of its dtype; None for others.

    For the words of an error: what is wrong with x is not known yet.
    """
    name = str(getattr(x, "dtype", "")).rpartition(".")[2]
    return next((kind for kind in ("bool", "int", "float") if kind in name), None)


def as_bool(name: str, x: Any) -> str:
    """How one writes an array as truth values, for the words of an error."""
    return f"{name}.bool()" if torch_of(x) is not None else f"{name}.astype(bool)"


def accept(name: str, x: Array, dtypes: tuple[np.dtype, ...] = FLOATS) -> Argument[Array]:
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
    view = adapters.view(name, x)
    if view.dtype not in dtypes:
        raise ArgumentTypeError(name, describe(view), f"dtype {' or '.join(str(d) for d in dtypes)}")
    return Argument(name, view, x)


def same_place(first: Argument, others: Iterable[Argument | None]) -> None:
    """Refuse a mixture of host memory and devices, naming both arguments."""
    place = first.view.place
    for x in others:
        if x is not None and x.view.place != place:
            raise ArgumentError(x.name, f"an array in {x.place}", f"an array in {place}, as {first.name}")


def same_dtype(first: Argument, others: Iterable[Argument]) -> None:
    """Refuse mixed dtypes, naming both arguments."""
    dtype = first.view.dtype
    for x in others:
        if x.view.dtype != dtype:
            raise ArgumentTypeError(x.name, f"dtype {x.dtype}", f"{dtype}, the dtype of {first.name}")


def accept_out(
    out: Array,
    shape: tuple[int, ...],
    dtype: np.dtype,
    inputs: Iterable[Argument | None] = (),
    *,
    elementwise: bool = False,
    others: Iterable[Argument] = (),
    name: str = "out",
) -> Argument[Array]:
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
    others : iterable of Argument
        Other results, which must not overlap with it either.
    name : str
        Name for errors.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Another shape, dtype or device; read-only; overlapping with itself or with an input.
    """
    result = accept(name, out, (dtype,))
    view = result.view
    if view.shape != tuple(shape):
        raise ArgumentError(name, f"shape {view.shape}", f"shape {tuple(shape)}")
    if view.read_only:
        words = "a read-only array"
        if not isinstance(out, np.ndarray) and not hasattr(out, "read_only"):
            words = f"{describe(out)}, which does not say that it may be written"
        raise ArgumentError(name, words, f"an array that can be written: {_WRITABLE}")
    if not view.is_aligned:
        raise ArgumentError(name, "an array that is not aligned", "elements at multiples of their size")
    if overlaps_itself(view):
        raise ArgumentError(name, f"strides {view.strides} with shape {view.shape}", "elements that do not overlap")
    _apart(result, inputs, elementwise)
    _apart(result, others, elementwise=False)
    note_write(out, name)
    if thread.recorder is not None:
        thread.recorder.writes(out)
    return result


def accept_outs(
    out: Any,
    results: Sequence[tuple[tuple[int, ...], np.dtype | tuple[np.dtype, ...]]],
    allowed: str,
    inputs: Sequence[Argument | None] = (),
    *,
    elementwise: bool = False,
) -> list[Argument]:
    """Check an ``out=`` argument for several results, which must be apart from each other.

    Parameters
    ----------
    out : object
        A tuple or a list.
    results : sequence of (shape, dtype)
        Exactly what each has, or one of several dtypes.
    allowed : str
        What `out` is, for errors.
    inputs, elementwise
        As for `accept_out`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Not so many arrays, or one of them is refused by `accept_out`: its name is ``out[1]``, say, if there are more.
    """
    if not isinstance(out, (tuple, list)) or len(out) != len(results):
        raise ArgumentTypeError("out", describe(out), allowed)
    found: list[Argument] = []
    for number, (each, (shape, dtypes)) in enumerate(zip(out, results, strict=True)):
        name = f"out[{number}]" if len(results) > 1 else "out"
        dtype = accept(name, each, dtypes).dtype if isinstance(dtypes, tuple) else dtypes
        found.append(accept_out(each, shape, dtype, inputs, elementwise=elementwise, others=found, name=name))
    return found


def _apart(result: Argument, others: Iterable[Argument | None], elementwise: bool) -> None:
    """Refuse memory of a result elsewhere than the first of the others, and such as overlaps with one of them."""
    given = [x for x in others if x is not None]
    if given:
        same_place(given[0], [result])
    for x in given:
        if elementwise and same_elements(result.view, x.view):
            continue
        # An input may lie in host memory beside a result on a device.
        if x.on_device == result.on_device and overlap(result.view, x.unconverted):
            allowed = "memory apart from the inputs"
            words = f"{allowed}, or one of them" if elementwise else allowed
            raise ArgumentError(result.name, f"memory that overlaps with {x.name}", words)
