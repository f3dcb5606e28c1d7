"""Checks of attention over pages: queries and caches, the table of pages, and lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls.arguments import FLOATS, QUANTIZED, Argument, accept
from rocmkern.calls.types import ArrayLike
from rocmkern.calls.values import look
from rocmkern.ops.attention.problem import Pages, Sequences, Tensors
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError


def caches(
    q: ArrayLike,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    packed: bool,
    names: tuple[str, str] = ("key_cache", "value_cache"),
) -> Tensors:
    """Queries ``[tokens, Hq, D]``, or ``[n_seq, Sq, Hq, D]``, and caches ``[n_blocks, block_size, Hkv, D]``."""
    dtypes = (*FLOATS, *QUANTIZED)
    queries = accept("q", q)
    k, v = (accept(name, x, dtypes) for name, x in zip(names, (key_cache, value_cache), strict=True))
    layout = "packed" if packed else "bshd" if len(queries.shape) == 4 else "tokens"
    _checks.rank(queries, "n_seq Sq Hq D" if layout == "bshd" else "tokens Hq D")
    _checks.rank(k, "n_blocks block_size Hkv D")
    _checks.rank(v, "n_blocks block_size Hkv Dv")
    if k.dtype not in (queries.dtype, *QUANTIZED):
        raise ArgumentTypeError(k.name, f"dtype {k.dtype}", f"{queries.dtype}, the dtype of q, or one of 8 bits")
    _arguments.same_dtype(k, [v])
    _checks.head_dim(queries)
    _checks.head_dim(v)
    _checks.extent(k, -1, queries.shape[-1], "the head dimension of q")
    _checks.grouped_heads(k, k.shape[2], queries.shape[-2])
    for axis, meaning in ((0, "the number of blocks"), (1, "the block size"), (2, "the heads")):
        _checks.extent(v, axis, k.shape[axis], f"{meaning} of {k.name}")
    if k.shape[1] == 0:
        raise ArgumentError(k.name, "block size 0", "a block size of at least 1")
    _arguments.same_place(queries, [k, v])
    return Tensors(queries, k, v, layout, "bshd")


def pages(
    tensors: Tensors,
    sequences: Sequences,
    table: Argument,
    longest: tuple[str, int | None],
    key_scale: ArrayLike | None = None,
    value_scale: ArrayLike | None = None,
) -> tuple[Sequences, Pages]:
    """The pages of sequences that know where their keys end, and these with a bound of their numbers of keys.

    `table` is int32 ``[sequences, entries]``. `longest` is the name of such a bound for errors, and its value, if it is
    given. What lies in host memory is checked.
    """
    q, k = tensors.q, tensors.k
    if len(table.shape) != 2 or table.shape[0] != sequences.count:
        raise ArgumentError(table.name, f"shape {table.shape}", f"shape ({sequences.count}, max_blocks)")
    most = _check_table(table, sequences, k, longest)
    scales = _checks.cache_scale("key_scale", key_scale, k), _checks.cache_scale("value_scale", value_scale, k)
    _arguments.same_place(q, scales)
    return replace(sequences, max_k=most), Pages(table, *scales)


def _check_table(table: Argument, sequences: Sequences, k: Argument, longest: tuple[str, int | None]) -> int:
    """A bound of the numbers of keys."""
    n_blocks, block_size = k.shape[:2]
    entries, (name, given_bound) = table.shape[1], longest
    room, ends, padding = entries * block_size, sequences.ends_of_keys, sequences.leftpad_k
    if ends is None or ends.on_device:
        return room if given_bound is None else min(_checks.integer(name, given_bound, 0), room)

    def longest_of(array: np.ndarray) -> int:
        numbers = sequences.numbers_of_keys(array)
        most = int(numbers.max(initial=0))
        if most > room:
            given = f"{entries} blocks for the {most} tokens of sequence {numbers.argmax()}"
            raise ArgumentError(table.name, given, f"at least {-(-most // block_size)} blocks of {block_size}")
        return most if given_bound is None else min(_checks.integer(name, given_bound, most), room)

    def check_entries(blocks: np.ndarray, array: np.ndarray, *first: np.ndarray) -> None:
        unknown = (blocks < 0) | (blocks >= n_blocks)
        if not unknown.any():
            return
        numbers = sequences.numbers_of_keys(array)
        wrong = unknown & (np.arange(entries) < -(-numbers[:, None] // block_size))
        for start in first:
            wrong &= np.arange(entries) >= start[:, None] // block_size
        if wrong.any():
            n, entry = (int(i) for i in np.argwhere(wrong)[0])
            given = f"block {blocks[n, entry]} at [{n}, {entry}]"
            raise ArgumentError(table.name, given, f"blocks from 0 to {n_blocks - 1}")

    bound: int = look(longest_of, ends.view)
    if not table.on_device:
        look(check_entries, table.view, ends.view, *([padding.view] if padding and not padding.on_device else []))
    return bound
