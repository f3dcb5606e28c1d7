"""Attention in plain NumPy: the meaning of `rocmkern.flash_attention` and its relatives.

One query row i of one head, with keys j, in this order::

    s_j = scale * q_i . k_j
    s_j = softcap * tanh(s_j / softcap)                      if a cap is given
    s_j = s_j - slope * |i + o - j| + bias_ij                o: offset of the alignment
    s_j = -inf                                               where key j is not visible to row i
    lse = log(sum_j exp(s_j) + exp(sink))                    the sink only where one is given
    out = sum_j exp(s_j - lse) * v_j                         over visible keys

A row whose scores are all minus infinity gives 0; its lse is minus infinity, or the sink where there is one. A key that
is not visible, or whose score is minus infinity (by its bias, say), has no weight, and its value is not looked at.
Other non-finite values follow the arithmetic: a visible NaN makes the row NaN. Kernels agree but for an infinite or NaN
value of a visible key whose weight is 0 for them, because the product itself is minus infinity or because so small a
weight is rounded to 0: there the result is NaN or as if the key was not there.

All is computed in float64 and returned in float64, or in the dtype ``compute``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["decode_attention", "flash_attention", "merge_attention"]

# Rows of scores computed at a time hold about this many elements, so that long sequences fit in memory.
_BLOCK_ELEMENTS = 1 << 22


def flash_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    layout: str = "bhsd",
    cu_seqlens_q: np.ndarray | None = None,
    cu_seqlens_k: np.ndarray | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqlens_k: np.ndarray | None = None,
    leftpad_k: np.ndarray | None = None,
    return_lse: bool = False,
    compute: Any = np.float64,
    **options: Any,
) -> Any:
    """Attention; the arguments are those of `rocmkern.flash_attention`.

    Parameters
    ----------
    q, k, v : numpy.ndarray
        ``[B, H, S, D]``, ``[B, S, H, D]`` or packed ``[total, H, D]``, of any floating dtype.
    max_seqlen_q, max_seqlen_k : int, optional
        Without effect on the result; taken so that a call can be passed on unchanged.
    seqlens_k, leftpad_k : numpy.ndarray, optional
        ``[B]``: the keys of a batch element are those from ``leftpad_k[n]`` to ``seqlens_k[n]``.
    **options
        causal, window, scale, softcap, alibi_slopes, bias, mask, sinks.

    Returns
    -------
    out : numpy.ndarray
        float64, of the shape of q with the head dimension of v.
    lse : numpy.ndarray
        float64 ``[B, Hq, Sq]`` or ``[Hq, total_q]``; only with ``return_lse=True``.
    """
    if seqlens_k is not None or leftpad_k is not None:
        out, lse = _padded(q, k, v, layout, seqlens_k, leftpad_k, compute, **options)
    elif cu_seqlens_q is None or cu_seqlens_k is None:
        out, lse = dense(q, k, v, layout, compute, **options)
    else:
        out, lse = _packed(q, k, v, cu_seqlens_q, cu_seqlens_k, compute, **options)
    return (out, lse) if return_lse else out


def decode_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, num_splits: int | None = None, **options: Any
) -> Any:
    """`flash_attention`; how the keys are split (`num_splits`) does not change what is computed."""
    return flash_attention(q, k, v, **options)


def merge_attention(
    o1: np.ndarray,
    lse1: np.ndarray,
    o2: np.ndarray,
    lse2: np.ndarray,
    *,
    layout: str = "bhsd",
    compute: Any = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Attention over the union of two disjoint sets of keys, from the results over each.

    Parameters
    ----------
    o1, o2 : numpy.ndarray
        ``[B, H, S, D]``, ``[B, S, H, D]`` or packed ``[total, H, D]``.
    lse1, lse2 : numpy.ndarray
        ``[B, H, S]`` or ``[H, total]``.
    layout : {"bhsd", "bshd"}
        Of four-dimensional `o1` and `o2`.

    Returns
    -------
    out, lse : numpy.ndarray
        float64, shaped like `o1` and `lse1`.
    """
    rows_first = o1.ndim == 3 or layout == "bshd"

    def of_rows(x: np.ndarray) -> np.ndarray:
        return (np.swapaxes(x, -1, -2) if rows_first else x)[..., None]

    with np.errstate(all="ignore"):
        lses = np.stack([lse1.astype(compute), lse2.astype(compute)], axis=-1)
        weights, total, top = exponentials(lses)
        lse = top + np.log(total)
        weights = weights / np.where(total == 0, compute(1), total)[..., None]
        out = compute(0)
        for i, o in enumerate((o1, o2)):
            # A part that saw no key has weight 0 and is not read: 0 * NaN would be NaN.
            empty = of_rows(lses[..., i] == -np.inf)
            out = out + np.where(empty, compute(0), of_rows(weights[..., i]) * o.astype(compute))
    return out, lse


