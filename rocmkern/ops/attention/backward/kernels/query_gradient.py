"""The gradient of attention's queries, without ever holding the S x S scores (FlashAttention-2: Dao, 2023).

For one query row i with the visible keys j, and p and ds as `softmax_gradient` says::

    dq_i = scale * sum_j ds_ij k_j
    distance_i = -sum_j ds_ij |i + o - j|         what the slope of ALiBi gets from the row, where it is asked for

Shapes (any strides)::

    q, dq [B, Hq, Sq, D]   k [B, Hkv, Sk, D]   v [B, Hkv, Sk, Dv]   dout [B, Hq, Sq, Dv]
    offsets, deltas, distances [B, Hq, Sq] float32

Sequences are as in `flash_attention`. Mapping: a block computes ``block_m`` queries of one head; its grid index is (row
block, head, sequence). Row blocks run from the last to the first, because in a causal problem the last ones are the
longest. Key tiles outside the range of every row are not visited, and only the tiles at its border are masked.

Shared memory: one window of keys, which is read by rows and by columns, and one of values.
"""

from rocmkern import tile as T
from rocmkern.ops.attention.backward.kernels.softmax_gradient import Config as Config
from rocmkern.ops.attention.backward.kernels.softmax_gradient import before_cap, exponents_of, gradient_of
from rocmkern.ops.attention.kernels.visibility import (
    columns_of_block,
    diagonal_shift,
    keys_among_rows,
    rows_of_sequence,
)


@T.kernel
def query_gradient(
    cfg,
    dout: T.Tensor[4],
    q: T.Tensor[4],
    k: T.Tensor[4],
    v: T.Tensor[4],
    offsets: T.Tensor[3],
    deltas: T.Tensor[3],
    dq: T.Out[4],
    distances: T.Out[3].optional("float32"),
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
    # Which rows of which sequence and head, which keys.
    sequence, head = T.block_id(cfg, 2), T.block_id(cfg, 1)
    batch, q_start, q_len = rows_of_sequence(cu_seqlens_q, sequence, q.shape[2])
    k_batch, k_start, k_rows = rows_of_sequence(cu_seqlens_k, sequence, k.shape[2])
    k_first, k_len = keys_among_rows(seqlens_k, leftpad_k, 0, sequence, k_rows, False)
    kv_head = head * k.shape[1] // q.shape[1]
    row0 = ((q_len + cfg.block_m - 1) // cfg.block_m - 1 - T.block_id(cfg, 0)) * cfg.block_m
    if row0 < 0:
        return
    last, shift = min(row0 + cfg.block_m, q_len) - 1, diagonal_shift(q_len, k_first, k_len, bottom_right)
    begin, end, all_begin, all_end = columns_of_block(
        cfg, row0, last, shift, left, right, k_first, k_len, k_first, 0, 1
    )  # fmt: skip

    keys = T.stage(cfg, T.rows(k[k_batch, kv_head], k_start, k_start + end), cfg.block_n, cfg.head_dim)
    values = T.stage(cfg, T.rows(v[k_batch, kv_head], k_start, k_start + end), cfg.block_n, cfg.value_dim)
    keys, values = T.fetch(keys, begin), T.fetch(values, begin)

    row = T.row_index(cfg, cfg.block_m) + row0
    valid, at, diagonal = row < q_len, row + q_start, row + shift
    low, high = T.maximum(diagonal - left, k_first), T.minimum(diagonal + right, k_len - 1)
    q_tile = T.load_operand(cfg, q[batch, head], (at,), 0, cfg.head_dim, valid)
    dout_tile = T.load_operand(cfg, dout[batch, head], (at,), 0, cfg.value_dim, valid)
    offset = T.load_rows(offsets[batch, head], (at,), valid)
    delta = T.load_rows(deltas[batch, head], (at,), valid)
    acc, distance = T.zeros(cfg, cfg.block_m, cfg.head_dim), T.full_rows(cfg, cfg.block_m, 0.0)

    for n0 in range(begin, end, cfg.block_n):
        # With score modifications all tiles are masked: what tells them apart takes scalar registers.
        at_border = cfg.score_mods or n0 < all_begin or n0 + cfg.block_n > all_end
        # P = exp(Q K^T - lse)
        keys, values = T.acquire(keys), T.acquire(values)
        keys, values = T.fetch(keys, n0 + cfg.block_n), T.fetch(values, n0 + cfg.block_n)
        slopes, biases, masks = T.reread(alibi_slopes)[sequence], T.reread(bias)[batch], T.reread(mask)[batch]
        p = exponents_of(
            cfg, T.dot_nt(q_tile, keys), offset, scale, softcap, slopes, biases, masks, head, row, diagonal, n0, valid
        )  # fmt: skip
        if at_border:
            p = T.mask_outside(p, n0, low, high)
        p = T.exp2(p)

        # dS = P (dO V^T - delta)
        ds = gradient_of(cfg, T.dot_nt(dout_tile, values), p, delta, at_border)
        values = T.release(values)
        if cfg.score_mods:
            if distances.shape[1] > 0:
                distance = distance - T.rowdot(ds, T.absolute(T.distance(cfg, diagonal, n0, cfg.block_n)))
            if softcap > 0.0:
                ds = before_cap(ds, T.dot_nt(q_tile, keys), scale, softcap)

        # dQ += dS K
        weights = T.operand(ds, keys)
        if at_border:
            acc = T.dot_nn_where(weights, keys, acc)
        else:
            acc = T.dot_nn(weights, keys, acc)
        keys = T.release(keys)
    T.finish(keys)
    T.finish(values)

    T.store_tile(dq[batch, head], (at,), 0, acc * scale, valid)
    if cfg.score_mods and distances.shape[1] > 0:
        T.store_rows(distances[batch, head], (at,), distance, valid)
