"""The tolerance rule: how far an output may be from its float64 reference.

For each output row (last axis)::

    max|out - ref64| <= max(c * e, u * ulp(max|ref64|))

with e the larger one of two numbers: the error of the straightforward algorithm in the compute dtype against float64,
its final rounding included, and what the roundings inside the operation cost against the magnitudes of what is added up
(`rocmkern.reference.roundings`). The first is one draw, which may be lucky; the second does not depend on luck, is
small where nothing cancels, and is what remains where large terms do. ulp is that of the output's dtype, and c = u = 2
unless a row says otherwise with a reason. Row by row, so that large rows do not hide small ones. NaN and infinity must
stand exactly where the reference, rounded to the output's dtype, has them.
Exact operations have the bound 0; a fixed absolute bound may replace the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.matrix.schema import Tolerance

DEFAULT_C = 2.0
DEFAULT_U = 2.0
# Explicit mantissa bits and the exponent of the smallest normal number.
_FORMATS = {"float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126), "float64": (52, -1022)}
_NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}
_SHOWN = 10


def ulp(value: Any, dtype: Any) -> np.ndarray:
    """Distance between neighbouring numbers of `dtype` at `value` (at 0: the smallest subnormal).

    Parameters
    ----------
    value : array_like of float64, finite
    dtype : dtype
        float32, float16, bfloat16 or float64.
    """
    mantissa, lowest = _FORMATS[np.dtype(dtype).name]
    magnitude = np.abs(np.asarray(value, np.float64))
    # frexp gives m * 2**e with m in [0.5, 1), so floor(log2(x)) is e - 1, exactly.
    exponent = np.frexp(magnitude)[1] - 1
    exponent = np.where(magnitude == 0, lowest, np.maximum(exponent, lowest))
    return np.ldexp(1.0, exponent - mantissa)


@dataclass(frozen=True)
class Rule:
    """The bound of an output: ``max(c * e, u * ulp)``, an absolute one, or 0 (`absolute` is 0)."""

    c: float = DEFAULT_C
    u: float = DEFAULT_U
    absolute: float | None = None

    def bound(self, e: Any, ulp: Any) -> Any:
        """The bound of rows with these errors of the baseline and ulps."""
        if self.absolute is not None:
            return np.full(np.shape(e), self.absolute)
        return np.maximum(self.c * e, self.u * ulp)

    def describe(self, e: float, ulp: float) -> str:
        """How the bound of a row came about."""
        if self.absolute is not None:
            return "absolute" if self.absolute else "exact"
        return f"max({self.c:g} * {e:.4g}, {self.u:g} * ulp {ulp:.4g})"


def rule_of(tolerance: Tolerance | None, dtype: str, exact: bool = False) -> Rule:
    """The rule of an output of a dtype (``"f32"``) under what a row, its operation or the defaults say."""
    if exact:
        return Rule(absolute=0.0)
    if tolerance is None or (tolerance.dtypes is not None and dtype not in tolerance.dtypes):
        return Rule()
    if tolerance.absolute is not None:
        return Rule(absolute=tolerance.absolute)
    return Rule(tolerance.c or DEFAULT_C, tolerance.u or DEFAULT_U)


def dtype_name(dtype: Any) -> str:
    """``"f32"`` for float32, and so on; other names as they are."""
    name = np.dtype(dtype).name
    return _NAMES.get(name, name)


@dataclass(frozen=True)
class Comparison:
    """An output against its reference.

    Attributes
    ----------
    output : str
        Name of the output.
    ok : bool
        Whether every row is within its bound and every NaN and infinity is where it belongs.
    error, bound, share : float
        Of the worst row: measured error, bound, and error divided by bound.
    index : tuple of int or None
        Where the worst element is; None for an empty output.
    got, expected : float
        The values there.
    parts : str
        How the bound came about.
    e, ulp : float
        Of the worst row: error of the baseline, and distance of neighbouring numbers.
    out_range, ref_range : tuple of float
        Smallest and largest finite value.
    out_head, ref_head : tuple of float
        The first ten values.
    mismatch : str
        What is wrong with NaN or infinity; empty if nothing.
    """

    output: str
    ok: bool
    error: float
    bound: float
    share: float
    index: tuple[int, ...] | None
    got: float
    expected: float
    parts: str
    e: float
    ulp: float
    out_range: tuple[float, float]
    ref_range: tuple[float, float]
    out_head: tuple[float, ...]
    ref_head: tuple[float, ...]
    mismatch: str = ""

    def describe(self) -> str:
        """The comparison in a few lines, for a failure message."""
        verdict = "within its bound" if self.ok else "WRONG"
        lines = [f"output {self.output}: {verdict}"]
        if self.mismatch:
            lines.append(f"  {self.mismatch}")
        lines += [
            f"  worst at {self.index}: got {self.got:.9g}, expected {self.expected:.9g}",
            f"  error {self.error:.4g}, bound {self.bound:.4g} ({self.parts}), share of the bound {self.share:.3g}",
            f"  got      min {self.out_range[0]:.9g} max {self.out_range[1]:.9g}",
            f"  expected min {self.ref_range[0]:.9g} max {self.ref_range[1]:.9g}",
            f"  got      first {_SHOWN}: {_head_text(self.out_head)}",
            f"  expected first {_SHOWN}: {_head_text(self.ref_head)}",
        ]
        return "\n".join(lines)


def compare(
    out: np.ndarray,
    reference: np.ndarray,
    baseline: np.ndarray | None = None,
    roundings: np.ndarray | None = None,
    *,
    tolerance: Tolerance | None = None,
    exact: bool = False,
    name: str = "out",
) -> Comparison:
    """Compare an output with its float64 reference under the tolerance rule.

    Parameters
    ----------
    out : ndarray
        The output; its dtype is the one whose ulp counts.
    reference : ndarray of float64
        Same shape.
    baseline : ndarray, optional
        Output of the straightforward algorithm; default is the reference rounded to the output's dtype.
    roundings : ndarray of float64, optional
        What roundings cost in each element, which e is at least.
    tolerance : Tolerance, optional
        Other c, u, or an absolute bound.
    exact : bool
        Bound 0.
    name : str
        Name of the output in messages.
    """
    if out.shape != reference.shape:
        raise ValueError(f"{name} has shape {out.shape}, its reference {reference.shape}")
    out64, ref64 = _rows(out), _rows(reference)
    with np.errstate(over="ignore"):
        rounded = _rows(np.asarray(reference, np.float64).astype(out.dtype))
    base64 = rounded if baseline is None else _rows(baseline)
    # Where rounding overflows, infinity is the right answer; elsewhere the reference itself counts.
    special = ~np.isfinite(rounded)
    expected = np.where(special, rounded, ref64)
    mismatch, where = _special_mismatch(out64, expected, out.shape)
    regular = np.isfinite(out64) & ~special
    error = _distance(out64, ref64, regular)
    row_error = error.max(axis=1, initial=0.0)
    e, unit = (np.zeros(len(ref64)),) * 2 if exact else _measures(ref64, base64, special, out.dtype)
    if roundings is not None and not exact:
        e = np.maximum(e, np.where(special, 0.0, _rows(roundings)).max(axis=1, initial=0.0))
    rule = rule_of(tolerance, dtype_name(out.dtype), exact)
    bound = rule.bound(e, unit)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(row_error == 0, 0.0, row_error / bound)
    within = bool((row_error <= bound).all())
    row = int(share.argmax()) if share.size else 0
    index = where
    if index is None and error.size:
        index = _unravel(row, int(error[row].argmax()), out.shape)
    return Comparison(
        output=name,
        ok=within and not mismatch,
        error=float(row_error[row]) if share.size else 0.0,
        bound=float(bound[row]) if share.size else 0.0,
        share=float(share[row]) if share.size else 0.0,
        index=index,
        got=float(out[index]) if index is not None else float("nan"),
        expected=float(reference[index]) if index is not None else float("nan"),
        parts=rule.describe(e[row], unit[row]) if share.size else "empty",
        e=float(e[row]) if share.size else 0.0,
        ulp=float(unit[row]) if share.size else 0.0,
        out_range=_range(out64),
        ref_range=_range(ref64),
        out_head=tuple(out64.reshape(-1)[:_SHOWN].tolist()),
        ref_head=tuple(ref64.reshape(-1)[:_SHOWN].tolist()),
        mismatch=mismatch,
    )


def _measures(ref64: Any, base64: Any, special: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """For each row the error of the baseline, and the ulp of the largest value."""
    usable = ~special & np.isfinite(base64)
    e = _distance(base64, ref64, usable).max(axis=1, initial=0.0)
    return e, ulp(np.where(special, 0.0, np.abs(ref64)).max(axis=1, initial=0.0), dtype)


def _distance(a: np.ndarray, b: np.ndarray, where: np.ndarray) -> np.ndarray:
    """``|a - b|``, and 0 elsewhere."""
    with np.errstate(invalid="ignore"):
        return np.where(where, np.abs(a - b), 0.0)


def _rows(array: np.ndarray) -> np.ndarray:
    """float64, two-dimensional, the last axis kept."""
    array = np.asarray(array).astype(np.float64)
    if array.ndim == 0:
        return array.reshape(1, 1)
    last = array.shape[-1]
    return array.reshape(array.size // last if last else 0, last)


def _unravel(row: int, column: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape:
        return ()
    return tuple(int(part) for part in np.unravel_index(row * shape[-1] + column, shape))


def _special_mismatch(out: Any, expected: Any, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...] | None]:
    same = (np.isfinite(out) & np.isfinite(expected)) | (out == expected) | (np.isnan(out) & np.isnan(expected))
    if same.all():
        return "", None
    wrong = np.argwhere(~same)
    row, column = (int(part) for part in wrong[0])
    index = _unravel(row, column, shape)
    got, wanted = out[row, column], expected[row, column]
    return f"{len(wrong)} NaN or infinity differ, first at {index}: got {got:g}, expected {wanted:g}", index


def _range(array: np.ndarray) -> tuple[float, float]:
    finite = array[np.isfinite(array)]
    return (float(finite.min()), float(finite.max())) if finite.size else (float("nan"), float("nan"))


def _head_text(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"