def visible_keys(
    sq: int, sk: int, causal: bool | str, window: tuple[int | None, int | None] | None, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Which keys a query sees, from the causal alignment and the window alone.

    Parameters
    ----------
    sq, sk : int
        Number of queries and of keys.
    causal : {False, True, "bottom_right", "top_left"}
    window : tuple of (int or None), or None
        Keys to the left and to the right of the diagonal key.
    rows : numpy.ndarray, optional
        Query indices to compute; all by default.

    Returns
    -------
    visible : numpy.ndarray
        bool ``[rows, sk]``.
    distance : numpy.ndarray
        int64 ``[rows, sk]``, ``i + o - j``: how far key j lies left of the diagonal of row i.
    """
    rows = np.arange(sq) if rows is None else rows
    offset = 0 if causal == "top_left" else sk - sq
    distance = rows[:, None] + offset - np.arange(sk)[None, :]
    left, right = window if window is not None else (None, None)
    visible = np.ones(distance.shape, bool)
    if left is not None:
        visible &= distance <= left
    if right is not None:
        visible &= distance >= -right
    if causal:
        visible &= distance >= 0
    return visible, distance


def dense(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    layout: str,
    compute: Any,
    *,
    alibi_slopes: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """All heads of a batch: the result in the given layout, and its log-sum-exp."""
    if layout == "bshd":
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    batch, heads_q, sq, _ = q.shape
    heads_kv, sk, dv = k.shape[1], k.shape[2], v.shape[3]
    full = (batch, heads_q, sq, sk)
    bias = None if bias is None else np.broadcast_to(bias, full)
    mask = None if mask is None else np.broadcast_to(mask, full)
    slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (batch, heads_q))
    out = np.zeros((batch, heads_q, sq, dv), compute)
    lse = np.zeros((batch, heads_q, sq), compute)
    for b in range(batch):
        for h in range(heads_q):
            h_kv = h // (heads_q // heads_kv)
            out[b, h], lse[b, h] = _one_head(
                q[b, h].astype(compute),
                k[b, h_kv].astype(compute),
                v[b, h_kv].astype(compute),
                compute,
                slope=None if slopes is None else slopes[b, h],
                bias=None if bias is None else bias[b, h],
                mask=None if mask is None else mask[b, h],
                sink=None if sinks is None else sinks[h],
                **options,
            )
    return (out.transpose(0, 2, 1, 3) if layout == "bshd" else out), lse


def _packed(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cu_seqlens_q: np.ndarray,
    cu_seqlens_k: np.ndarray,
    compute: Any,
    *,
    alibi_slopes: np.ndarray | None = None,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Sequence after sequence of a packed batch: the result ``[total, H, Dv]``, and its lse ``[H, total]``."""
    heads_q = q.shape[1]
    out = np.zeros((*q.shape[:2], v.shape[2]), compute)
    lse = np.zeros((heads_q, q.shape[0]), compute)
    count = len(cu_seqlens_q) - 1
    slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (count, heads_q))
    for n in range(count):
        of_q = slice(int(cu_seqlens_q[n]), int(cu_seqlens_q[n + 1]))
        of_k = slice(int(cu_seqlens_k[n]), int(cu_seqlens_k[n + 1]))
        some = None if slopes is None else slopes[n]
        o, l = dense(q[of_q][None], k[of_k][None], v[of_k][None], "bshd", compute, alibi_slopes=some, **options)
        out[of_q], lse[:, of_q] = o[0], l[0]
    return out, lse


