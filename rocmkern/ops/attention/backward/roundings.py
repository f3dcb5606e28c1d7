"""What the roundings of attention's gradient cost; see `rocmkern.reference.roundings`.

Weights and gradients of scores are rounded to the dtype of q before they are multiplied; a gradient that float16 holds
as a subnormal number, to a multiple of 2^-24.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.attention.backward.reference import axes_of, heads, shared, slope_sums
from rocmkern.reference.costs import STEPS, UNIT, UNITS, finite, wide

__all__ = ["flash_attention_backward"]

#: A weight that is smaller may count as 0.
_VANISHING = 2.0**-126
_SMALLEST = {"float32": 0.0, "float16": 2.0**-25, "bfloat16": 0.0}


def flash_attention_backward(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    *,
    sinks: np.ndarray | None = None,
    return_dbias: bool = False,
    return_dsinks: bool = False,
    return_dalibi_slopes: bool = False,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """`rocmkern.reference.flash_attention_backward`."""
    unit, smallest = UNITS[q.dtype.name], _SMALLEST[q.dtype.name]
    dout, q, k, v, o, lse = wide(dout, q, k, v, o, lse)
    order = axes_of(options)
    dq, dk, dv = (np.zeros(order(x).shape) for x in (q, k, v))
    dbias = np.zeros((*order(q).shape[:3], order(k).shape[2]))
    dsinks, dslopes = np.zeros(order(q).shape[1]), {}
    with np.errstate(all="ignore"):
        for h in heads(dout, q, k, v, o, lse, **options):
            q_abs, k_abs, dout_abs = (finite(np.abs(x)) for x in (h.q, h.k, h.dout))
            v_abs, o_abs, p = finite(np.abs(h.v)), finite(np.abs(h.o)), finite(h.p)
            factor = abs(h.factor)
            # Weights: products, sums of what is added to them, the exponential.
            exponents = finite(np.abs(h.lse))[:, None] + finite(np.abs(h.scores))
            relative = UNIT * (STEPS + factor * (q_abs @ k_abs.T) + exponents)
            ds, dx = finite(np.abs(h.ds)), finite(np.abs(h.dx))
            delta = UNIT * ((dout_abs * o_abs).sum(axis=1) + finite(np.abs(h.delta)))[:, None]
            own = relative * ds + p * (UNIT * (dout_abs @ v_abs.T) + UNIT * finite(np.abs(h.products)))
            vanishing = np.where(p > 0, _VANISHING, 0.0)
            own += vanishing * (finite(np.abs(h.products)) + finite(np.abs(h.delta))[:, None])
            errors = np.sqrt(own**2 + (unit * dx) ** 2 + (np.where(p > 0, smallest, 0.0)) ** 2)

            def spread(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
                root: np.ndarray = np.sqrt(weights**2 @ values**2)
                return root

            dq[h.batch, h.head, h.rows] += factor * (
                UNIT * dx @ k_abs + spread(errors, k_abs) + delta * (p @ k_abs)
            )  # fmt: skip
            dk[h.batch, h.kv_head, h.keys] += factor * (
                UNIT * dx.T @ q_abs + spread(errors.T, q_abs) + spread((delta * p).T, q_abs)
            )  # fmt: skip
            dv[h.batch, h.kv_head, h.keys] += UNIT * p.T @ dout_abs + spread(
                (p * (relative + unit) + vanishing).T, dout_abs
            )
            plain = own + delta * p + UNIT * ds
            dbias[h.batch, h.head, h.rows, h.keys] += plain
            dslopes[h.sequence, h.head] = (plain * np.abs(h.distance)).sum()
            if sinks is not None:
                weight = finite(
                    np.where(h.lse == -np.inf, 0.0, np.exp(np.minimum(np.float64(sinks[h.head]) - h.lse, 0)))
                )
                steps = UNIT * (STEPS + finite(np.abs(h.lse)) + np.abs(np.float64(sinks[h.head])))
                dsinks[h.head] += (weight * (delta[:, 0] + steps * finite(np.abs(h.delta)))).sum()
    results = [finite(order(x, back=True)) for x in (dq, dk, dv)]
    if return_dbias:
        results.append(shared(dbias, options["bias"].shape))
    if return_dsinks:
        results.append(dsinks)
    if return_dalibi_slopes:
        results.append(slope_sums(dslopes, options["alibi_slopes"].shape, np.float64))
    return tuple(results)
