"""Rotary position embedding: `rope`, and `rope_append_kv`, which also writes keys and values into a cache.

What they mean is `rocmkern.ops.rotary.reference`; how it is computed, `rocmkern.ops.rotary.kernels.rope`.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import axes as _axes
from rocmkern.calls import checks as _checks
from rocmkern.calls import overlaps as _overlaps
from rocmkern.calls import recording as _recording
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import INT32, QUANTIZED, Argument, accept, accept_out
from rocmkern.calls.plan import describe_by_repr, planned
from rocmkern.calls.types import Array, ArrayLike, RopeVariant, Stream
from rocmkern.calls.values import look
from rocmkern.calls.view import View
from rocmkern.ops.rotary.pairs import Pairs
from rocmkern.ops.rotary.scaling import (
    LinearScaling,
    Llama3Scaling,
    Scaling,
    YarnScaling,
    accept_base,
    accept_freq_factors,
    accept_scaling,
    attention_factor,
    frequencies,
)
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

INTEGERS = (*INT32, np.dtype(np.int64))
describe_by_repr(LinearScaling, YarnScaling, Llama3Scaling)


@planned
def rope(
    x: Array,
    positions: ArrayLike,
    *,
    block_positions: ArrayLike | None = None,
    variant: RopeVariant = "half",
    base: float | None = None,
    rotary_dim: int | None = None,
    scaling: Scaling | dict[str, Any] | None = None,
    freq_factors: ArrayLike | tuple[float, ...] | None = None,
    inverse: bool = False,
    layout: Literal["shd", "hsd"] = "shd",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Rotary position embedding: turn each pair of elements of a head by an angle of its position.

    With the pair (a, b) number i of a head at position p, and d the rotated dimension::

        angle = p * base ** (-2 i / d)
        a' = a cos(angle) - b sin(angle)
        b' = b cos(angle) + a sin(angle)

    Angles are reduced exactly, as integers: cosine and sine are within 2e-7 at every position. Position 0 changes no
    bit. Queries and keys take one call each, with any numbers of heads.

    Parameters
    ----------
    x : array, ``[..., S, H, D]``
        float32, float16 or bfloat16, with any strides.
    positions : array, ``[S]`` or ``[..., S]``
        int32 or int64: one row for all, or one for each of the leading axes of x. They may lie in host memory whatever
        x does.
    block_positions : array, like `positions`, optional
        2-D positions as in GLM: the first half of what is rotated turns by `positions`, the second half by these, each
        as a head of its own of half the dimension.
    variant : {"half", "interleaved"}
        Which elements are a pair: i and ``i + d / 2`` (GPT-NeoX; Llama as Hugging Face stores it), or 2 i and
        ``2 i + 1`` (GPT-J; Llama as Meta stores it).
    base : float, optional
        Base of the frequencies, above 1; 10000, or the ``rope_theta`` of `scaling`, by default.
    rotary_dim : int, optional
        Leading elements of a head that are rotated, an even number up to D (a multiple of 4 with `block_positions`).
        The others are copied. All by default.
    scaling : LinearScaling, YarnScaling, Llama3Scaling or dict, optional
        Scaling of the frequencies for longer contexts; a dict is a Hugging Face ``rope_scaling`` configuration. The
        attention factor of YaRN multiplies cosine and sine.
    freq_factors : array or tuple of float, ``[rotary_dim / 2]``, optional
        What the frequency of each pair is divided by, in host memory: float32 or float64, positive. These are the
        ``rope_freqs.weight`` of GGUF files. A linear or YaRN `scaling` scales the divided frequencies; a Llama3Scaling
        beside them is an error. With `block_positions` there are ``rotary_dim / 4``, the same for both halves.
    inverse : bool
        Undo the rotation.
    layout : {"shd", "hsd"}
        Order of the last axes of x; with "hsd" it is ``[..., H, S, D]``.
    out : array, optional
        Where to write the result: exact shape and dtype; x itself is allowed.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array
        Of the shape, kind and dtype of x. Computed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    References
    ----------
    Su, Lu, Pan, Wen, Liu: RoFormer (2021). Chen, Wong, Chen, Tian: position interpolation (2023). Peng, Quesnelle, Fan,
    Shippole: YaRN (2023). Du et al.: GLM (2022).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x = np.ones((3, 1, 4), np.float32)
    >>> rocmkern.rope(x, np.arange(3, dtype=np.int32))[:2, 0].round(3)
    array([[ 1.   ,  1.   ,  1.   ,  1.   ],
           [-0.301,  0.99 ,  1.382,  1.01 ]], dtype=float32)
    """
    rotation = (variant, base, rotary_dim, scaling, freq_factors, inverse)
    return rotated("x", x, positions, block_positions, rotation, layout, out, stream)


