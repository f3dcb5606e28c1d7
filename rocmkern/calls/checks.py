"""Checks that several operations share. Each returns the argument in the form that a launch wants, or raises."""

from __future__ import annotations

import functools
import math
import numbers
import operator
from typing import Any

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls.adapters.torch_tensors import DTYPES
from rocmkern.calls.arguments import Argument
from rocmkern.calls.streams import STREAM_HANDLES
from rocmkern.calls.types import Stream
from rocmkern.calls.values import look
from rocmkern.calls.view import View, describe
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

MAX_HEAD_DIM = 256
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_SMALLEST_NORMAL_FLOAT32 = float(np.finfo(np.float32).tiny)


def layout(value: Any) -> str:
    """``"bhsd"`` or ``"bshd"``."""
    if not isinstance(value, str) or value not in ("bhsd", "bshd"):
        raise ArgumentError("layout", repr(value), '"bhsd" or "bshd"')
    return value


def rank(x: Argument, axes: str) -> None:
    """The number of axes, given by their names: ``"B Hq Sq D"``."""
    if len(x.shape) != len(axes.split()):
        wanted = f"[{', '.join(axes.split())}]"
        raise ArgumentError(x.name, f"shape {x.shape}", f"{len(axes.split())} axes {wanted}")


def some_axes(x: Argument) -> None:
    """At least one axis."""
    if not x.shape:
        raise ArgumentError(x.name, "an array without axes", "at least one axis")


def extent(x: Argument, axis: int, expected: int, meaning: str) -> None:
    """The length of an axis, `meaning` saying where it comes from: ``"the head dimension of q"``."""
    if x.shape[axis] != expected:
        raise ArgumentError(x.name, f"{x.shape[axis]} in shape {x.shape}", f"{expected}, {meaning}")


def head_dim(x: Argument) -> int:
    """Length of the last axis, 1 to `MAX_HEAD_DIM`."""
    size = x.shape[-1]
    if not 1 <= size <= MAX_HEAD_DIM:
        raise ArgumentError(x.name, f"head dimension {size}", f"a head dimension of 1 to {MAX_HEAD_DIM}")
    return size


def grouped_heads(x: Argument, num_kv_heads: int, num_heads: int) -> None:
    """Query heads must be a multiple of key-value heads (no query heads at all are)."""
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise ArgumentError(
            x.name, f"{num_kv_heads} key-value heads", f"a number that divides the {num_heads} query heads"
        )


def number(name: str, value: Any, *, positive: bool = False) -> float:
    """A real number as float32 holds it; ``positive`` asks for one that has a reciprocal there too.

    One that float32 would round to 0 is refused: it would be dropped in silence.
    """
    allowed = "a finite positive number" if positive else "a finite number"
    # To ask whether something is a number of any kind takes longer than the rest.
    if type(value) is not float and (isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real)):
        raise ArgumentTypeError(name, describe(value), allowed)
    try:
        result = float(value)
    except OverflowError:  # an integer
        result = math.inf
    # Comparisons with NaN are false, so this refuses it too.
    if not abs(result) <= _LARGEST_FLOAT32 or (positive and result < _SMALLEST_NORMAL_FLOAT32):
        raise ArgumentError(name, _shown(value), f"{allowed} in the range of float32")
    rounded = float(np.float32(result))
    if value and not rounded:
        raise ArgumentError(name, _shown(value), f"{allowed} in the range of float32, or 0")
    return rounded


def _shown(value: Any) -> str:
    """A number for a message: not hundreds of digits."""
    large = isinstance(value, int) and value.bit_length() > 128
    return f"an integer of {value.bit_length()} bits" if large else repr(value)