def _padded(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    layout: str,
    seqlens_k: np.ndarray | None,
    leftpad_k: np.ndarray | None,
    compute: Any,
    *,
    alibi_slopes: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Batch element after batch element, each with its own keys and their columns of bias and mask."""
    rows = 2 if layout == "bhsd" else 1
    batch, heads, sq, sk = len(q), q.shape[3 - rows], q.shape[rows], k.shape[rows]
    full = (batch, heads, sq, sk)
    slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (batch, heads))
    columns = {name: np.broadcast_to(x, full) for name, x in (("bias", bias), ("mask", mask)) if x is not None}
    out, lse = np.zeros((*q.shape[:-1], v.shape[-1]), compute), np.zeros((batch, heads, sq), compute)
    for n in range(batch):
        first, last = 0 if leftpad_k is None else int(leftpad_k[n]), sk if seqlens_k is None else int(seqlens_k[n])
        own = (slice(n, n + 1), *([slice(None)] * (rows - 1)), slice(first, last))
        some: dict[str, Any] = {name: x[n : n + 1, ..., first:last] for name, x in columns.items()}
        some["alibi_slopes"] = None if slopes is None else slopes[n : n + 1]
        o, l = dense(q[n : n + 1], k[own], v[own], layout, compute, **some, **options)
        out[n], lse[n] = o[0], l[0]
    return out, lse


def _one_head(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    compute: Any,
    *,
    slope: Any,
    bias: np.ndarray | None,
    mask: np.ndarray | None,
    sink: Any,
    causal: bool | str = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """One head, some rows at a time: q ``[Sq, D]``, k ``[Sk, D]``, v ``[Sk, Dv]`` in the compute dtype."""
    sq, sk = len(q), len(k)
    out = np.zeros((sq, v.shape[1]), compute)
    lse = np.zeros(sq, compute)
    factor = compute(1.0 / math.sqrt(q.shape[1]) if scale is None else scale)
    sink = None if sink is None else compute(sink)
    step = max(1, _BLOCK_ELEMENTS // max(sk, 1))
    for start in range(0, sq, step):
        rows = np.arange(start, min(start + step, sq))
        visible, distance = visible_keys(sq, sk, causal, window, rows)
        with np.errstate(all="ignore"):  # masked places may hold anything; what is visible is kept as it comes
            scores = (q[rows] @ k.T) * factor
            if softcap is not None:
                cap = compute(softcap)
                scores = cap * np.tanh(scores / cap)
            if slope is not None:
                scores = scores - compute(slope) * np.abs(distance).astype(compute)
            if bias is not None:
                scores = scores + bias[rows].astype(compute)
            if mask is not None:
                visible &= mask[rows]
            scores = np.where(visible, scores, compute(-np.inf))
            out[rows], lse[rows] = _softmax_times_values(scores, v, sink, compute)
    return out, lse


def _softmax_times_values(
    scores: np.ndarray, v: np.ndarray, sink: float | None, compute: Any
) -> tuple[np.ndarray, np.ndarray]:
    """``softmax(scores) @ v`` and the log of the softmax's denominator; values without weight are never multiplied."""
    weights, total, top = exponentials(scores, sink)
    usual = np.isfinite(v).all(axis=1)
    out = weights @ np.where(usual[:, None], v, compute(0))
    for j in np.flatnonzero(~usual):
        out += np.where((scores[:, j] != -np.inf)[:, None], weights[:, j, None] * v[j], compute(0))
    nothing = total == 0
    out = np.where(nothing[:, None], compute(0), out / np.where(nothing, compute(1), total)[:, None])
    return out, top + np.log(total)


def exponentials(scores: np.ndarray, sink: float | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``exp(scores - top)`` of each row with the row's sum and top, safe for rows of minus infinity.

    Parameters
    ----------
    scores : numpy.ndarray
        ``[..., n]``.
    sink : scalar, optional
        One more logit, counted in the sum only.

    Returns
    -------
    weights : numpy.ndarray
        ``[..., n]``.
    total, top : numpy.ndarray
        ``[...]``; ``total == 0`` says that the row is empty, and `top` is then 0.
    """
    top = scores.max(axis=-1, initial=-np.inf)
    if sink is not None:
        top = np.maximum(top, sink)
    # Subtracting minus infinity from itself would be NaN; a row of nothing else is empty, not undefined.
    top = np.where(top == -np.inf, scores.dtype.type(0), top)
    weights = np.exp(scores - top[..., None])
    total = weights.sum(axis=-1)
    if sink is not None:
        total = total + np.exp(sink - top)
    return weights, total, top
