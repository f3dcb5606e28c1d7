"""The gradient of a bias of attention's scores: that of the scores, added up over what the bias was repeated for.

For a query i and a key j of a head, with ds as `softmax_gradient` says::

    dbias_ij = sum ds_ij          over the batch elements, heads, queries and keys that share the number

Shapes (any strides)::

    q [B, Hq, Sq, D]   k [B, Hkv, Sk, D]   v [B, Hkv, Sk, Dv]   dout [B, Hq, Sq, Dv]
    offsets, deltas [B, Hq, Sq] float32
    dbias [B or 1, Hq or 1, R, C]        C is Sk, or 1 with over_keys; R is Sq, or ``block_m`` with over_queries

With ``over_queries`` row r has the sum of every ``block_m``-th query from r on: the rows remain to be added up.

Mapping: a block computes ``block_m`` rows and ``block_n`` columns, or all of them where they are added up; its grid
index is (row block x column block, head, batch). It adds up in a fixed order: batch, head, query, key.

Shared memory: one window of keys and one of values.
"""

from rocmkern import tile as T
from rocmkern.ops.attention.backward.kernels.softmax_gradient import Config as Config
from rocmkern.ops.attention.backward.kernels.softmax_gradient import exponents_of, gradient_of
from rocmkern.ops.attention.kernels.visibility import columns_of_block, diagonal_shift, keys_among_rows


@T.device
def share_of_block(index, extent, step, summed):
    """What a block goes over along an axis: from where to where."""
    if summed > 0:
        return 0, extent
    return index * step, min((index + 1) * step, extent)


@T.kernel
def bias_gradient(
    cfg,
    dout: T.Tensor[4],
    q: T.Tensor[4],
    k: T.Tensor[4],
    v: T.Tensor[4],
    offsets: T.Tensor[3],
    deltas: T.Tensor[3],
    dbias: T.Out[4],
    alibi_slopes: T.Tensor[2].optional("float32"),
    bias: T.Tensor[4],
    mask: T.Tensor[4].optional("bool"),
    seqlens_k: T.Tensor[1].optional("int32"),
    leftpad_k: T.Tensor[1].optional("int32"),
    scale: T.Float,
    softcap: T.Float,
    left: T.Int,
    right: T.Int,
    bottom_right: T.Int,
    over_batch: T.Int,
    over_heads: T.Int,
    over_queries: T.Int,
    over_keys: T.Int,
):
    column_blocks = (dbias.shape[3] + cfg.block_n - 1) // cfg.block_n
    row_block, column_block = T.block_id(cfg, 0) // column_blocks, T.block_id(cfg, 0) % column_blocks
    first_batch, last_batch = share_of_block(T.block_id(cfg, 2), q.shape[0], 1, over_batch)
    first_head, last_head = share_of_block(T.block_id(cfg, 1), q.shape[1], 1, over_heads)
    first_row, last_row = share_of_block(row_block, q.shape[2], cfg.block_m, over_queries)
    first_key, last_key = share_of_block(column_block, k.shape[2], cfg.block_n, over_keys)

    acc = T.zeros(cfg, cfg.block_m, cfg.block_n)
    for batch in range(first_batch, last_batch):
        k_first, k_len = keys_among_rows(seqlens_k, leftpad_k, 0, batch, k.shape[2], False)
        shift = diagonal_shift(q.shape[2], k_first, k_len, bottom_right)
        for head in range(first_head, last_head):
            for row0 in range(first_row, last_row, cfg.block_m):
                row = T.row_index(cfg, cfg.block_m) + row0
                last = min(row0 + cfg.block_m, q.shape[2]) - 1
                begin, end, _, _ = columns_of_block(
                    cfg, row0, last, shift, left, right, k_first, k_len, 0, 0, 1
                )  # fmt: skip
                valid, diagonal = row < q.shape[2], row + shift
                low, high = T.maximum(diagonal - left, k_first), T.minimum(diagonal + right, k_len - 1)
                offset = T.load_rows(offsets[batch, head], (row,), valid)
                delta = T.load_rows(deltas[batch, head], (row,), valid)
                kv_head = head * k.shape[1] // q.shape[1]
                for n0 in range(max(first_key, begin), min(last_key, end), cfg.block_n):
                    # The tile of ds at row0 and n0.
                    keys = T.stage(cfg, T.rows(k[batch, kv_head], 0, k_len), cfg.block_n, cfg.head_dim)
                    values = T.stage(cfg, T.rows(v[batch, kv_head], 0, k_len), cfg.block_n, cfg.value_dim)
                    keys, values = T.fetch(keys, n0), T.fetch(values, n0)
                    q_tile = T.load_operand(cfg, q[batch, head], (row,), 0, cfg.head_dim, valid)
                    keys = T.acquire(keys)
                    s = T.dot_nt(q_tile, keys)
                    keys = T.release(keys)
                    p = exponents_of(
                        cfg, s, offset, scale, softcap, alibi_slopes[batch], bias[batch], mask[batch], head, row,
                        diagonal, n0, valid,
                    )  # fmt: skip
                    p = T.exp2(T.mask_outside(p, n0, low, high))
                    dout_tile = T.load_operand(cfg, dout[batch, head], (row,), 0, cfg.value_dim, valid)
                    values = T.acquire(values)
                    ds = T.dot_nt(dout_tile, values)
                    values = T.release(values)
                    acc = acc + gradient_of(cfg, ds, p, delta, True)
                    T.finish(keys)
                    T.finish(values)

    row = T.row_index(cfg, cfg.block_m) + first_row
    out = dbias[T.block_id(cfg, 2), T.block_id(cfg, 1)]
    if over_keys > 0:
        T.store_rows(out, (row, 0), T.rowsum(acc), row < out.shape[0])
    else:
        T.store_tile(out, (row,), first_key, acc, row < out.shape[0])
