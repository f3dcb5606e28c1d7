"""Frequency scaling of rotary embeddings for contexts longer than those trained on, and the frequencies themselves.

The fields have the names of the papers and of Hugging Face's ``rope_scaling`` configurations, which are accepted as
dicts as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np

from rocmkern.calls import checks as _checks
from rocmkern.calls.arguments import FLOAT32, accept
from rocmkern.calls.values import look
from rocmkern.calls.view import describe
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al., 2023): every frequency divided by ``factor``.

    Attributes
    ----------
    factor : float
        How many times longer the context is; positive.
    """

    factor: float


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng, Quesnelle, Fan, Shippole, 2023): low frequencies interpolated, high ones kept, a ramp in between.

    Attributes
    ----------
    factor : float
        How many times longer the context is; positive.
    original_max_position_embeddings : int
        Length of the context that the model was trained on.
    beta_fast, beta_slow : float
        Turns over the trained context from which a frequency is kept, and up to which it is interpolated.
    attention_factor : float, optional
        What cosine and sine are multiplied by; ``0.1 ln(factor) + 1`` by default (1 for a factor up to 1).
    mscale, mscale_all_dim : float, optional
        DeepSeek's form of the attention factor, where both are given and it is not: the quotient of
        ``0.1 mscale ln(factor) + 1`` of the two.
    truncate : bool
        Whether the ends of the ramp are rounded to whole dimensions.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1: wavelengths beyond ``original / low_freq_factor`` interpolated, those below
    ``original / high_freq_factor`` kept, a linear blend in between.

    Attributes
    ----------
    factor : float
        How many times longer the context is; positive.
    low_freq_factor, high_freq_factor : float
        Wavelengths per trained context at the two ends of the blend; positive, the second one larger.
    original_max_position_embeddings : int
        Length of the context that the model was trained on.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


Scaling = LinearScaling | YarnScaling | Llama3Scaling
_BY_NAME: dict[str, Any] = {"linear": LinearScaling, "yarn": YarnScaling, "llama3": Llama3Scaling}
_KINDS = ", ".join(kind.__name__ for kind in _BY_NAME.values())


def accept_base(value: Any, scaling: Any) -> float:
    """The ``base=`` argument, or the ``rope_theta`` of a dict; 10000 where neither is given."""
    theta = scaling.get("rope_theta") if isinstance(scaling, dict) else None
    for name, number in (("base", value), ("scaling", theta)):
        if number is None:
            continue
        said = repr(number) if name == "base" else f"rope_theta={number!r}"
        if isinstance(number, (bool, np.bool_)):
            raise ArgumentTypeError(name, said, "a number above 1")
        try:
            _checks.number(name, number, positive=True)
        except ArgumentError as error:
            raise type(error)(name, said, "a number above 1, in the range of float32") from None
        if number <= 1:
            raise ArgumentError(name, said, "a number above 1")
    if value is not None and theta is not None and float(value) != float(theta):
        raise ArgumentError(
            "base", repr(value), f"{theta!r}, the rope_theta of scaling, or no base: two bases contradict each other"
        )
    given = theta if value is None else value
    return 10000.0 if given is None else float(given)


def accept_freq_factors(value: Any, pairs: int, scaling: Scaling | None) -> tuple[float, ...] | None:
    """The ``freq_factors=`` argument, checked: numbers by which the frequencies of the pairs are divided."""
    if value is None:
        return None
    name = "freq_factors"
    if isinstance(scaling, Llama3Scaling):
        allowed = "either freq_factors or a Llama3Scaling: both say by what each frequency is divided"
        raise ArgumentError(name, "numbers beside a Llama3Scaling", allowed)
    if isinstance(value, tuple):
        shape: tuple[int, ...] = (len(value),)
    else:
        given = accept(name, value, (FLOAT32, np.dtype(np.float64)))
        if given.on_device:
            raise ArgumentError(name, "an array in device memory", "an array in host memory: copy it there once")
        shape = given.shape
    if shape != (pairs,):
        raise ArgumentError(name, f"shape {shape}", f"shape {(pairs,)}, one for each pair that is rotated")
    return _checked_factors(name, value) if isinstance(value, tuple) else look(_numbers_of_factors, given.view)


def _numbers_of_factors(values: np.ndarray) -> tuple[float, ...]:
    return _checked_factors("freq_factors", values.tolist())


def _checked_factors(name: str, factors: Sequence[float]) -> tuple[float, ...]:
    for pair, factor in enumerate(factors):
        try:
            _checks.number(name, factor, positive=True)
        except ArgumentError as error:
            raise type(error)(name, f"{factor!r} for pair {pair}", "finite positive numbers") from None
    return tuple(map(float, factors))


