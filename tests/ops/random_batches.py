"""Random batches within `rocmkern.batch_invariant`: every row must be the bits that it is in its sequence or matrix.

    python tests/ops/random_batches.py --count 1000 --seed 0                  # this machine's CPU
    python tests/ops/random_batches.py --count 1000 --seed 0 --target cuda    # a card

A batch of attention is made of pieces of some sequences, as a server makes it: parts of prompts and single tokens,
dense, packed or in pages. What must come out are rows of the sequences, each computed alone and as a whole by
`flash_attention`. A batch of another operation is some rows of a matrix, in any order and number, some of them more
than once; what must come out are rows of the result of the whole matrix.

A batch is a function of the seed and its number. One that differs is printed with both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import rocmkern

DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class Random(np.random.Generator):
    """The random numbers of a batch."""

    def __init__(self, seed: int, number: int):
        super().__init__(np.random.PCG64([seed, number]))

    def one_of(self, *values: Any) -> Any:
        """One of some values."""
        return values[self.integers(len(values))]

    def size(self, most: int) -> int:
        """A number from 1 to ``most``, small ones more often."""
        return int(most ** self.random()) if most > 1 else 1

    def normal_of(self, shape: tuple[int, ...], dtype: Any = np.float32, size: float = 1.0) -> np.ndarray:
        """Normal deviates, in one of some layouts of memory."""
        x = (size * self.standard_normal(shape, np.float32)).astype(dtype)
        return self.laid_out(x)

    def laid_out(self, x: np.ndarray) -> np.ndarray:
        """The same numbers: contiguous, at an odd address, or with gaps between the rows."""
        kind = self.integers(3)
        if kind == 0 or x.ndim == 0:
            return np.ascontiguousarray(x)
        gap = 1 if kind == 1 else 5
        room = np.zeros((*x.shape[:-1], x.shape[-1] + gap), x.dtype)
        room[..., gap:] = x
        return room[..., gap:]


class Difference(AssertionError):
    """A row of a batch is not the same bits as alone."""


def same(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Raise `Difference` where two arrays have different bits."""
    assert got.shape == expected.shape and got.dtype == expected.dtype, f"{what}: {got.shape}, not {expected.shape}"
    bits = f"u{got.itemsize}"
    differ = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(expected).view(bits)
    if differ.any():
        first = tuple(int(i) for i in np.argwhere(differ)[0])
        raise Difference(f"{what}: {differ.sum()} of {differ.size} elements differ, the first at {first}")


# ------------------------------------------------------------------------------------------------------- attention


