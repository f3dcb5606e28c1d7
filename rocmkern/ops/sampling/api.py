"""Sampling: from logits to tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, overload

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import FLOAT32, FLOATS, INTEGERS, Argument, accept, accept_out
from rocmkern.calls.plan import unplanned
from rocmkern.calls.types import Array, ArrayLike, Stream
from rocmkern.runtime.errors import ArgumentError

MAX_VOCABULARY = 1 << 24  # counts of tokens are exact in float32 up to here
_INT32, _INT64, _UINT64 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint64)


class _Kind(NamedTuple):
    """Element types of arrays of numbers: what they may have in host memory and in device memory, what kernels read."""

    host: tuple[np.dtype, ...]
    device: tuple[np.dtype, ...]
    kernel: np.dtype


_HOST_INTEGERS = (*INTEGERS, np.dtype(np.uint32), _UINT64)
_FLOATS = _Kind((*FLOATS, np.dtype(np.float64)), (FLOAT32,), FLOAT32)
_COUNTS = _Kind(_HOST_INTEGERS, INTEGERS, _INT64)
_WORDS = _Kind(_HOST_INTEGERS, (_INT64, _UINT64), _INT64)


@overload
def sample(
    logits: np.ndarray,
    *,
    temperature: float | ArrayLike = ...,
    top_k: int | ArrayLike | None = ...,
    top_p: float | ArrayLike | None = ...,
    seed: int | ArrayLike,
    offset: int | ArrayLike = ...,
    out: np.ndarray | None = ...,
    stream: Stream = ...,
) -> np.ndarray: ...
@overload
def sample(
    logits: Array,
    *,
    temperature: float | ArrayLike = ...,
    top_k: int | ArrayLike | None = ...,
    top_p: float | ArrayLike | None = ...,
    seed: int | ArrayLike,
    offset: int | ArrayLike = ...,
    out: Array | None = ...,
    stream: Stream = ...,
) -> Array: ...
@unplanned
def sample(
    logits: Array,
    *,
    temperature: float | ArrayLike = 1.0,
    top_k: int | ArrayLike | None = None,
    top_p: float | ArrayLike | None = None,
    seed: int | ArrayLike,
    offset: int | ArrayLike = 0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Draw a token from each row of logits: temperature, then top-k, then top-p, then one draw, all in one kernel.

    The weight of a token that is kept is ``exp((logit - largest) / temperature)``; it is drawn with its weight's share
    of the sum of those. The token is the first at which the running sum passes ``u`` times that sum, with ``u`` in
    [0, 1) from 53 bits of Philox4x32-10, of which `seed` is the key and `offset` the counter: so the same logits, seed
    and offset give the same token, whatever else is in the batch, and on every target, except where ``u`` or
    `top_p` falls within rounding (float32 sums) of a boundary between two tokens.

    The row has no part in ``u``. Rows with the same seed and offset use the same random number, and equal logits then
    give equal tokens: for independent draws give each row a seed of its own (one a sequence) or an offset of its own.

    Parameters
    ----------
    logits : array, ``[B, V]``
        float32, float16 or bfloat16, with any strides; V is 1 to 2 ** 24. A token of minus infinity is never drawn.
        Errors are NaN, plus infinity, and a row of minus infinity throughout. Logits in device memory are not copied
        back to be checked: the token of such a row is -1, and the next wait (`ResourceManager.wait`, or a copy to the
        host) raises.
    temperature : float or array, ``[B]``
        At least 0, default 1. 0 takes the largest logit, among equal ones the one of the lowest index.
    top_k : int or array, ``[B]``, optional
        Keep tokens whose logit is at least the k-th largest: ties with that one are all kept. At least 1; a k of V or
        more keeps everything, as None does.
    top_p : float or array, ``[B]``, optional
        In (0, 1]. Keep tokens, largest first, until their weights are at least ``top_p`` of the weights that top-k
        left: ties with the last one are all kept. None is 1.
    seed : int or array, ``[B]``
        0 to 2 ** 64 - 1.
    offset : int or array, ``[B]``
        0 to 2 ** 64 - 1, default 0. Another one for every step of a generation: the position of the token in its
        sequence, say.
    out : array, ``[B]``, optional
        Where to write the result: int32, apart from `logits`.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[B]``
        int32, of the kind of `logits`.

    Notes
    -----
    Where arrays of one number for each row lie in host memory, temperatures and top-p are float16, bfloat16, float32 or
    float64, and top-k, seeds and offsets int32, int64, uint32 or uint64; they are checked there. In device memory,
    beside logits there, temperatures and top-p are float32, top-k is int32 or int64, seeds and offsets are
    int64 or uint64. They are not copied back to be checked: of seeds and offsets the 64 bits count, and a row with
    another number out of range gets the token -1, which the next wait raises.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `qk_scores`; and for logits that are no distribution, see there.

    References
    ----------
    Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (2011). Holtzman et al.: The curious case of
    neural text degeneration (2020), for top-p.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> logits = np.array([[0.0, 3.0, 3.0], [9.0, 1.0, 2.0]], np.float32)
    >>> rocmkern.sample(logits, temperature=0, seed=0)
    array([1, 0], dtype=int32)
    >>> rocmkern.sample(logits, temperature=np.array([0, 0.7]), seed=np.array([1, 2]), offset=np.array([30, 41]))
    array([1, 0], dtype=int32)
    """
    # Checks
    stream = _checks.stream(stream)
    logits = accept("logits", logits)
    _checks.rank(logits, "B V")
    batch, columns = logits.shape
    if not 1 <= columns <= MAX_VOCABULARY:
        raise ArgumentError("logits", f"{columns} tokens in shape {logits.shape}", f"1 to {MAX_VOCABULARY} tokens")
    numbers = (
        _each("temperature", temperature, batch, _temperature, _FLOATS),
        _each("top_k", MAX_VOCABULARY if top_k is None else top_k, batch, _top_k, _COUNTS),
        _each("top_p", 1.0 if top_p is None else top_p, batch, _top_p, _FLOATS),
        _each("seed", seed, batch, _word64, _WORDS),
        _each("offset", offset, batch, _word64, _WORDS),
    )
    arrays = [number for number in numbers if isinstance(number, Argument)]
    _arguments.same_place(logits, [x for x in arrays if x.on_device])
    given = None if out is None else accept_out(out, (batch,), _INT32, [logits, *arrays])

    # Configuration
    result = given or _results.allocate("out", (batch,), _INT32, logits)

    # Launch
    if batch:
        # deferred: start-up
        from rocmkern.ops.sampling.launch import launch_sample, not_a_distribution

        if not result.on_device:
            _results.assign(result.view, 0, stream)  # that a row is wrong, only the kernel says
        launch_sample(logits.aligned(), result.view, numbers, stream)
        if not result.on_device:
            rows = np.flatnonzero(result.view.numpy() < 0)
            if rows.size:
                raise not_a_distribution(_what_is_wrong(logits.view.numpy(), int(rows[0])))
    return result.source


