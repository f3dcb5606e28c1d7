"""Attention over keys and values that lie in pages: `paged_attention`.

What it means is `rocmkern.reference.paged_attention`; how it is computed, the kernel of `attention`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import FLOAT32, FLOATS, INT32, QUANTIZED, Argument, accept
from rocmkern.calls.plan import planned
from rocmkern.calls.view import View
from rocmkern.ops.attention.api import checked_outputs, fill_without_keys, float32
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError


@planned
def paged_attention(
    q: Any,
    key_cache: Any,
    value_cache: Any,
    block_table: Any,
    context_lens: Any,
    *,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int | None = None,
    max_context_len: int | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    key_scale: Any = None,
    value_scale: Any = None,
    return_lse: bool = False,
    num_splits: int | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Attention of sequences whose keys and values lie in the blocks of a cache.

    Key j of sequence n is row ``j % block_size`` of block ``block_table[n, j // block_size]``. The result is that of
    `flash_attention` with ``causal=True`` over the ``context_lens[n]`` keys of each sequence: query i of Sq sees the
    keys up to ``i + context_lens[n] - Sq``. One query a sequence (decoding) sees all of them.

    Parameters
    ----------
    q : array, ``[n_seq, Hq, D]``, or packed ``[total_q, Hq, D]``
        Queries: float32, float16 or bfloat16, with any strides; one of each sequence, or those that `cu_seqlens_q`
        says. D is 1 to 256.
    key_cache : array, ``[n_blocks, block_size, Hkv, D]``
        Keys, of the dtype of q, or int8, float8_e4m3fn or float8_e5m2 (``ml_dtypes``). block_size is 1 to 256.
    value_cache : array, ``[n_blocks, block_size, Hkv, Dv]``
        Values, of the dtype of the keys.
    block_table : array, int32, ``[n_seq, max_blocks]``
        Blocks of each sequence, in order; what lies behind the last one that it needs is not looked at.
    context_lens : array, int32, ``[n_seq]``
        Tokens of each sequence that are in the cache, those of q included. 0 is allowed: nothing is seen.
    cu_seqlens_q : array, int32, ``[n_seq + 1]``, optional
        Sequence n has queries ``cu[n]`` to ``cu[n + 1]`` of q.
    max_seqlen_q, max_context_len : int, optional
        Bounds of the lengths. Found out by default; where the lengths lie in device memory, from the shapes of q and of
        the table.
    window : (left, right), optional
        Keys that a row sees on either side of its diagonal key, see `flash_attention`.
    scale : float, optional
        ``1 / sqrt(D)`` by default.
    softcap : float, optional
        Bound of the scores, positive.
    alibi_slopes : array, ``[Hq]`` or ``[n_seq, Hq]``, optional
        Slopes of linear biases.
    sinks : array, ``[Hq]``, optional
        One more logit for each head, in the denominator only.
    key_scale, value_scale : array, float32, ``[Hkv]``, optional
        What the numbers of quantized caches are multiplied by; positive. 1 by default.
    return_lse : bool
        Also return the natural-log log-sum-exp of the scores, sink included.
    num_splits : int, optional
        Number of parts of the keys that different blocks of the device work on; chosen from the shapes by default. See
        `decode_attention`.
    out : array, or (array, array) with ``return_lse=True``, optional
        Where to write the result (and the lse).
    stream : optional
        Stream that orders the work.

    Returns
    -------
    out : array, ``[n_seq, Hq, Dv]`` or ``[total_q, Hq, Dv]``
        Of the kind and the dtype of q. Computed in float32, rounded once.
    lse : array, float32, ``[Hq, n_seq]`` or ``[Hq, total_q]``
        Only with ``return_lse=True``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above, a table is too short or names a block that does not exist; ``error.argument`` names
        it. A table in device memory is not copied back to be checked: keys and values of blocks that do not exist count
        as 0, and the next wait raises `IndexOutOfRangeError`.
    TargetError
        The arrays lie on a device that no target here can reach.

    References
    ----------
    Kwon, Li, Zhuang, Sheng, Zheng, Yu, Gonzalez, Zhang, Stoica: PagedAttention (2023).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> cache = np.random.default_rng(0).standard_normal((8, 16, 2, 64), dtype=np.float32)
    >>> q = np.ones((1, 8, 64), np.float32)
    >>> table, lens = np.array([[5, 2]], np.int32), np.array([20], np.int32)
    >>> rocmkern.paged_attention(q, cache, cache, table, lens).shape
    (1, 8, 64)
    """
    # Checks
    stream, return_lse = _checks.stream(stream), _checks.flag("return_lse", return_lse)
    left, right, bottom_right = _checks.visibility(True, window)
    q = accept("q", q)
    k, v = (
        accept("key_cache", key_cache, (*FLOATS, *QUANTIZED)),
        accept("value_cache", value_cache, (*FLOATS, *QUANTIZED)),
    )
    _check_caches(q, k, v)
    scale = _checks.softmax_scale(scale, q.shape[-1])
    softcap = 0.0 if softcap is None else _checks.number("softcap", softcap, positive=True)
    if num_splits is not None:
        num_splits = _checks.integer("num_splits", num_splits, 1)
    cu_q, lengths = None, None
    if cu_seqlens_q is not None:
        lengths = _beside(q, accept("cu_seqlens_q", cu_seqlens_q, INT32))
        cu_q = _checks.cu_seqlens(lengths, q.shape[0], "q")
    sequences = q.shape[0] if cu_q is None else len(cu_q) - 1
    if cu_q is None and max_seqlen_q is not None:
        raise ArgumentError("max_seqlen_q", repr(max_seqlen_q), "None where there is no cu_seqlens_q")
    longest_q = 1 if cu_q is None else _checks.max_seqlen("max_seqlen_q", max_seqlen_q, cu_q, q.shape[0])
    numbers = (
        _beside(q, accept("block_table", block_table, INT32)),
        _beside(q, accept("context_lens", context_lens, INT32)),
    )
    table, lens, longest = _check_table(*numbers, k, sequences, max_context_len)
    heads = q.shape[1]
    sinks = None if sinks is None else accept("sinks", sinks)
    slopes = None if alibi_slopes is None else accept("alibi_slopes", alibi_slopes)
    scales = [_checks.cache_scale(*x, k) for x in (("key_scale", key_scale), ("value_scale", value_scale))]
    inputs = [q, k, v, sinks, slopes, *scales]
    _arguments.same_place(q, inputs)
    inputs += [lengths, *numbers]
    if sinks is not None:
        _checks.same_shape(sinks, (heads,), "one for each query head")
    if slopes is not None and slopes.shape not in ((heads,), (sequences, heads)):
        raise ArgumentError("alibi_slopes", f"shape {slopes.shape}", f"shape {(heads,)} or {(sequences, heads)}")
    shape, lse_shape = (*q.shape[:-1], v.shape[-1]), (heads, q.shape[0])
    given, given_lse = checked_outputs(out, return_lse, shape, q.dtype, lse_shape, inputs)

    # Configuration
    result = given or _results.allocate("out", shape, q.dtype, q)
    lse = (given_lse or _results.allocate("lse", lse_shape, FLOAT32, q)) if return_lse else None
    sink_values = None if sinks is None else float32(sinks, stream)
    slope_values = None if slopes is None else float32(slopes, stream).broadcast_to((sequences, heads))

    scale_values = [None if x is None else x.aligned() for x in scales]

    # Launch
    keys, values = (x.aligned().transpose(0, 2, 1, 3) for x in (k, v))
    if not result.view.size or not longest_q:
        pass
    elif longest == 0 or keys.shape[0] == 0:
        fill_without_keys(result.view, None if lse is None else lse.view[None], sink_values, stream)
    else:
        from rocmkern.ops.attention.launch import Pages, launch_attention

        launch_attention(
            _rows(q.aligned(), cu_q),
            keys,
            values,
            _rows(result.view, cu_q),
            None if lse is None else lse.view[None] if cu_q is not None else lse.view.T[..., None],
            cu_seqlens_q=cu_q,
            cu_seqlens_k=None,
            max_seqlen_q=longest_q,
            sinks=sink_values,
            alibi_slopes=slope_values,
            bias=None,
            mask=None,
            scale=scale,
            softcap=softcap,
            left=left,
            right=right,
            bottom_right=bottom_right,
            num_splits=num_splits,
            stream=stream,
            pages=Pages(table, lens, scale_values[0], scale_values[1], longest),
        )
    return (result.source, lse.source) if lse is not None else result.source