@dataclass
class Sequence:
    """A sequence ``[tokens, heads, dim]``, and what attention over it gives: ``out`` and, by head, ``lse``."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    out: np.ndarray
    lse: np.ndarray


@dataclass
class Piece:
    """Queries ``first .. last`` of a sequence, which see the keys before ``last``."""

    of: Sequence
    first: int
    last: int

    @property
    def q(self) -> np.ndarray:
        return self.of.q[self.first : self.last]

    def check(self, out: np.ndarray, lse: np.ndarray, what: str) -> None:
        """``[queries, heads, dim]`` and ``[heads, queries]`` are rows of the sequence."""
        rows = slice(self.first, self.last)
        what = f"{what}, queries {self.first} to {self.last} of {len(self.of.q)}"
        same(out, self.of.out[rows], what)
        same(lse, self.of.lse[:, rows], f"{what}, lse")


def attention_batch(random: Random, dtype: np.dtype, most: int) -> None:
    """Pieces of sequences of up to ``most`` tokens, by each of the ways."""
    kv_heads, group = random.one_of((1, 1), (2, 1), (1, 4), (2, 3), (1, 8))
    heads, dim, value_dim = kv_heads * group, *random.one_of((64, 64), (40, 24), (128, 128))
    options: dict[str, Any] = {}
    if random.random() < 0.4:
        options["window"] = (int(random.integers(0, 150)), 0)
    if random.random() < 0.3:
        options["sinks"] = random.standard_normal(heads, np.float32)
    if random.random() < 0.2:
        options["softcap"] = 20.0
    if random.random() < 0.2:
        options["alibi_slopes"] = random.uniform(0.25, 1, heads).astype(np.float32)
    # Large products let running maxima grow, which is what a block of rows must not have in common.
    loud = random.one_of(1.0, 8.0)
    sequences = []
    for _ in range(random.integers(1, 6)):
        tokens = random.size(most)
        q = random.normal_of((tokens, heads, dim), dtype, loud)
        k, v = (random.normal_of((tokens, kv_heads, n), dtype) for n in (dim, value_dim))
        whole = (x.swapaxes(0, 1)[None] for x in (q, k, v))
        out, lse = rocmkern.flash_attention(*whole, causal=True, return_lse=True, **options)
        sequences.append(Sequence(q, k, v, out[0].swapaxes(0, 1), lse[0]))

    def piece(of: Sequence) -> Piece:
        last = int(random.integers(1, len(of.q) + 1))
        return Piece(of, last - random.one_of(1, min(last, random.size(last))), last)

    chosen = [piece(sequences[i]) for i in random.integers(0, len(sequences), random.integers(1, 8))]
    options |= {"return_lse": True}
    random.one_of(packed, paged, paged_tokens, dense, padded)(random, chosen, options)


def offsets(lengths: list[int]) -> np.ndarray:
    """Where packed sequences begin and end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def check_packed(pieces: list[Piece], out: np.ndarray, lse: np.ndarray, what: str) -> None:
    """Rows of pieces, one behind the other."""
    for of, start in zip(pieces, offsets([len(p.q) for p in pieces])[:-1], strict=True):
        rows = slice(start, start + len(of.q))
        of.check(out[rows], lse[:, rows], what)


def packed(random: Random, pieces: list[Piece], options: dict[str, Any]) -> None:
    """`flash_attention` of pieces, one behind the other."""
    q = np.concatenate([p.q for p in pieces])
    k, v = (np.concatenate([getattr(p.of, name)[: p.last] for p in pieces]) for name in ("k", "v"))
    lengths = offsets([len(p.q) for p in pieces]), offsets([p.last for p in pieces])
    cumulative = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), lengths, strict=True))
    out, lse = rocmkern.flash_attention(*map(random.laid_out, (q, k, v)), causal=True, **cumulative, **options)
    check_packed(pieces, out, lse, "packed")


