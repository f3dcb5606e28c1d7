"""Attention, forward, without ever holding the S x S scores.

For one query row i with the visible keys j (FlashAttention: Dao et al., 2022; online softmax: Milakov, Gimelshein,
2018)::

    s_j = scale * q_i . k_j                      then, where asked for: softcap, ALiBi, bias, mask
    out = sum_j exp(s_j) v_j / (sum_j exp(s_j) + exp(sink))
    lse = ln(sum_j exp(s_j) + exp(sink))

Shapes (any strides)::

    q [B, Hq, Sq, D]   k [B, Hkv, Sk, D]   v [B, Hkv, Sk, Dv]   out [splits, B, Hq, Sq, Dv]   lse [splits, B, Hq, Sq]
    with cfg.joins, where out and lse have one part: arrivals [N, Hq / pack] int32   parts, as below, float32

With cu_seqlens_q and cu_seqlens_k the batch axis has length 1 and sequence n is rows cu[n] .. cu[n + 1] of the S axis.
Its keys are those from leftpad_k[n] to seqlens_k[n] + appended, where these are given; what is before and behind them
is not there, but counts in the numbers of keys. Paged keys and values are [pages, Hkv, L, D]: key j of sequence n is
row j % L of page block_table[n, j // L], and cu_seqlens_k says how many there are, not where. A page that is not there
counts as zeros, and 1 is written to ``error`` [1]. Where there are scales [Hkv], they multiply keys and values of 8
bits.

Mapping. A block computes ``block_m`` tile rows of one sequence; its grid index is (row block x split, head group,
sequence). A tile row is a pair (query, head): ``pack`` query heads that share a key-value head lie side by side, so
that a single query of a group still fills a tile (decoding); pack = 1 gives plain query blocks. Row blocks run from the
last to the first, because in a causal problem the last ones are the longest. With ``splits`` > 1 each block takes its
share of the keys and writes a partial result, which `combine_splits` joins by the log-sum-exp.

With ``cfg.joins`` there is one row block, and the last of its blocks to arrive joins the parts. Numerators, maximum and
denominator of a tile row lie in one row of ``parts``, as `combine_splits.Config` has it; those of a block, for at most
``queries`` queries, behind those of the split before. Nothing is divided, no logarithm taken, before all are added up.

Visibility is as `visibility` says. Key tiles outside the range of every row are not visited, and only the tiles at its
border are masked.

Shared memory: one window of keys and one of values, ``block_n * (head_dim + value_dim)`` elements.
"""

from dataclasses import dataclass, field

import numpy as np

