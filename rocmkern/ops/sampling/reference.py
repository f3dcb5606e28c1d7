"""Sampling, in float64: the support by sorting, the token by a cumulative sum."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["sample"]

_WORD = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words: Philox4x32-10 (Salmon et al., 2011, section 3.3)."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        high0, low0 = divmod(c[0] * 0xD2511F53, 1 << 32)
        high1, low1 = divmod(c[2] * 0xCD9E8D57, 1 << 32)
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return c[0], c[1], c[2], c[3]


def uniform(seed: int, offset: int) -> float:
    """The number in [0, 1) that decides a row: 53 bits of the first two words."""
    words = philox((offset & _WORD, offset >> 32, 0, 0), (seed & _WORD, seed >> 32))
    return ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53


def probabilities(logits: Any, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None) -> Any:
    """The distribution ``[B, V]`` that each row is drawn from; 0 for tokens that top-k and top-p leave out."""
    x = np.asarray(logits, np.float64)
    each = (_each(value, len(x)) for value in (temperature, top_k, top_p))
    rows = [_distribution(row, *numbers) for row, *numbers in zip(x, *each, strict=True)]
    return np.array(rows, np.float64).reshape(x.shape)


def sample(
    logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, seed: Any, offset: Any = 0
) -> Any:
    """Token of each row, int32 ``[B]``: the first at which the running sum of probabilities passes the row's number.

    Every number may be an array of one for each row. Logits that are no distribution are a `ValueError`.
    """
    p = probabilities(logits, temperature, top_k, top_p)
    tokens = []
    for weights, key, counter in zip(p, _each(seed, len(p)), _each(offset, len(p)), strict=True):
        running = np.cumsum(weights)
        tokens.append(np.argmax(running > uniform(key, counter) * running[-1]))
    return np.array(tokens, np.int32)


def _each(value: Any, rows: int) -> list[Any]:
    """One number for each row, as Python has it."""
    if isinstance(value, np.ndarray):
        numbers: list[Any] = value.tolist()
        return numbers
    return [value.item() if isinstance(value, np.generic) else value] * rows


def _distribution(x: Any, temperature: float, top_k: int | None, top_p: float | None) -> Any:
    """Of one row."""
    if np.isnan(x).any() or not np.isfinite(x.max()):
        raise ValueError("logits with NaN, plus infinity, or nothing but minus infinity")
    if temperature == 0:
        return np.eye(1, len(x), x.argmax())[0]
    weight = np.exp((x - x.max()) / temperature)
    order = np.argsort(-x, kind="stable")
    if top_k is not None and top_k < len(x):
        weight[x < x[order[top_k - 1]]] = 0
    if top_p is not None and top_p < 1:
        # float32, as the kernel receives it.
        enough = np.cumsum(weight[order]) >= float(np.float32(top_p)) * weight.sum()
        weight[x < x[order[np.argmax(enough)]]] = 0
    return weight / weight.sum()