@planned
def rope_append_kv(
    k: ArrayLike,
    v: ArrayLike,
    positions: ArrayLike | None,
    key_cache: Array,
    value_cache: Array,
    slots: ArrayLike,
    *,
    variant: RopeVariant = "half",
    base: float | None = None,
    rotary_dim: int | None = None,
    scaling: Scaling | dict[str, Any] | None = None,
    freq_factors: ArrayLike | tuple[float, ...] | None = None,
    key_scale: ArrayLike | None = None,
    value_scale: ArrayLike | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """Rotate new keys as `rope` does, and write them and their values into a cache, in one kernel.

    Token t goes to slot ``slots[t]``, which is row ``slot % L`` of block ``slot // L`` of a paged cache with L rows a
    block, and row ``slot % L`` of sequence ``slot // L`` of a dense cache with room for L tokens a sequence. Nothing
    else in the caches changes.

    Parameters
    ----------
    k : array, ``[T, Hkv, D]``
        New keys: float32, float16 or bfloat16, with any strides.
    v : array, ``[T, Hkv, Dv]``
        Their values, of the dtype of k.
    positions : array, ``[T]``, or None
        int32 or int64. None: keys are written as they are, and of any head dimension.
    key_cache, value_cache : array, ``[n_blocks, L, Hkv, D]`` and ``[n_blocks, L, Hkv, Dv]``
        Of the dtype of k, or both int8, float8_e4m3fn or float8_e5m2 (``ml_dtypes``), as `paged_attention` reads them.
        Written in place.
    slots : array, ``[T]``
        int32 or int64, all different. -1 stands for padding: such a token is not written.
    variant, base, rotary_dim, scaling, freq_factors
        As in `rope`.
    key_scale, value_scale : array, float32, ``[Hkv]``, optional
        Of caches of 8 bits: what their numbers are to be multiplied by; positive. 1 by default. What is stored is the
        number divided by its scale, in float32 (as a product with ``1 / scale``), rounded to the nearest number of the
        dtype, of two that are as near the even one. What is larger than the largest finite number, infinity too,
        becomes that one (127 or -128 in int8). NaN stays NaN, but in int8 it becomes 0.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    key_cache, value_cache
        The arrays that were given.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it. Slots in device memory are not copied back to be
        checked: a token whose slot is not in the cache is not written, and the next wait raises `IndexOutOfRangeError`.
    TargetError
        The arrays lie on a device that no target here can reach.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> cache = rocmkern.KVCache(4, 16, num_kv_heads=2, head_dim=8)
    >>> k = v = np.ones((3, 2, 8), np.float32)
    >>> slots = cache.append(cache.add(), 3)
    >>> keys, values = rocmkern.rope_append_kv(k, v, np.arange(3), cache.keys[0], cache.values[0], slots)
    >>> float(values.sum())
    48.0
    """
    # Checks
    stream = _checks.stream(stream)
    k, v = accept("k", k), accept("v", v)
    _arguments.same_dtype(k, [v])
    _checks.rank(k, "T Hkv D")
    _checks.rank(v, "T Hkv Dv")
    _checks.head_dim(k)
    _checks.head_dim(v)
    for axis, meaning in ((0, "the number of tokens of k"), (1, "the heads of k")):
        _checks.extent(v, axis, k.shape[axis], meaning)
    if positions is None:
        positions, rotary_dim = np.zeros(k.shape[0], np.int32), _nothing_to_rotate(rotary_dim, k)
        _recording.keep(positions)
    turn = _Turn(variant, base, _rotary_dim(rotary_dim, k, 1), scaling, freq_factors, False)
    tokens = (k.shape[0],)
    where, at = accept_positions("positions", positions), accept_positions("slots", slots)
    for x in (where, at):
        if x.shape != tokens:
            raise ArgumentError(x.name, f"shape {x.shape}", f"shape {tokens}, one for each token")
    inputs = [k, v, where, at]
    _arguments.same_place(k, [v, *(x for x in (where, at) if x.on_device)])
    caches = [_accept_cache(*x, inputs) for x in (("key_cache", key_cache, k), ("value_cache", value_cache, v))]
    _arguments.same_dtype(caches[0], [caches[1]])
    if caches[0].shape[:3] != caches[1].shape[:3]:
        raise ArgumentError("value_cache", f"shape {caches[1].shape}", f"{caches[0].shape[:3]} in front, as key_cache")
    if _overlaps.overlap(caches[0].view, caches[1].view):
        raise ArgumentError("value_cache", "memory that overlaps with key_cache", "memory apart from it")
    _check_slots(at, caches[0].shape[0] * caches[0].shape[1])
    scales = [_checks.cache_scale(*x, caches[0]) for x in (("key_scale", key_scale), ("value_scale", value_scale))]
    _arguments.same_place(k, scales)
    for name, cache in zip(("key_cache", "value_cache"), caches, strict=True):
        accept_out(cache.source, cache.shape, cache.dtype, scales, name=name)  # apart from the scales too

    # Launch
    if k.view.size and caches[0].view.size:
        # deferred: start-up
        from rocmkern.ops.rotary.launch import launch_rope_append_kv

        arrays = (k.aligned(), v.aligned(), caches[0].view, caches[1].view)
        key_values, value_values = (None if x is None else x.aligned() for x in scales)
        numbers = (where.aligned(), at.aligned(), key_values, value_values)
        launch_rope_append_kv(*arrays, *numbers, turn, stream)
    return caches[0].source, caches[1].source


def rotated(
    name: str,
    x: Array,
    positions: ArrayLike,
    block_positions: ArrayLike | None,
    rotation: tuple[Any, ...],
    layout: str,
    out: Array | None,
    stream: Stream,
    *,
    gradient: bool = False,
) -> Array:
    """What `rope` gives; its argument x has this name in errors. Or the gradient of x, for the gradient of a result.

    ``rotation`` is variant, base, rotary_dim, scaling, freq_factors and inverse.
    """
    # Checks
    stream = _checks.stream(stream)
    x = accept(name, x)
    if not isinstance(layout, str) or layout not in ("shd", "hsd"):
        raise ArgumentError("layout", repr(layout), '"shd" or "hsd"')
    if len(x.shape) < 3:
        wanted = "[..., S, H, D]" if layout == "shd" else "[..., H, S, D]"
        raise ArgumentError(name, f"shape {x.shape}", f"3 axes or more, {wanted}")
    _checks.head_dim(x)
    parts = 1 if block_positions is None else 2
    variant, base, rotary_dim, scaling, freq_factors, inverse = rotation
    turn = _Turn(variant, base, _rotary_dim(rotary_dim, x, parts), scaling, freq_factors, inverse, parts)
    if gradient:
        turn.direction = -turn.direction
    given_positions = [accept_positions("positions", positions)]
    if block_positions is not None:
        given_positions.append(accept_positions("block_positions", block_positions))
    _arguments.same_place(x, [p for p in given_positions if p.on_device])
    views = [_position_rows(p, x, layout) for p in given_positions]
    given = None if out is None else accept_out(out, x.shape, x.dtype, [x, *given_positions], elementwise=True)

    # Configuration
    result = given or _results.allocate("out", x.shape, x.dtype, x)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.rotary.launch import launch_rope

        source, into = (a if layout == "hsd" else a.swapaxes(-2, -3) for a in (x.aligned(), result.view))
        alike = [v[..., None, :, None].broadcast_to(source.shape) for v in views]
        for some, some_out, *some_positions in _axes.four_axes(source, into, *alike, row_axes=3):
            launch_rope(some, some_out, [p[:, 0, :, 0] for p in some_positions], turn, stream)
    return result.source


def _accept_cache(name: str, value: Any, like: Argument, inputs: list[Argument]) -> Argument:
    """A cache that is written to: everything that holds of ``out=`` but its shape and its dtype."""
    cache = accept(name, value, (like.dtype, *QUANTIZED))
    _checks.rank(cache, "n_blocks L Hkv D")
    for axis, meaning in ((2, "heads"), (3, "head dimension")):
        _checks.extent(cache, axis, like.shape[axis - 1], f"the {meaning} of {like.name}")
    _arguments.same_place(like, [cache])
    return accept_out(value, cache.shape, cache.dtype, inputs, name=name)


def _check_slots(slots: Argument, count: int) -> None:
    if not slots.on_device and slots.view.size:
        look(functools.partial(_check_slot_numbers, count), slots.unconverted)


def _check_slot_numbers(count: int, numbers: np.ndarray) -> None:
    if numbers.min() < -1 or numbers.max() >= count:
        wrong = numbers.min() if numbers.min() < -1 else numbers.max()
        raise ArgumentError("slots", str(wrong), f"slots from 0 to {count - 1}, and -1 for padding")
    used = np.sort(numbers[numbers >= 0])
    twice = np.flatnonzero(used[1:] == used[:-1])
    if twice.size:
        raise ArgumentError("slots", f"slot {used[twice[0]]} more than once", "a slot of its own for each token")


class _Turn:
    """The checked description of a rotation.

    Attributes
    ----------
    pairs : Pairs
    frequencies : numpy.ndarray
        int64 ``[dim // 2]``, see `rope_scaling.frequencies`.
    factor, direction : float
        What cosine and sine are multiplied by; -1 for the inverse.
    """

    def __init__(
        self, variant: Any, base: Any, rotary_dim: int, scaling: Any, factors: Any, inverse: Any, parts: int = 1
    ):
        if not isinstance(variant, str) or variant not in ("half", "interleaved"):
            raise ArgumentError("variant", repr(variant), '"half" or "interleaved"')
        base = accept_base(base, scaling)
        if not isinstance(inverse, (bool, np.bool_)):
            raise ArgumentTypeError("inverse", repr(inverse), "True or False")
        scaling = accept_scaling(scaling)
        factor = attention_factor(scaling)
        self.pairs = Pairs(variant == "interleaved", rotary_dim // parts, parts)
        divisors = accept_freq_factors(factors, self.pairs.dim // 2, scaling)
        self.frequencies = frequencies(self.pairs.dim, base, scaling, divisors)
        self.factor, self.direction = (1.0 / factor, -1.0) if inverse else (factor, 1.0)


def _rotary_dim(value: Any, x: Argument, parts: int) -> int:
    head_dim, what = x.shape[-1], "an even number" if parts == 1 else "a multiple of 4"
    if value is None:
        if head_dim % (2 * parts):
            allowed = f"{what}, or rotary_dim= with the number of elements that are rotated, 0 for none"
            raise ArgumentError(x.name, f"head dimension {head_dim}", allowed)
        return head_dim
    size = _checks.integer("rotary_dim", value, 0)
    if size > head_dim or size % (2 * parts):
        raise ArgumentError("rotary_dim", str(size), f"{what} up to {head_dim}")
    return size


def _nothing_to_rotate(rotary_dim: Any, k: Argument) -> int:
    """The rotated dimension without positions: 0."""
    if rotary_dim is not None and _rotary_dim(rotary_dim, k, 1):
        raise ArgumentTypeError("positions", "None", f"positions, as rotary_dim={rotary_dim} asks for a rotation")
    return 0


def accept_positions(name: str, value: Any) -> Argument:
    """Positions as int32 in host memory, or as they are in device memory."""
    positions = accept(name, value, INTEGERS)
    if positions.on_device or positions.dtype == INT32[0]:
        return positions
    return positions.converted(functools.partial(_as_int32, name))


def _as_int32(name: str, array: np.ndarray) -> np.ndarray:
    """Numbers as int32, checked."""
    narrow = array.astype(np.int32)
    if (narrow != array).any():
        raise ArgumentError(name, f"numbers from {array.min()} to {array.max()}", "numbers of 32 bits")
    return narrow


def _position_rows(positions: Argument, x: Argument, layout: str) -> View:
    """View ``[..., S]`` of positions, with the leading axes of x."""
    length = x.shape[-3] if layout == "shd" else x.shape[-2]
    shape = (*x.shape[:-3], length)
    if positions.shape not in ((length,), shape):
        allowed = f"shape {(length,)}" + (f" or {shape}" if len(shape) > 1 else "")
        raise ArgumentError(positions.name, f"shape {positions.shape}", allowed)
    return positions.aligned().broadcast_to(shape)