def _rows(x: View, cu_q: View | None) -> View:
    """View ``[B, H, S, D]`` of queries or results: one packed batch, or a sequence for each row."""
    return x[:, :, None] if cu_q is None else x[None].transpose(0, 2, 1, 3)


def _check_caches(q: Argument, k: Argument, v: Argument) -> None:
    _checks.rank(q, "tokens Hq D")
    _checks.rank(k, "n_blocks block_size Hkv D")
    _checks.rank(v, "n_blocks block_size Hkv Dv")
    if k.dtype not in (q.dtype, *QUANTIZED):
        raise ArgumentTypeError("key_cache", f"dtype {k.dtype}", f"{q.dtype}, the dtype of q, or one of 8 bits")
    _arguments.same_dtype(k, [v])
    _checks.head_dim(q)
    _checks.head_dim(v)
    _checks.extent(k, -1, q.shape[-1], "the head dimension of q")
    _checks.grouped_heads(k, k.shape[2], q.shape[1])
    for axis, meaning in ((0, "the number of blocks"), (1, "the block size"), (2, "the heads")):
        _checks.extent(v, axis, k.shape[axis], f"{meaning} of key_cache")
    if not 1 <= k.shape[1] <= 256:
        raise ArgumentError("key_cache", f"block size {k.shape[1]}", "a block size of 1 to 256")