def integer(name: str, value: Any, minimum: int) -> int:
    """A whole number of at least `minimum`."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        result = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(name, describe(value), f"an integer of at least {minimum}") from None
    if result < minimum:
        raise ArgumentError(name, _shown(result), f"an integer of at least {minimum}")
    return result


def softmax_scale(scale: Any, head_dim: int) -> float:
    """The given factor, or ``1 / sqrt(head_dim)``."""
    return 1.0 / math.sqrt(head_dim) if scale is None else number("scale", scale)


def float_dtype(dtype: Any) -> np.dtype:
    """The dtype of a result, by NumPy's dtype of it or PyTorch's."""
    try:
        wanted = DTYPES.get(str(dtype)) or np.dtype(dtype)
    except TypeError:
        wanted = None
    if wanted not in _arguments.FLOATS:
        raise ArgumentTypeError("dtype", repr(dtype), ", ".join(str(d) for d in _arguments.FLOATS))
    return wanted


def accept_mask(name: str, value: Any, numbers: tuple[np.dtype, ...] = ()) -> Argument:
    """A mask: bool, or also of the dtypes of `numbers`. What others mean by other dtypes is said in the error."""
    kind = _arguments.kind_of_elements(value)
    remedy = None
    if kind == "int":
        remedy = _arguments.as_bool(name, value)
    elif kind == "float" and not numbers:
        remedy = "numbers that are added to the scores (0 and -inf) are bias="
    if remedy is None:
        return _arguments.accept(name, value, (*_arguments.BOOL, *numbers))
    given = describe(value) if isinstance(value, np.ndarray) else f"dtype {value.dtype}"
    raise ArgumentTypeError(name, given, f"dtype bool, True where a key is visible: {remedy}")


def broadcastable(x: Argument, shape: tuple[int, ...], axes: str) -> View:
    """View of x with `shape`, stride 0 where it repeats; `axes` names the axes for the error."""
    try:
        return x.aligned().broadcast_to(shape)
    except ValueError:
        allowed = f"a shape that broadcasts to {axes} = {shape}"
        views = {
            (shape[0], shape[-1]): ("[:, None, None, :]", "one row of keys a batch element"),
            (shape[0], *shape[-2:]): ("[:, None]", "the same for all heads"),
        }
        if len(shape) == 4 and x.shape in views:
            view, meaning = views[x.shape]
            allowed += f": {x.name}{view} for {meaning}"
        raise ArgumentError(x.name, f"shape {x.shape}", allowed) from None


def stream(value: Any) -> Stream:
    """None or a stream; a number is a stream's handle, of which 0 is forbidden by the array interface protocols."""
    if value is None:
        return None
    handle = any(hasattr(value, name) for name in STREAM_HANDLES)
    if isinstance(value, bool) or not (handle or isinstance(value, numbers.Integral)):
        raise ArgumentTypeError("stream", describe(value), "None, a stream, or the handle of one")
    if isinstance(value, numbers.Integral) and value <= 0:
        raise ArgumentError("stream", str(value), "None, a stream, or the handle of one (1 legacy, 2 per thread)")
    given: Stream = value
    return given


ACTIVATIONS = (None, "silu", "gelu", "gelu_tanh", "relu")


def activation(value: Any) -> str | None:
    """One of `ACTIVATIONS`."""
    if value is not None and not isinstance(value, str):
        raise ArgumentTypeError("activation", describe(value), ", ".join(map(repr, ACTIVATIONS)))
    if value not in ACTIVATIONS:
        raise ArgumentError("activation", repr(value), ", ".join(map(repr, ACTIVATIONS)))
    return value


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentTypeError(name, describe(value), "True or False")
    return bool(value)


def bias(x: Argument | None, length: int, meaning: str) -> View | None:
    """View ``[1, length]`` of a bias ``[length]``; None for None."""
    if x is None:
        return None
    rank(x, "N")
    extent(x, 0, length, meaning)
    return x.aligned()[None]


def at_least_2d(x: View) -> View:
    """View of an array with one row where it is a vector."""
    return x[None] if x.ndim == 1 else x


def same_shape(x: Argument, shape: tuple[int, ...], meaning: str) -> None:
    """The shape of x must be this one; `meaning` says whose it is."""
    if x.shape != tuple(shape):
        raise ArgumentError(x.name, f"shape {x.shape}", f"shape {tuple(shape)}, {meaning}")


def epsilon(eps: Any) -> float:
    """The ``eps`` of a norm as a float, checked."""
    value = number("eps", eps)
    if value < 0 or math.copysign(1.0, value) < 0:
        raise ArgumentError("eps", repr(eps), "0 or a positive number in the range of float32")
    return value


def cache_scale(name: str, value: Any, cache: Argument) -> Argument | None:
    """What the numbers of a quantized cache ``[n_blocks, L, Hkv, D]`` are multiplied by: ``[Hkv]``, positive.

    Numbers in device memory are not looked at.
    """
    if value is None:
        return None
    if cache.dtype not in _arguments.QUANTIZED:
        raise ArgumentError(name, describe(value), f"None where the caches are {cache.dtype}")
    scale = _arguments.accept(name, value, (_arguments.FLOAT32,))
    same_shape(scale, (cache.shape[2],), "one for each key-value head")
    if scale.on_device:
        return scale
    look(functools.partial(_check_positive, name), scale.view)
    return scale


def _check_positive(name: str, values: np.ndarray) -> None:
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ArgumentError(name, "numbers that are not finite and positive", "finite positive numbers")
