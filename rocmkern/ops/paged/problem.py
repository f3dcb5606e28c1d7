"""Checks of attention over pages: queries and caches, the table of pages, and lengths."""

from __future__ import annotations

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls.arguments import FLOATS, INT32, QUANTIZED, Argument, accept
from rocmkern.calls.types import ArrayLike
from rocmkern.calls.values import look
from rocmkern.ops.attention.problem import Pages, Tensors, beside
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError


def caches(q: ArrayLike, key_cache: ArrayLike, value_cache: ArrayLike, packed: bool) -> Tensors:
    """Queries ``[tokens, Hq, D]``, or ``[n_seq, Sq, Hq, D]``, and caches ``[n_blocks, block_size, Hkv, D]``."""
    dtypes = (*FLOATS, *QUANTIZED)
    queries = accept("q", q)
    k, v = accept("key_cache", key_cache, dtypes), accept("value_cache", value_cache, dtypes)
    layout = "packed" if packed else "bshd" if len(queries.shape) == 4 else "tokens"
    _checks.rank(queries, "n_seq Sq Hq D" if layout == "bshd" else "tokens Hq D")
    _checks.rank(k, "n_blocks block_size Hkv D")
    _checks.rank(v, "n_blocks block_size Hkv Dv")
    if k.dtype not in (queries.dtype, *QUANTIZED):
        raise ArgumentTypeError("key_cache", f"dtype {k.dtype}", f"{queries.dtype}, the dtype of q, or one of 8 bits")
    _arguments.same_dtype(k, [v])
    _checks.head_dim(queries)
    _checks.head_dim(v)
    _checks.extent(k, -1, queries.shape[-1], "the head dimension of q")
    _checks.grouped_heads(k, k.shape[2], queries.shape[-2])
    for axis, meaning in ((0, "the number of blocks"), (1, "the block size"), (2, "the heads")):
        _checks.extent(v, axis, k.shape[axis], f"{meaning} of key_cache")
    if k.shape[1] == 0:
        raise ArgumentError("key_cache", "block size 0", "a block size of at least 1")
    _arguments.same_place(queries, [k, v])
    return Tensors(queries, k, v, layout, "bshd")


def pages(
    tensors: Tensors,
    sequences: int,
    block_table: ArrayLike,
    context_lens: ArrayLike,
    max_context_len: int | None,
    key_scale: ArrayLike | None,
    value_scale: ArrayLike | None,
) -> Pages:
    """The pages of so many sequences. What lies in host memory is checked."""
    q, k = tensors.q, tensors.k
    table = beside(q, accept("block_table", block_table, INT32))
    lens = beside(q, accept("context_lens", context_lens, INT32))
    longest = _check_table(table, lens, k, sequences, max_context_len)
    scales = _checks.cache_scale("key_scale", key_scale, k), _checks.cache_scale("value_scale", value_scale, k)
    _arguments.same_place(q, scales)
    return Pages(table, lens, *scales, longest)


def _check_table(table: Argument, lens: Argument, k: Argument, sequences: int, longest: int | None) -> int:
    """A bound of the lengths."""
    _checks.same_shape(lens, (sequences,), "one for each sequence")
    if len(table.shape) != 2 or table.shape[0] != sequences:
        raise ArgumentError("block_table", f"shape {table.shape}", f"shape ({sequences}, max_blocks)")
    n_blocks, block_size = k.shape[:2]
    room = table.shape[1] * block_size
    if lens.on_device:
        return room if longest is None else min(_checks.integer("max_context_len", longest, 0), room)
    entries = table.shape[1]

    def longest_of(numbers: np.ndarray) -> int:
        most = int(numbers.max(initial=0))
        if sequences and numbers.min() < 0:
            given = f"{numbers.min()} for sequence {numbers.argmin()}"
            raise ArgumentError("context_lens", given, "numbers of at least 0")
        if most > room:
            given = f"{entries} blocks for the {most} tokens of sequence {numbers.argmax()}"
            raise ArgumentError("block_table", given, f"at least {-(-most // block_size)} blocks of {block_size}")
        return most if longest is None else min(_checks.integer("max_context_len", longest, most), room)

    def check_entries(numbers: np.ndarray, blocks: np.ndarray) -> None:
        unknown = (blocks < 0) | (blocks >= n_blocks)
        if not unknown.any():
            return
        wrong = unknown & (np.arange(entries) < -(-numbers[:, None] // block_size))
        if wrong.any():
            n, entry = (int(i) for i in np.argwhere(wrong)[0])
            given = f"block {blocks[n, entry]} at [{n}, {entry}]"
            raise ArgumentError("block_table", given, f"blocks from 0 to {n_blocks - 1}")

    bound: int = look(longest_of, lens.view)
    if not table.on_device:
        look(check_entries, lens.view, table.view)
    return bound
