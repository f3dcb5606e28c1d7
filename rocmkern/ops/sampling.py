"""Sampling: from logits to tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops import _arrays, _checks
from rocmkern.ops._arrays import accept, accept_out
from rocmkern.ops._plan import unplanned
from rocmkern.runtime.errors import ArgumentError

MAX_VOCABULARY = 1 << 24  # counts of tokens are exact in float32 up to here
_INT32 = np.dtype(np.int32)


@unplanned
def sample(
    logits: Any,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int,
    offset: int = 0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Draw a token from each row of logits: temperature, then top-k, then top-p, then one draw, all in one kernel.

    The weight of a token that is kept is ``exp((logit - largest) / temperature)``; it is drawn with its weight's share
    of the sum of those. The token is the first at which the running sum passes ``u`` times that sum, with ``u`` in
    [0, 1) from 53 bits of Philox4x32-10, of which `seed` is the key and ``(offset, row)`` the counter: so the same seed
    and offset give the same tokens, whatever else is in the batch, and on every target, except where ``u`` or
    `top_p` falls within rounding (float32 sums) of a boundary between two tokens.

    Parameters
    ----------
    logits : array, ``[B, V]``
        float32, float16 or bfloat16, with any strides; V is 1 to 2 ** 24. A token of minus infinity is never drawn.
        Errors are NaN, plus infinity, and a row of minus infinity throughout. Logits in device memory are not copied
        back to be checked: the token of such a row is -1, and the next wait (`ResourceManager.wait`, or a copy to the
        host) raises.
    temperature : float
        At least 0, default 1. 0 takes the largest logit, among equal ones the one of the lowest index.
    top_k : int, optional
        Keep tokens whose logit is at least the k-th largest: ties with that one are all kept. At least 1; a k of V or
        more keeps everything, as None does.
    top_p : float, optional
        In (0, 1]. Keep tokens, largest first, until their weights are at least ``top_p`` of the weights that top-k
        left: ties with the last one are all kept. None is 1.
    seed : int
        0 to 2 ** 64 - 1.
    offset : int
        0 to 2 ** 64 - 1, default 0. Another one for every step of a generation: the position, say.
    out : array, ``[B]``, optional
        Where to write the result: int32, apart from `logits`.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[B]``
        int32, of the kind of `logits`.

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
    """
    # Checks
    stream = _checks.stream(stream)
    logits = accept("logits", logits)
    _checks.rank(logits, "B V")
    batch, columns = logits.shape
    if not 1 <= columns <= MAX_VOCABULARY:
        raise ArgumentError("logits", f"{columns} tokens in shape {logits.shape}", f"1 to {MAX_VOCABULARY} tokens")
    heat = _temperature(temperature)
    count = 0 if top_k is None else _checks.integer("top_k", top_k, 1)
    share = 1.0 if top_p is None else _checks.number("top_p", top_p, positive=True)
    if share > 1:
        raise ArgumentError("top_p", repr(top_p), "a number above 0 and at most 1, or None")
    seed, offset = _word64("seed", seed), _word64("offset", offset)
    given = None if out is None else accept_out(out, (batch,), _INT32, [logits])

    # Configuration
    result = given or _arrays.allocate("out", (batch,), _INT32, logits)
    if count >= columns:
        count = 0

    # Launch
    if batch:
        from rocmkern.ops._launch_sampling import launch_sample, not_a_distribution

        if not result.on_device:
            result.array[...] = 0  # that a row is wrong, only the kernel says
        launch_sample(logits.aligned(), result.array, heat, count, share, seed, offset, stream)
        if not result.on_device:
            rows = np.flatnonzero(result.array < 0)
            if rows.size:
                raise not_a_distribution(_what_is_wrong(logits.array, int(rows[0])))
    return result.source


def _temperature(value: Any) -> float:
    number = _checks.number("temperature", value)
    if number < 0:
        raise ArgumentError("temperature", repr(value), "a number of at least 0")
    return _checks.number("temperature", value, positive=True) if number else 0.0


def _word64(name: str, value: Any) -> int:
    number = _checks.integer(name, value, 0)
    if number >= 1 << 64:
        raise ArgumentError(name, str(number), "an integer from 0 to 2 ** 64 - 1")
    return number


def _what_is_wrong(logits: np.ndarray, row: int) -> str:
    values = logits[row].astype(np.float32)
    what = "NaN" if np.isnan(values).any() else "plus infinity" if np.isposinf(values).any() else "minus infinity only"
    return f"{what} in row {row}"
