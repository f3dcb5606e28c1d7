"""The gradients of attention's keys and values, without ever holding the S x S scores (FlashAttention-2: Dao, 2023).

For one key row j with the queries i of one head that see it, and p and ds as `softmax_gradient` says::

    dv_j = sum_i p_ij dout_i                      dk_j = scale * sum_i ds_ij q_i

Shapes (any strides)::

    q [B, Hq, Sq, D]   k [B, Hkv, Sk, D]   v [B, Hkv, Sk, Dv]   dout [B, Hq, Sq, Dv]
    dk [B, Hq, Sk, D]   dv [B, Hq, Sk, Dv]        what heads that share a key give it remains to be added up
    offsets, deltas [B, Hq, Sq] float32        bias, mask [B, Hq, Sk, Sq]: transposed

Sequences are as in `flash_attention`; rows of k that are no keys get 0. Mapping: tile rows are keys, columns queries. A
block computes ``block_m`` keys for one query head; its grid index is (row block, query head, sequence). Query tiles
that see none of its keys are not visited, and only the tiles at their border are masked.

With ``cfg.keys`` or ``cfg.values`` alone it computes one of both gradients, which takes fewer registers.

Shared memory: one window of queries and one of their dout, each of which is read by rows and by columns.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.attention.backward.kernels import softmax_gradient
from rocmkern.ops.attention.backward.kernels.softmax_gradient import before_cap, exponents_of, gradient_of
from rocmkern.ops.attention.kernels.visibility import (
    columns_of_block,
    diagonal_shift,
    keys_among_rows,
    rows_of_sequence,
)


@dataclass(frozen=True)
class Config(softmax_gradient.Config):
    """Compile-time configuration.

    Attributes
    ----------
    keys, values : bool
        Whether dk and dv are computed.
    """

    keys: bool = True
    values: bool = True


@T.kernel
def key_value_gradient(
    cfg,
    dout: T.Tensor[4],
    q: T.Tensor[4],
    k: T.Tensor[4],
    v: T.Tensor[4],
    offsets: T.Tensor[3],
    deltas: T.Tensor[3],
    dk: T.Out[4].optional("q"),
    dv: T.Out[4].optional("q"),
    cu_seqlens_q: T.Tensor[1].optional("int32"),
    cu_seqlens_k: T.Tensor[1].optional("int32"),
    alibi_slopes: T.Tensor[2].optional("float32"),
    bias: T.Tensor[4].optional("float32"),
    mask: T.Tensor[4].optional("bool"),
    seqlens_k: T.Tensor[1].optional("int32"),
    leftpad_k: T.Tensor[1].optional("int32"),
    scale: T.Float,
    softcap: T.Float,
    left: T.Int,
    right: T.Int,
    bottom_right: T.Int,
):
    # Which rows of which sequence and head, which of them are keys, which queries see them.
    sequence, head = T.block_id(cfg, 2), T.block_id(cfg, 1)
    q_batch, q_start, q_len = rows_of_sequence(cu_seqlens_q, sequence, q.shape[2])
    batch, k_start, k_rows = rows_of_sequence(cu_seqlens_k, sequence, k.shape[2])
    k_first, k_len = keys_among_rows(seqlens_k, leftpad_k, 0, sequence, k_rows, False)
    row0, kv_head = T.block_id(cfg, 0) * cfg.block_m, head * k.shape[1] // q.shape[1]
    if row0 >= k_rows:
        return
    first, last = max(row0, k_first), min(row0 + cfg.block_m, k_len) - 1
    shift = diagonal_shift(q_len, k_first, k_len, bottom_right)
    begin, end, all_begin, all_end = columns_of_block(cfg, first, last, -shift, right, left, 0, q_len, 0, 0, 1)
    if row0 < k_first or row0 + cfg.block_m > k_len:
        all_end = begin  # nothing is seen by all rows: some are no keys
    if first > last:
        end = begin

    row = T.row_index(cfg, cfg.block_m) + row0
    valid, at, diagonal = row < k_rows, row + k_start, row - shift
    is_key = (row >= k_first) & (row < k_len)
    low, high = T.maximum(diagonal - right, 0), T.minimum(diagonal + left, q_len - 1)
    high = T.where(is_key, high, -1)
    dk_rows, dv_rows = dk[batch, head], dv[batch, head]
    k_tile = T.load_operand(cfg, k[batch, kv_head], (at,), 0, cfg.head_dim, is_key)
    dk_acc, dv_acc = T.zeros(cfg, cfg.block_m, cfg.head_dim), T.zeros(cfg, cfg.block_m, cfg.value_dim)

    queries = T.stage(cfg, T.rows(q[q_batch, head], q_start, q_start + end), cfg.block_n, cfg.head_dim)
    grads = T.stage(cfg, T.rows(dout[q_batch, head], q_start, q_start + end), cfg.block_n, cfg.value_dim)
    queries, grads = T.fetch(queries, begin), T.fetch(grads, begin)
    if cfg.keys:  # last: without it, it takes no shared memory
        v_tile = T.load_operand(cfg, v[batch, kv_head], (at,), 0, cfg.value_dim, is_key)
    for n0 in range(begin, end, cfg.block_n):
        # With score modifications all tiles are masked: what tells them apart takes scalar registers.
        at_border = cfg.score_mods or n0 < all_begin or n0 + cfg.block_n > all_end
        # P^T = exp(K Q^T - lse)
        queries, grads = T.acquire(queries), T.acquire(grads)
        queries, grads = T.fetch(queries, n0 + cfg.block_n), T.fetch(grads, n0 + cfg.block_n)
        offset = T.load_columns(cfg, cfg.block_m, offsets[q_batch, head], q_start + n0, cfg.block_n)
        if cfg.keys:
            delta = T.load_columns(cfg, cfg.block_m, deltas[q_batch, head], q_start + n0, cfg.block_n)
        slopes, biases, masks = T.reread(alibi_slopes)[sequence], T.reread(bias)[q_batch], T.reread(mask)[q_batch]
        p = exponents_of(
            cfg, T.dot_nt(k_tile, queries), offset, scale, softcap, slopes, biases, masks, head, row, diagonal, n0,
            is_key,
        )  # fmt: skip
        if at_border:
            p = T.mask_outside(p, n0, low, high)
        p = T.exp2(p)

        # dV += P^T dO
        if cfg.values:
            weights = T.operand(T.copy(p), grads)
            if at_border:
                dv_acc = T.dot_nn_where(weights, grads, dv_acc)
            else:
                dv_acc = T.dot_nn(weights, grads, dv_acc)

        # dS^T = P^T (V dO^T - delta), dK += dS^T Q
        if cfg.keys:
            ds = gradient_of(cfg, T.dot_nt(v_tile, grads), p, delta, at_border)
            if cfg.score_mods and softcap > 0.0:
                ds = before_cap(ds, T.dot_nt(k_tile, queries), scale, softcap)
            weights = T.operand(ds, queries)
            if at_border:
                dk_acc = T.dot_nn_where(weights, queries, dk_acc)
            else:
                dk_acc = T.dot_nn(weights, queries, dk_acc)
        queries, grads = T.release(queries), T.release(grads)
    T.finish(queries)
    T.finish(grads)

    if cfg.keys:
        T.store_tile(dk_rows, (at,), 0, dk_acc * scale, valid)
    if cfg.values:
        T.store_tile(dv_rows, (at,), 0, dv_acc, valid)
