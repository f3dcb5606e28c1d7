"""The gradient of attention in plain NumPy: the meaning of `rocmkern.flash_attention_backward`.

One query row i of one head, with its keys j, its scores s_j as `flash_attention` has them, its result o and its
log-sum-exp lse, which are taken as they are given::

    p_j = min(exp(s_j - lse), 1)                             0 where the key is not visible, or the row sees none
    ds_j = p_j * (dout . v_j - dout . o + dlse)              0 where p_j is 0
    dx_j = scale * ds_j * (1 - tanh(scale * q . k_j / softcap) ** 2)
    dq = sum_j dx_j k_j,  dk_j = sum_i dx_j q,  dv_j = sum_i p_j dout       over the heads that share a key
    dbias = sum ds_j,  dalibi_slopes = -sum ds_j |i + o - j|                over what shares the number
    dsinks = -sum min(exp(sink - lse), 1) * (dout . o - dlse)

All is computed in float64 and returned in float64, or in the dtype ``compute``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.ops.attention.reference import visible_keys

__all__ = ["flash_attention_backward"]


@dataclass(frozen=True)
class Head:
    """The queries and keys of one head of one sequence, and what their scores are.

    Attributes
    ----------
    batch, head, kv_head, sequence : int
    rows, keys : slice
        Of the axes of queries and of keys.
    q, k, v, dout, o : numpy.ndarray
        ``[rows, D]`` and ``[keys, D]``.
    lse, delta : numpy.ndarray
        ``[rows]``.
    distance, scores, p, products, ds, dx : numpy.ndarray
        ``[rows, keys]``; the products are ``dout . v_j``.
    factor : scalar
        The scale.
    """

    batch: int
    head: int
    kv_head: int
    sequence: int
    rows: slice
    keys: slice
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray
    o: np.ndarray
    lse: np.ndarray
    delta: np.ndarray
    distance: np.ndarray
    scores: np.ndarray
    p: np.ndarray
    products: np.ndarray
    ds: np.ndarray
    dx: np.ndarray
    factor: Any


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
    compute: Any = np.float64,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """The gradients of attention; the arguments are those of `rocmkern.flash_attention_backward`.

    Parameters
    ----------
    dout, q, k, v, o, lse : numpy.ndarray
        Of any floating dtype.
    **options
        Those of `flash_attention`, and dlse.

    Returns
    -------
    tuple of numpy.ndarray
        float64, of the shapes of q, k, v, bias, sinks and alibi_slopes; the last three where they are asked for.
    """
    order = axes_of(options)
    dq, dk, dv = (np.zeros(order(x).shape, compute) for x in (q, k, v))
    bias, slopes = options.get("bias"), options.get("alibi_slopes")
    # Of a bias with 4 axes that is not repeated; `_shared` adds up.
    dbias = np.zeros((*order(q).shape[:3], order(k).shape[2]), compute) if return_dbias else None
    dsinks = np.zeros(order(q).shape[1], compute)
    dslopes: dict[tuple[int, int], Any] = {}
    with np.errstate(all="ignore"):
        for h in heads(dout, q, k, v, o, lse, compute=compute, **options):
            seen = h.p != 0
            dq[h.batch, h.head, h.rows] += products(h.dx, h.k, seen) * h.factor
            dk[h.batch, h.kv_head, h.keys] += products(h.dx.T, h.q, seen.T) * h.factor
            dv[h.batch, h.kv_head, h.keys] += products(h.p.T, h.dout, seen.T)
            if dbias is not None:
                dbias[h.batch, h.head, h.rows, h.keys] += h.ds
            if sinks is not None:
                weight = np.where(h.lse == -np.inf, compute(0), np.exp(np.minimum(compute(sinks[h.head]) - h.lse, 0)))
                dsinks[h.head] -= np.where(weight == 0, compute(0), weight * h.delta).sum()
            dslopes[h.sequence, h.head] = -(h.ds * np.abs(h.distance)).sum()
    results = [order(dq, back=True), order(dk, back=True), order(dv, back=True)]
    if dbias is not None and bias is not None:
        results.append(shared(dbias, bias.shape))
    if return_dsinks:
        results.append(dsinks)
    if return_dalibi_slopes and slopes is not None:
        results.append(slope_sums(dslopes, slopes.shape, compute))
    return tuple(results)


def products(weights: np.ndarray, values: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """``weights @ values``; values that are not seen are never multiplied."""
    usual = np.isfinite(values).all(axis=1)
    out = weights @ np.where(usual[:, None], values, values.dtype.type(0))
    for j in np.flatnonzero(~usual):
        out += np.where(seen[:, j, None], weights[:, j, None] * values[j], values.dtype.type(0))
    return out


def shared(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sums of a full array over what an array of a shape is repeated for, in that shape."""
    full = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, length in enumerate(full) if length == 1)
    sums: np.ndarray = x.sum(axis=axes, keepdims=True)
    return sums.reshape(shape)