def cache_of(random: Random, pieces: list[Piece], size: int) -> tuple[np.ndarray, ...]:
    """Keys and values in pages in random order, among pages of NaN, and the table."""
    counts = [-(-p.last // size) for p in pieces]
    order = random.permutation(sum(counts) + 3)
    table = np.full((len(pieces), max(counts)), -1, np.int32)
    caches = []
    for which in ("k", "v"):
        like = getattr(pieces[0].of, which)
        cache = np.full((len(order), size, *like.shape[1:]), np.nan, like.dtype)
        for n, piece in enumerate(pieces):
            start = sum(counts[:n])
            table[n, : counts[n]] = order[start : start + counts[n]]
            token = np.arange(piece.last)
            cache[table[n, token // size], token % size] = getattr(piece.of, which)[: piece.last]
        caches.append(cache)
    return *caches, table, np.array([p.last for p in pieces], np.int32)


def paged(random: Random, pieces: list[Piece], options: dict[str, Any]) -> None:
    """`paged_attention` of pieces."""
    where = cache_of(random, pieces, random.one_of(1, 7, 16, 64, 256))
    q, lengths = np.concatenate([p.q for p in pieces]), offsets([len(p.q) for p in pieces])
    out, lse = rocmkern.paged_attention(q, *where, cu_seqlens_q=lengths, **options)
    check_packed(pieces, out, lse, "paged")


def paged_tokens(random: Random, pieces: list[Piece], options: dict[str, Any]) -> None:
    """`paged_attention` of the last query of each piece."""
    pieces = [Piece(p.of, p.last - 1, p.last) for p in pieces]
    where = cache_of(random, pieces, random.one_of(1, 7, 16, 64, 256))
    out, lse = rocmkern.paged_attention(np.concatenate([p.q for p in pieces]), *where, **options)
    check_packed(pieces, out, lse, "paged, single queries")


def dense(random: Random, pieces: list[Piece], options: dict[str, Any]) -> None:
    """`flash_attention`, or `decode_attention`, of pieces with as many queries and keys."""
    first = pieces[0]
    pieces = [Piece(p.of, first.first, first.last) for p in pieces if len(p.of.q) >= first.last]
    layout = random.one_of("bhsd", "bshd")
    q, k, v = (
        np.stack([x if layout == "bshd" else x.swapaxes(0, 1) for x in xs])
        for xs in zip(*[(p.q, p.of.k[: p.last], p.of.v[: p.last]) for p in pieces], strict=True)
    )
    function = rocmkern.flash_attention
    if len(first.q) == 1 and random.random() < 0.7:
        function = rocmkern.decode_attention
    out, lse = function(*map(random.laid_out, (q, k, v)), causal=True, layout=layout, **options)
    for piece, rows, of_heads in zip(pieces, out, lse, strict=True):
        piece.check(rows if layout == "bshd" else rows.swapaxes(0, 1), of_heads, function.__name__)


def padded(random: Random, pieces: list[Piece], options: dict[str, Any]) -> None:
    """`flash_attention` of as many queries of each piece, with keys that are padded with NaN on both sides."""
    count = min(len(p.q) for p in pieces)
    pieces = [Piece(p.of, p.last - count, p.last) for p in pieces]
    before = random.integers(0, 70, len(pieces)) * random.one_of(0, 1)
    ends = (before + [p.last for p in pieces]).astype(np.int32)
    room, keys = int(ends.max() + random.integers(0, 70)), []
    for name in ("k", "v"):
        like = getattr(pieces[0].of, name)
        x = np.full((len(pieces), like.shape[1], room, like.shape[2]), np.nan, like.dtype)
        for rows, piece, first, end in zip(x, pieces, before, ends, strict=True):
            rows[:, first:end] = getattr(piece.of, name)[: piece.last].swapaxes(0, 1)
        keys.append(x)
    lengths = {"seqlens_k": ends, "leftpad_k": before.astype(np.int32)}
    q = np.stack([p.q.swapaxes(0, 1) for p in pieces])
    out, lse = rocmkern.flash_attention(q, *keys, causal=True, **lengths, **options)
    for piece, rows, of_heads in zip(pieces, out, lse, strict=True):
        piece.check(rows.swapaxes(0, 1), of_heads, "padded")


# --------------------------------------------------------------------------------------------------------- matrices


def rows_of(random: Random, name: str, function: Callable[..., Any], arrays: tuple[np.ndarray, ...], most: int) -> None:
    """Some rows of arrays ``[rows, ...]``, in an order of their own, alone or along more than one axis."""
    whole = function(*arrays)
    count = random.size(most)
    order = random.integers(0, len(arrays[0]), count)
    lead = (count,)
    if name not in FLAT and count % 2 == 0 and random.random() < 0.3:
        lead = (2, count // 2)
    some = [random.laid_out(x[order]).reshape(*lead, *x.shape[1:]) for x in arrays]
    out = function(*some)
    for got, expected in zip(*((x if isinstance(x, tuple) else (x,)) for x in (out, whole)), strict=True):
        same(got.reshape(count, *expected.shape[1:]), expected[order], f"{name}, {lead} of {len(arrays[0])} rows")


#: Operations whose rows lie along one axis.
FLAT = ("sample", "rope", "qk_scores", "weighted_values", "dequantize")


def matrix_batch(random: Random, dtype: np.dtype, most: int) -> None:
    """Rows of one of the other operations."""
    rows, depth, columns = random.size(most), random.one_of(32, 96, 515), random.one_of(1, 33, 300)
    activation = random.one_of(None, "silu")
    normal, unit = partial(random.normal_of, dtype=dtype), depth**-0.5
    x, weight = normal((rows, depth)), normal((columns, depth), size=unit)
    scale, bias = (normal((depth,)) for _ in range(2))
    kind = random.one_of("q4_0", "q8_0")
    blocks = rocmkern.quantize(random.standard_normal((columns, 96), np.float32), kind)
    inner = [normal((n, depth), size=unit) for n in (70, 70)]
    down = normal((columns, 70), size=0.1)
    heads = normal((rows, 2, 64))
    table, indices = normal((50, depth)), random.integers(0, 50, rows)
    positions = random.integers(0, 5000, rows)
    seeds = random.integers(0, 1 << 62, rows)
    k = normal((1, 1, 130, 64))
    choices: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
        "linear": (lambda x: rocmkern.linear(x, weight, activation=activation), (x,)),
        "matmul": (lambda x: rocmkern.matmul(x, weight.T), (x,)),
        "mlp": (lambda x: rocmkern.mlp(x, *inner, down), (x,)),
        "mlp without a gate": (lambda x: rocmkern.mlp(x, None, inner[0], down, activation="relu"), (x,)),
        "quantized_linear": (lambda x: rocmkern.quantized_linear(x, blocks, kind), (normal((rows, 96)),)),
        "rms_norm": (lambda x: rocmkern.rms_norm(x, scale), (x,)),
        "rms_norm with a residual": (lambda x, y: rocmkern.rms_norm(x, scale, residual=y), (x, normal(x.shape))),
        "layer_norm": (lambda x: rocmkern.layer_norm(x, scale, bias), (x,)),
        "softmax": (rocmkern.softmax, (x,)),
        "swiglu": (rocmkern.swiglu, (x, normal(x.shape))),
        "geglu": (rocmkern.geglu, (x, normal(x.shape))),
        "add_residual": (rocmkern.add_residual, (x, normal(x.shape))),
        "scale": (lambda x: rocmkern.scale(x, 0.3), (x,)),
        "clamp": (lambda x: rocmkern.clamp(x, -0.5, 0.5), (x,)),
        "embedding": (lambda i: rocmkern.embedding(table, i), (indices,)),
        "rope": (rocmkern.rope, (heads, positions)),
        "sample": (lambda x, s: rocmkern.sample(x, seed=s, top_p=0.9, temperature=0.7), (x, seeds)),
        "qk_scores": (lambda q: rocmkern.qk_scores(q[None, None], k)[0, 0], (normal((rows, 64)),)),
        "weighted_values": (lambda p: rocmkern.weighted_values(p[None, None], k)[0, 0], (normal((rows, 130)),)),
        "dequantize": (lambda b: rocmkern.dequantize(b, kind), (blocks,)),
    }
    name = random.one_of(*choices)
    rows_of(random, name, *choices[name], most)


def batch(seed: int, number: int, most: int = 400, dtypes: tuple[np.dtype, ...] = DTYPES) -> None:
    """Make batch ``number`` of a seed on the target that is chosen and check it; ``most`` tokens or rows at most."""
    random = Random(seed, number)
    make = random.one_of(attention_batch, matrix_batch)
    with rocmkern.batch_invariant():
        make(random, random.one_of(*dtypes), most)


def differences(seed: int, count: int, most: int) -> Iterator[str]:
    """What differs in batches 0 to ``count`` of a seed."""
    for number in range(count):
        try:
            batch(seed, number, most)
        except Difference as difference:
            yield f"seed {seed}, batch {number}: {difference}"


def main() -> int:
    """Run batches; 1 where a row differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="batches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=400, help="tokens of a sequence, rows of a matrix, at most")
    parser.add_argument("--target", choices=("hip", "cuda", "cpu", "python"), help="default: the automatic choice")
    given = parser.parse_args()
    rocmkern.use(given.target)
    failed = 0
    for line in differences(given.seed, given.count, given.most):
        failed += 1
        print(line, flush=True)
    print(f"{given.count} batches, seed {given.seed}, {rocmkern.target()}: {failed} with rows that differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
