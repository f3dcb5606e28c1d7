"""Attention by its formula in float64, one row of one head at a time: shares nothing with the library."""

from __future__ import annotations

import numpy as np


def attention(q, k, v, *, causal=False, window=(-1, -1), scale=None, softcap=0.0, slopes=None):
    """Rows ``[Sq, H, D]`` over keys ``[Sk, Hkv, D]``, aligned at the bottom right: out, and lse ``[H, Sq]``."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    sq, heads, dim = q.shape
    sk, group = len(k), heads // k.shape[1]
    out, lse = np.zeros((sq, heads, v.shape[2])), np.full((heads, sq), -np.inf)
    for h in range(heads):
        for i in range(sq):
            diagonal = i + sk - sq
            first = max(0, diagonal - window[0]) if window[0] >= 0 else 0
            last = min(sk - 1, diagonal + window[1]) if window[1] >= 0 else sk - 1
            if causal:
                last = min(last, diagonal)
            if last < first:
                continue
            j = np.arange(first, last + 1)
            s = k[j, h // group] @ q[i, h] * (dim**-0.5 if scale is None else scale)
            if softcap > 0:
                s = softcap * np.tanh(s / softcap)
            if slopes is not None:
                s = s - slopes[h] * np.abs(diagonal - j)
            top = s.max()
            weights = np.exp(s - top)
            out[i, h], lse[h, i] = weights @ v[j, h // group] / weights.sum(), top + np.log(weights.sum())
    return out, lse


def rotated(x, positions, cos, sin, interleaved):
    """Rows ``[S, H, D]``, each rotated by the row of the tables at its position."""
    x, cos, sin = (np.array(a, np.float64) for a in (x, cos, sin))
    pairs = cos.shape[1]
    for s, p in enumerate(positions):
        for i in range(pairs):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
            turned = (x[s, :, a] + 1j * x[s, :, b]) * complex(cos[p, i], sin[p, i])
            x[s, :, a], x[s, :, b] = turned.real, turned.imag
    return x