def slope_sums(of_heads: dict[tuple[int, int], Any], shape: tuple[int, ...], compute: Any) -> np.ndarray:
    """Numbers by sequence and head as slopes ``[sequences, H]`` or, added up, ``[H]``."""
    sums = np.zeros(shape, compute)
    for (sequence, head), number in of_heads.items():
        sums[(sequence, head)[-len(shape) :]] += number
    return sums


def axes_of(options: dict[str, Any]) -> Any:
    """The change from the axes of queries, keys and values to ``[B, H, S, D]``, and back."""
    packed, swapped = options.get("cu_seqlens_q") is not None, options.get("layout") == "bshd"

    def order(x: np.ndarray, back: bool = False) -> np.ndarray:
        if packed:
            return x[0].swapaxes(0, 1) if back else x.swapaxes(0, 1)[None]
        return x.swapaxes(1, 2) if swapped else x

    return order


def heads(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    *,
    dlse: np.ndarray | None = None,
    layout: str = "bhsd",
    cu_seqlens_q: np.ndarray | None = None,
    cu_seqlens_k: np.ndarray | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqlens_k: np.ndarray | None = None,
    leftpad_k: np.ndarray | None = None,
    alibi_slopes: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    compute: Any = np.float64,
    **options: Any,
) -> Iterator[Head]:
    """Every head of every sequence."""
    order = axes_of({"layout": layout, "cu_seqlens_q": cu_seqlens_q})
    dout, q, k, v, o = (order(x) for x in (dout, q, k, v, o))
    lse = lse[None] if lse.ndim == 2 else lse
    dlse = dlse[None] if dlse is not None and dlse.ndim == 2 else dlse
    batch, heads_q, sq, _ = q.shape
    sk, group = k.shape[2], heads_q // k.shape[1]
    full = (batch, heads_q, sq, sk)
    bias = None if bias is None else np.broadcast_to(bias, full)
    mask = None if mask is None else np.broadcast_to(mask, full)
    packed = cu_seqlens_q is not None and cu_seqlens_k is not None
    count = len(cu_seqlens_q) - 1 if packed else batch  # type: ignore[arg-type]
    slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (count, heads_q))
    for n in range(count):
        if packed:
            b, rows, keys = 0, slice(*cu_seqlens_q[n : n + 2]), slice(*cu_seqlens_k[n : n + 2])  # type: ignore[index]
        else:
            first = 0 if leftpad_k is None else int(leftpad_k[n])
            b, rows, keys = n, slice(0, sq), slice(first, sk if seqlens_k is None else int(seqlens_k[n]))
        for h in range(heads_q):
            own, shared_key = (b, h, rows), (b, h // group, keys)
            queries = [x[own].astype(compute) for x in (q, dout, o, lse)]
            queries.append(np.zeros(1, compute) if dlse is None else dlse[own].astype(compute))
            yield _head(
                (b, h, h // group, n, rows, keys),
                queries,
                [x[shared_key].astype(compute) for x in (k, v)],
                compute,
                slope=None if slopes is None else slopes[n, h],
                bias=None if bias is None else bias[b, h, rows, keys],
                mask=None if mask is None else mask[b, h, rows, keys],
                **options,
            )


def _head(
    place: tuple[int, int, int, int, slice, slice],
    queries: list[np.ndarray],
    keys: list[np.ndarray],
    compute: Any,
    *,
    slope: Any,
    bias: np.ndarray | None,
    mask: np.ndarray | None,
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Head:
    """One head of one sequence: q, dout, o, lse and dlse of its queries, k and v of its keys, in the compute dtype."""
    (q, dout, o, lse, dlse), (k, v) = queries, keys
    factor = compute(1.0 / math.sqrt(q.shape[1]) if scale is None else scale)
    visible, distance = visible_keys(len(q), len(k), causal, window)
    visible = visible if mask is None else visible & mask
    scores = (q @ k.T) * factor
    of_cap: Any = compute(1)
    if softcap is not None:
        ratio = np.tanh(scores / compute(softcap))
        scores, of_cap = compute(softcap) * ratio, 1 - ratio * ratio
    if slope is not None:
        scores = scores - compute(slope) * np.abs(distance).astype(compute)
    if bias is not None:
        scores = scores + bias.astype(compute)
    seen = visible & (lse != -np.inf)[:, None]
    p = np.exp(np.where(seen, np.minimum(scores - lse[:, None], 0), compute(-np.inf)))
    delta = (dout * o).sum(axis=1) - dlse
    dp = dout @ v.T
    ds = np.where(p == 0, compute(0), p * (dp - delta[:, None]))
    dx = np.where(p == 0, compute(0), ds * of_cap)
    return Head(*place, q, k, v, dout, o, lse, delta, distance, scores, p, dp, ds, dx, factor)