def accept_scaling(value: Any) -> Scaling | None:
    """The ``scaling=`` argument as one of the classes above, checked; None for no scaling."""
    if isinstance(value, dict):
        value = _from_dict(value)
    if value is None:
        return None
    if not isinstance(value, (LinearScaling, YarnScaling, Llama3Scaling)):
        raise ArgumentTypeError("scaling", describe(value), f"None, a dict, {_KINDS}")
    numbers = {f.name: getattr(value, f.name) for f in fields(value)}
    for name, number in numbers.items():
        if number is None and name in ("attention_factor", "mscale", "mscale_all_dim"):
            continue
        if name == "truncate":
            if not isinstance(number, bool):
                raise ArgumentTypeError("scaling", f"truncate={number!r}", "truncate=True or False")
            continue
        try:
            _checks.number("scaling", number, positive=True)
        except ArgumentError:
            raise ArgumentError("scaling", f"{name}={number!r}", f"a finite positive {name}") from None
    if isinstance(value, Llama3Scaling) and value.low_freq_factor >= value.high_freq_factor:
        given = f"low_freq_factor={value.low_freq_factor}, high_freq_factor={value.high_freq_factor}"
        raise ArgumentError("scaling", given, "a high_freq_factor above low_freq_factor")
    if isinstance(value, YarnScaling) and value.beta_slow > value.beta_fast:
        given = f"beta_fast={value.beta_fast}, beta_slow={value.beta_slow}"
        raise ArgumentError("scaling", given, "a beta_fast of at least beta_slow")
    return value


def _from_dict(given: dict[str, Any]) -> Any:
    """A Hugging Face ``rope_scaling`` dict as one of the classes; its ``rope_theta`` is `accept_base`'s."""
    values = dict(given)
    kinds = {key: values.pop(key) for key in ("rope_type", "type") if key in values}
    if not kinds:
        raise ArgumentError("scaling", repr(given), 'a dict with "rope_type"')
    kind = str(next(iter(kinds.values())))
    if len(set(map(str, kinds.values()))) > 1:
        raise ArgumentError("scaling", f'"rope_type" and "type" that differ: {kinds}', "one of them, or both alike")
    values.pop("rope_theta", None)
    if kind not in ("default", *_BY_NAME):
        raise ArgumentError("scaling", f'"rope_type": {kind!r}', f"{', '.join(map(repr, ('default', *_BY_NAME)))}")
    names = {f.name: f.default is MISSING for f in fields(_BY_NAME[kind])} if kind in _BY_NAME else {}
    for name in values:
        if name not in names:
            allowed = ", ".join((*names, "rope_theta"))
            raise ArgumentError("scaling", f"{name!r} in a dict of type {kind!r}", allowed)
    if kind == "default":
        return None
    missing = [name for name, required in names.items() if required and name not in values]
    if missing:
        raise ArgumentError("scaling", repr(given), f"a dict with {', '.join(missing)}")
    return _BY_NAME[kind](**values)


@functools.lru_cache(maxsize=64)
def frequencies(
    rotary_dim: int, base: float, scaling: Scaling | None, factors: tuple[float, ...] | None = None
) -> np.ndarray:
    """Frequencies of the pairs for the kernel of `rope`: turns per position times 2 ** 64, modulo 2 ** 64.

    Each is divided by its factor, if there are any, before it is scaled.

    Returns
    -------
    numpy.ndarray
        int64 ``[rotary_dim // 2]``, read-only.
    """
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / max(rotary_dim, 1)
    radians = np.float64(base) ** -exponents
    radians = _scaled(radians if factors is None else radians / factors, rotary_dim, base, scaling)
    # float64 has 53 bits of each frequency: at position 131071 an angle is off by 1e-11.
    turns = [int(math.ldexp(math.fmod(f / (2 * math.pi), 1.0), 64)) for f in radians]
    result = np.array([(t + (1 << 63)) % (1 << 64) - (1 << 63) for t in turns], np.int64)
    result.flags.writeable = False
    return result


def _scaled(radians: np.ndarray, rotary_dim: int, base: float, scaling: Scaling | None) -> np.ndarray:
    """Frequencies in radians per position, after scaling."""
    if scaling is None:
        return radians
    if isinstance(scaling, LinearScaling):
        return radians / scaling.factor
    length = scaling.original_max_position_embeddings
    if isinstance(scaling, Llama3Scaling):
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = np.clip((length * radians / (2 * np.pi) - low) / (high - low), 0.0, 1.0)
    else:
        ends = [_dimension(turns, rotary_dim, base, length) for turns in (scaling.beta_fast, scaling.beta_slow)]
        if scaling.truncate:
            ends = [math.floor(ends[0]), math.ceil(ends[1])]
        first, last = max(ends[0], 0), min(ends[1], rotary_dim - 1)
        if first == last:
            last += 0.001  # as the authors' code does: a step instead of a division by zero
        kept = 1 - np.clip((np.arange(rotary_dim // 2) - first) / (last - first), 0.0, 1.0)
    return radians / scaling.factor * (1 - kept) + radians * kept


def _dimension(turns: float, rotary_dim: int, base: float, length: int) -> float:
    """The dimension, as a real number, whose pair makes so many turns over the trained context."""
    return rotary_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))


def attention_factor(scaling: Scaling | None) -> float:
    """What cosine and sine are multiplied by: 1 except for YaRN."""
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return float(scaling.attention_factor)

    def of(mscale: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * mscale * math.log(scaling.factor) + 1.0

    if scaling.mscale is not None and scaling.mscale_all_dim is not None:
        return of(scaling.mscale) / of(scaling.mscale_all_dim)
    return of(1.0)