from rocmkern import tile as T
from rocmkern.ops.attention.kernels import combine_splits
from rocmkern.ops.attention.kernels.combine_splits import join_parts
from rocmkern.ops.attention.kernels.scores import modify_scores
from rocmkern.ops.attention.kernels.visibility import (
    columns_of_block,
    diagonal_shift,
    keys_among_rows,
    rows_of_sequence,
)

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration.

    Attributes
    ----------
    block_m, block_n : int
        Tile rows (query, head) and keys per step.
    head_dim, value_dim : int
        Upper bounds of D and Dv: the bucket, not the exact value.
    score_mods : bool
        Whether softcap, ALiBi, bias and mask are looked at. Each of them is then switched on at run time.
    paged : bool
        Whether keys and values are found through a page table.
    joins : bool
        Whether the last block that has a part of the keys joins the parts. There is one row block then.
    join : combine_splits.Config
        How it does, with ``sums``. Of as many waves; without ``joins`` of no consequence.
    """

    block_m: int = 16
    block_n: int = 16
    head_dim: int = 64
    value_dim: int = 64
    score_mods: bool = False
    paged: bool = False
    joins: bool = False
    join: combine_splits.Config = field(default_factory=combine_splits.Config)


@T.device
def keys_of_sequence(cfg, cu_seqlens_k, seqlens_k, leftpad_k, appended, sequence, k):
    """Batch index and first row of a sequence, and its first key and the end of its keys, counted from that row."""
    batch, start, rows = rows_of_sequence(cu_seqlens_k, sequence, k.shape[2])
    if cfg.paged:
        batch, start = 0, 0
    first, end = keys_among_rows(seqlens_k, leftpad_k, appended, sequence, rows, cfg.paged)
    return batch, start, first, end


@T.device
def part_of_block(cfg, splits):
    """Sequence, row block and split of a block."""
    sequence, row_block, split = T.block_id(cfg, 2), 0, T.block_id(cfg, 0)
    if not cfg.joins:
        row_block, split = split // splits, split % splits
    return sequence, row_block, split


@T.device
def heads_of_block(cfg, heads, kv_heads, pack):
    """First query head of a block, and the key-value head that its heads share."""
    first_head, kv_head = T.block_id(cfg, 1) * pack, T.block_id(cfg, 1)
    if pack * kv_heads != heads:
        kv_head = first_head * kv_heads // heads
    return first_head, kv_head


@T.device
def factors_of_block(cfg, scale, key_scale, value_scale, kv_head):
    """What products of queries and keys are multiplied with, and what those of weights and values are."""
    value_factor = np.float32(1.0)
    if cfg.paged and key_scale.shape[0] > 0:
        scale = scale * key_scale[kv_head]
    if cfg.paged and value_scale.shape[0] > 0:
        value_factor = value_scale[kv_head]
    return scale, value_factor


@T.device
def rows_of_block(cfg, row_block, q_len, queries, pack):
    """The first tile row of a block, below 0 where it has none, and the number of those of its sequence."""
    n_rows = q_len * pack
    if cfg.joins:
        # Longer sequences than the caller said must not reach the scratch memory of others.
        n_rows = min(q_len, queries) * pack
    return ((n_rows + cfg.block_m - 1) // cfg.block_m - 1 - row_block) * cfg.block_m, n_rows


@T.device
def queries_of_block(cfg, row0, n_rows, q_len, k_first, k_len, bottom_right, pack):
    """First and last query among the tile rows of a block from ``row0`` on; the diagonal key of a query less it."""
    first, last = 0, q_len - 1
    if n_rows > cfg.block_m and not cfg.joins:
        first, last = row0 // pack, (min(row0 + cfg.block_m, n_rows) - 1) // pack
    return first, last, diagonal_shift(q_len, k_first, k_len, bottom_right)


@T.device
def keys_of_block(cfg, first, last, shift, left, right, k_first, k_len, split, splits):
    """What `columns_of_block` says of the queries ``first`` to ``last``.

    Steps are counted from the first key: a row is the same bits however its keys are padded. In pages they are counted
    from row 0: AMD fetches rows by 8.
    """
    origin = k_first
    if cfg.paged:
        origin = 0
    return columns_of_block(cfg, first, last, shift, left, right, k_first, k_len, origin, split, splits)


@T.device
def start_softmax(cfg, sinks, head, split, scale, valid):
    """Maximum, denominator and numerator before the first key, and what makes an exponent of 2 of a score.

    A sink is a key that was seen before all others.
    """
    exponent_scale = np.float32(scale * LOG2_E)
    if cfg.score_mods:
        exponent_scale = np.float32(LOG2_E)
    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    if sinks.shape[0] > 0 and split == 0:
        m = T.load_rows(sinks, (head,), valid) * (LOG2_E / exponent_scale)
        l = T.where(m == T.NEG_INF, 0.0, 1.0)
    acc = T.zeros(cfg, cfg.block_m, cfg.value_dim)
    return m, l, acc, exponent_scale


@T.device
def check_pages(cfg, table, k_first, n_keys, k, groups, split, splits, error):
    """Write 1 to ``error`` where a page that should hold keys is not in the table, or not in the cache.

    The blocks of all groups of heads and all splits share it out. Few rows do it when their first copies are on their
    way.
    """
    pages, page_rows = k.shape[0], k.shape[2]
    needed = (n_keys + page_rows - 1) // page_rows
    begin = k_first // page_rows + (T.block_id(cfg, 1) * splits + split) * cfg.block_m
    for first in range(begin, needed, groups * splits * cfg.block_m):
        entry = T.row_index(cfg, cfg.block_m) + first
        used = entry < needed
        listed = entry < table.shape[0]
        page = T.load_integers(table, (entry,), used & listed)
        missing = T.where(listed & (page >= 0) & (page < pages), 0, 1) == 1
        T.store_rows(error, (0,), T.full_rows(cfg, cfg.block_m, 1.0), used & missing)


@T.device
def store_result(cfg, m, l, acc, exponent_scale, value_factor, out, lse, head, query, valid):
    """Write rows of out and, if it is there, lse: from their maximum, denominator and numerators (consumed)."""
    T.store_tile(out, (head, query), 0, acc * (T.reciprocal_or_zero(l) * value_factor), valid)
    if lse.shape[1] > 0:
        # m times the product of both factors: m * exponent_scale alone may overflow.
        T.store_rows(lse, (head, query), m * (exponent_scale * LN_2) + T.log2(l) * LN_2, valid)


@T.device
def join_rows(
    cfg, parts, place, step, splits, exponent_scale, value_factor, out, lse, first_head, pack, q_start, q_len
):
    """Join the parts of tile rows, the first of which is row ``place`` of parts, and write the result.

    The next part of a row is ``step`` rows below. Heads are joined side by side, query by query; where there is one
    head, queries are: that takes no division.
    """
    side_by_side, others, is_head = pack, q_len, 1
    if pack == 1:
        side_by_side, others, is_head = q_len, 1, 0
    for other in range(others):
        for first in range(0, side_by_side, cfg.join.block_m):
            row = T.row_index(cfg.join, cfg.join.block_m) + first
            valid = row < side_by_side
            at = row + (place + other * side_by_side)
            m, l, acc = join_parts(cfg.join, parts, at, step, splits, exponent_scale, valid)
            head, query = row * is_head + first_head, row * (1 - is_head) + (q_start + other)
            store_result(cfg.join, m, l, acc, exponent_scale, value_factor, out, lse, head, query, valid)


@T.device
def join_block(
    cfg, m, l, acc, row, valid, parts, arrivals, sequence, split, splits, queries, exponent_scale, value_factor, out,
    lse, first_head, pack, q_start, q_len
):  # fmt: skip
    """Write a block's part, and join those of all splits if it is the last block that has one."""
    step = queries * pack
    place = (sequence * arrivals.shape[1] + T.block_id(cfg, 1)) * splits * step
    part_rows = T.scratch_rows(parts, cfg.join.pitch)
    at = row + (place + split * step)
    T.store_tile(part_rows, (at,), 0, acc, valid)
    T.store_rows(part_rows, (at, cfg.value_dim), m, valid)
    T.store_rows(part_rows, (at, cfg.value_dim + 1), l, valid)
    if T.last_to_arrive(cfg, arrivals[sequence], T.block_id(cfg, 1), splits):
        join_rows(
            cfg, part_rows, place, step, splits, exponent_scale, value_factor, out, lse, first_head, pack, q_start,
            min(q_len, queries),
        )  # fmt: skip