def _beside(q: Argument, x: Argument) -> Argument:
    """Numbers that may lie in host memory whatever q does, or beside it."""
    _arguments.same_place(q, [x] if x.on_device else [])
    return x


def _check_table(
    table: Argument, lens: Argument, k: Argument, sequences: int, longest: int | None
) -> tuple[View, View, int]:
    """The table, the lengths, and a bound of the lengths. What lies in host memory is checked."""
    _checks.same_shape(lens, (sequences,), "one for each sequence")
    if len(table.shape) != 2 or table.shape[0] != sequences:
        raise ArgumentError("block_table", f"shape {table.shape}", f"shape ({sequences}, max_blocks)")
    n_blocks, block_size = k.shape[:2]
    room = table.shape[1] * block_size
    if lens.on_device:
        bound = room if longest is None else min(_checks.integer("max_context_len", longest, 0), room)
        return table.aligned(), lens.aligned(), bound
    numbers = lens.view.numpy()
    if sequences and numbers.min() < 0:
        raise ArgumentError("context_lens", f"{numbers.min()} for sequence {numbers.argmin()}", "numbers of at least 0")
    most = int(numbers.max(initial=0))
    if most > room:
        given = f"{table.shape[1]} blocks for the {most} tokens of sequence {numbers.argmax()}"
        raise ArgumentError("block_table", given, f"at least {-(-most // block_size)} blocks of {block_size}")
    if longest is not None:
        most = min(_checks.integer("max_context_len", longest, most), room)
    if not table.view.on_device:
        needed = np.arange(table.shape[1]) < -(-numbers[:, None] // block_size)
        entries = table.view.numpy()
        wrong = needed & ((entries < 0) | (entries >= n_blocks))
        if wrong.any():
            n, entry = (int(i) for i in np.argwhere(wrong)[0])
            given = f"block {entries[n, entry]} at [{n}, {entry}]"
            raise ArgumentError("block_table", given, f"blocks from 0 to {n_blocks - 1}")
    return table.aligned(), lens.aligned(), min(most, room)