def _each(name: str, value: Any, rows: int, check: Callable[[str, Any], float], kind: _Kind) -> float | Argument:
    """A checked number for all rows, or an array of one for each row as the kernel reads it."""
    if not _is_array(value):
        return check(name, value)
    given = accept(name, value, kind.host)
    if given.shape != (rows,):
        raise ArgumentError(name, f"shape {given.shape}", f"a number, or shape {(rows,)}: one for each row of logits")
    if given.on_device:
        view = accept(name, value, kind.device).view
        return replace(given, view=view.cast(_INT64)) if view.dtype == _UINT64 else given

    def checked(array: np.ndarray) -> np.ndarray:
        numbers = []
        for row, number in enumerate(array.tolist()):
            try:
                numbers.append(check(name, number))
            except ArgumentError as error:
                raise ArgumentError(name, f"{error.given} in row {row}", error.allowed) from None
        return np.array(numbers, kind.kernel)

    return given.converted(checked)


def _is_array(value: Any) -> bool:
    """Whether this is one number for each row; scalars of NumPy and arrays of it without axes are one number."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.ndim > 0
    return any(hasattr(value, name) for name in ("__dlpack__", "__array_interface__", "__cuda_array_interface__"))


def _temperature(name: str, value: Any) -> float:
    number = _checks.number(name, value)
    if number < 0:
        raise ArgumentError(name, repr(value), "a number of at least 0")
    return _checks.number(name, value, positive=True) if number else 0.0


def _top_k(name: str, value: Any) -> int:
    return min(_checks.integer(name, value, 1), MAX_VOCABULARY)


def _top_p(name: str, value: Any) -> float:
    share = _checks.number(name, value, positive=True)
    if share > 1:
        raise ArgumentError(name, repr(value), "a number above 0 and at most 1, or None")
    return share


def _word64(name: str, value: Any) -> int:
    """An unsigned number of 64 bits as the signed one with the same bits."""
    number = _checks.integer(name, value, 0)
    if number >= 1 << 64:
        raise ArgumentError(name, str(number), "an integer from 0 to 2 ** 64 - 1")
    return number - (1 << 64) if number >= 1 << 63 else number


def _what_is_wrong(logits: np.ndarray, row: int) -> str:
    values = logits[row].astype(np.float32)
    what = "NaN" if np.isnan(values).any() else "plus infinity" if np.isposinf(values).any() else "minus infinity only"
    return f"{what} in row {row}"