@T.kernel
def flash_attention(
    cfg,
    q: T.Tensor[4],
    k: T.Tensor[4],
    v: T.Tensor[4],
    out: T.Out[5],
    lse: T.Out[4].optional("float32"),
    cu_seqlens_q: T.Tensor[1].optional("int32"),
    cu_seqlens_k: T.Tensor[1].optional("int32"),
    sinks: T.Tensor[1].optional("float32"),
    alibi_slopes: T.Tensor[2].optional("float32"),
    bias: T.Tensor[4].optional("float32"),
    mask: T.Tensor[4].optional("bool"),
    block_table: T.Tensor[2].optional("int32"),
    seqlens_k: T.Tensor[1].optional("int32"),
    leftpad_k: T.Tensor[1].optional("int32"),
    key_scale: T.Tensor[1].optional("float32"),
    value_scale: T.Tensor[1].optional("float32"),
    error: T.Out[1].optional("float32"),
    arrivals: T.InOut[2].optional("int32"),
    parts: T.InOut[1].optional("float32"),
    scale: T.Float,
    softcap: T.Float,
    left: T.Int,
    right: T.Int,
    bottom_right: T.Int,
    pack: T.Int,
    splits: T.Int,
    queries: T.Int,
    appended: T.Int,
):
    # Which part of which sequence, which heads, which rows, which keys.
    sequence, row_block, split = part_of_block(cfg, splits)
    batch, q_start, q_len = rows_of_sequence(cu_seqlens_q, sequence, q.shape[2])
    k_batch, k_start, k_first, k_len = keys_of_sequence(cfg, cu_seqlens_k, seqlens_k, leftpad_k, appended, sequence, k)
    if cfg.paged and row_block == 0 and (not cfg.split_kv or q_len == 0):
        check_pages(cfg, block_table[sequence], k_first, k_len, k, q.shape[1] // pack, split, splits, error)
    first_head, kv_head = heads_of_block(cfg, q.shape[1], k.shape[1], pack)
    scale, value_factor = factors_of_block(cfg, scale, key_scale, value_scale, kv_head)
    row0, n_rows = rows_of_block(cfg, row_block, q_len, queries, pack)
    if row0 < 0:
        return
    first, last, shift = queries_of_block(cfg, row0, n_rows, q_len, k_first, k_len, bottom_right, pack)
    begin, end, all_begin, all_end = keys_of_block(cfg, first, last, shift, left, right, k_first, k_len, split, splits)

    # The first keys and values are on their way before anything else is looked at.
    keys = T.stage(cfg, T.rows(k[k_batch, kv_head], k_start, k_start + end), cfg.block_n, cfg.head_dim, q, cfg.paged)
    values = T.stage(cfg, T.rows(v[k_batch, kv_head], k_start, k_start + end), cfg.block_n, cfg.value_dim, q, cfg.paged)
    if cfg.paged:
        keys = T.paged(keys, k, kv_head, block_table[sequence], end)
        values = T.paged(values, v, kv_head, block_table[sequence], end)
    ahead = cfg.num_stages * cfg.block_n
    for step in range(0, ahead, cfg.block_n):
        keys, values = T.fetch(keys, begin + step), T.fetch(values, begin + step)
    if cfg.paged and cfg.split_kv and row_block == 0:
        check_pages(cfg, block_table[sequence], k_first, k_len, k, q.shape[1] // pack, split, splits, error)

    # What each row is: a query of a head, which sees the keys low .. high.
    row = T.row_index(cfg, cfg.block_m) + row0
    valid, query, head = row < n_rows, row // pack, row % pack + first_head
    diagonal = query + shift
    low, high = T.maximum(diagonal - left, k_first), T.minimum(diagonal + right, k_len - 1)
    q_tile = T.load_operand(cfg, q[batch], (head, query + q_start), 0, cfg.head_dim, valid)
    m, l, acc, exponent_scale = start_softmax(cfg, sinks, head, split, scale, valid)

    for n0 in range(begin, end, cfg.block_n):
        at_border = n0 < all_begin or n0 + cfg.block_n > all_end
        # S = Q K^T
        keys, values = T.acquire(keys), T.acquire(values)
        keys, values = T.fetch(keys, n0 + ahead), T.fetch(values, n0 + ahead)
        s = T.dot_nt(q_tile, keys)
        keys = T.release(keys)

        # modify, mask
        if cfg.score_mods:
            slopes, biases, masks = alibi_slopes[sequence], bias[batch], mask[batch]
            s = modify_scores(cfg, s, scale, softcap, slopes, biases, masks, head, query, diagonal, n0, valid)
        if at_border:
            s = T.mask_outside(s, n0, low, high)

        # P = exp(S - m), O += P V
        p, m, l, acc = T.softmax_step(s, exponent_scale, m, l, acc)
        weights = T.operand(p, values)
        if at_border or cfg.score_mods:
            acc = T.dot_nn_where(weights, values, acc)
        else:
            acc = T.dot_nn(weights, values, acc)
        values = T.release(values)
    T.finish(keys)
    T.finish(values)

    m, l, acc = T.softmax_end(exponent_scale, m, l, acc)
    if cfg.joins:
        join_block(
            cfg, m, l, acc, row, valid, parts, arrivals, sequence, split, splits, queries, exponent_scale, value_factor,
            out[0, batch], lse[0, batch], first_head, pack, q_start, q_len,
        )  # fmt: skip
        return
    out, lse = out[split, batch], lse[split, batch]
    store_result(cfg, m, l, acc, exponent_scale, value_factor, out, lse, head, query + q_start, valid)
