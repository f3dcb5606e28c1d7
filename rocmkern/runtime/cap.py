"""How much may be allocated: the cap arithmetic and the choice between two readings of one number. Pure functions.

With ``f`` bytes free now and ``o`` bytes held by this process, another ``n`` bytes are allowed iff
``o + n <= cap * (f + o)``. The right-hand side does not change when this process allocates or frees, so ten
allocations of 60 % cannot succeed one after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

DEFAULT_CAP = 0.70
MAX_CAP = 0.90


@dataclass(frozen=True)
class Reading:
    """A number of bytes and where it was read.

    Attributes
    ----------
    value : int or None
        Bytes; None if the source could not be read or said nonsense.
    source : str
        Where the number comes from, in words.
    """

    value: int | None
    source: str


def smaller(readings: Iterable[Reading]) -> Reading:
    """Return the smallest readable one of several readings of the same number.

    Unreadable (None) and negative values are ignored. If nothing is left, the value is None and the source names
    everything that was tried.
    """
    readings = list(readings)
    usable = [(reading.value, reading) for reading in readings if reading.value is not None and reading.value >= 0]
    if not usable:
        return Reading(None, "unreadable: " + (", ".join(reading.source for reading in readings) or "no source"))
    return min(usable, key=lambda pair: pair[0])[1]


def check_cap(cap: float) -> float:
    """Return `cap` as a float, or raise `ArgumentError` unless ``0 < cap <= 0.90``."""
    allowed = f"a fraction of the free memory, 0 < cap <= {MAX_CAP:.2f} (default {DEFAULT_CAP:.2f})"
    if isinstance(cap, bool) or not isinstance(cap, Real):
        raise ArgumentTypeError("cap", repr(cap), allowed)
    if math.isnan(cap) or not 0 < cap <= MAX_CAP:
        raise ArgumentError("cap", repr(cap), allowed)
    return float(cap)


def usable_free(free: int | None, held: int, total: int | None) -> int:
    """Return the free bytes to calculate with, whatever the sources said.

    Parameters
    ----------
    free : int or None
        Free bytes as read; None if unreadable.
    held : int
        Bytes that this process holds on the device.
    total : int or None
        Size of the device; None or not positive if unknown.

    Returns
    -------
    int
        At least 0. Free memory and what we hold cannot exceed a known total (an APU reports system memory as free
        and a small aperture as total, and a page that was never touched still counts as free), so they are cut to
        it. An unreadable ``free`` counts as everything that we do not hold; with no total either, as nothing.
    """
    if total is None or total <= 0:
        return max(0, free or 0)
    rest = max(0, total - held)
    return rest if free is None else min(max(0, free), rest)


def allowed_bytes(free: int | None, held: int, total: int | None, cap: float = DEFAULT_CAP) -> int:
    """Return how many more bytes may be allocated: the largest ``n >= 0`` with ``held + n <= cap * (free + held)``.

    Parameters
    ----------
    free, held, total
        As in `usable_free`, which cleans them first.
    cap : float
        Fraction of the memory that is free or ours, ``0 < cap <= 0.90``.

    Raises
    ------
    ArgumentError
        If `cap` is not a number in that range or `held` is negative.
    """
    cap = check_cap(cap)
    if held < 0:
        raise ArgumentError("held", str(held), "a number of bytes >= 0")
    # The decimal that was written, not its nearest binary fraction: 70 % of 90 bytes is 63, in floats 62.999...
    exact_cap = Fraction(str(cap))
    return max(0, math.floor(exact_cap * (usable_free(free, held, total) + held)) - held)
