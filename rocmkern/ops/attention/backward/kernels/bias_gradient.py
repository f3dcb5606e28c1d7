"""The gradient of a bias of attention's scores: that of the scores, added up over what the bias was repeated for.

For a query i and a key j of a head, with ds as `softmax_gradient` says::

    dbias_ij = sum ds_ij          over the batch elements, heads, queries and keys that share the number

Shapes (any strides)::

    q [B, Hq, Sq, D]   k [B, Hkv, Sk, D]   v [B, Hkv, Sk, Dv]   dout [B, Hq, Sq, Dv]
    offsets, deltas [B, Hq, Sq] float32
    dbias [B or 1, Hq or 1, R, C]        C is Sk or 1; R is Sq or ``block_m``

Along an axis where dbias is shorter numbers are added up. With ``block_m`` rows row r has the sum of every
``block_m``-th query from r on: the rows remain to be added up.

Mapping: a block computes ``block_m`` rows and ``block_n`` columns, or all of them where they are added up; its grid
index is (row block x column block, head, batch). It adds up in a fixed order: batch, head, query, key.

What the arguments say of a tile is read again for each tile, and so is where the block's share begins and ends: all of
it together is more than AMD GPUs have scalar registers.

Shared memory: one window of keys and one of values.
"""

from rocmkern import tile as T
from rocmkern.ops.attention.backward.kernels.softmax_gradient import Config as Config
from rocmkern.ops.attention.backward.kernels.softmax_gradient import exponents_of, gradient_of
from rocmkern.ops.attention.kernels.visibility import columns_of_block, diagonal_shift, keys_among_rows


@T.device
def share_of_block(index, extent, step, length):
    """What a block goes over along an axis: from where to where. A result that is shorter is added up along it."""
    if length < extent:
        return 0, extent
    return index * step, min((index + 1) * step, extent)


@T.device
def queries_of_block(cfg, q, dbias):
    """The first query of a block, and the end of its queries."""
    out = T.reread(dbias)
    row_block = T.block_id(cfg, 0) // ((out.shape[3] + cfg.block_n - 1) // cfg.block_n)
    return share_of_block(row_block, T.reread(q).shape[2], cfg.block_m, out.shape[2])


@T.device
def keys_of_block(cfg, k, dbias):
    """The first key of a block, and the end of its keys."""
    out = T.reread(dbias)
    column_block = T.block_id(cfg, 0) % ((out.shape[3] + cfg.block_n - 1) // cfg.block_n)
    return share_of_block(column_block, T.reread(k).shape[2], cfg.block_n, out.shape[3])


@T.device
def keys_of_batch(batch, q, k, seqlens_k, leftpad_k, bottom_right):
    """Rows of queries; the first key and the end of the keys; the diagonal key of a query less it."""
    rows, k_rows = T.reread(q).shape[2], T.reread(k).shape[2]
    k_first, k_len = keys_among_rows(T.reread(seqlens_k), T.reread(leftpad_k), 0, batch, k_rows, False)
    return rows, k_first, k_len, diagonal_shift(rows, k_first, k_len, bottom_right)


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
):
    first_batch, last_batch = share_of_block(T.block_id(cfg, 2), q.shape[0], 1, dbias.shape[0])
    acc = T.zeros(cfg, cfg.block_m, cfg.block_n)
    for batch in range(first_batch, last_batch):
        first_head, last_head = share_of_block(T.block_id(cfg, 1), T.reread(q).shape[1], 1, T.reread(dbias).shape[1])
        for head in range(first_head, last_head):
            first_row, last_row = queries_of_block(cfg, q, dbias)
            for row0 in range(first_row, last_row, cfg.block_m):
                rows, k_first, k_len, shift = keys_of_batch(batch, q, k, seqlens_k, leftpad_k, bottom_right)
                last = min(row0 + cfg.block_m, rows) - 1
                begin, end, _, _ = columns_of_block(
                    cfg, row0, last, shift, left, right, k_first, k_len, 0, 0, 1
                )  # fmt: skip
                first_key, last_key = keys_of_block(cfg, k, dbias)
                for n0 in range(max(first_key, begin), min(last_key, end), cfg.block_n):
                    # The tile of ds at row0 and n0.
                    rows, k_first, k_len, shift = keys_of_batch(batch, q, k, seqlens_k, leftpad_k, bottom_right)
                    kv_head = head * T.reread(k).shape[1] // T.reread(q).shape[1]
                    keys = T.stage(cfg, T.rows(T.reread(k)[batch, kv_head], 0, k_len), cfg.block_n, cfg.head_dim)
                    values = T.stage(cfg, T.rows(T.reread(v)[batch, kv_head], 0, k_len), cfg.block_n, cfg.value_dim)
                    keys, values = T.fetch(keys, n0), T.fetch(values, n0)
                    row = T.row_index(cfg, cfg.block_m) + row0
                    valid, diagonal = row < rows, row + shift
                    offset = T.load_rows(T.reread(offsets)[batch, head], (row,), valid)
                    delta = T.load_rows(T.reread(deltas)[batch, head], (row,), valid)
                    q_tile = T.load_operand(cfg, T.reread(q)[batch, head], (row,), 0, cfg.head_dim, valid)
                    keys = T.acquire(keys)
                    s = T.dot_nt(q_tile, keys)
                    keys = T.release(keys)
                    slopes, biases, masks = T.reread(alibi_slopes)[batch], T.reread(bias)[batch], T.reread(mask)[batch]
                    p = exponents_of(
                        cfg, s, offset, scale, softcap, slopes, biases, masks, head, row, diagonal, n0, valid
                    )
                    low, high = T.maximum(diagonal - left, k_first), T.minimum(diagonal + right, k_len - 1)
                    p = T.exp2(T.mask_outside(p, n0, low, high))
                    dout_tile = T.load_operand(cfg, T.reread(dout)[batch, head], (row,), 0, cfg.value_dim, valid)
                    values = T.acquire(values)
                    ds = T.dot_nt(dout_tile, values)
                    values = T.release(values)
                    acc = acc + gradient_of(cfg, ds, p, delta, True)
                    T.finish(keys)
                    T.finish(values)

    (first_row, _), (first_key, _) = queries_of_block(cfg, q, dbias), keys_of_block(cfg, k, dbias)
    row = T.row_index(cfg, cfg.block_m) + first_row
    out = dbias[T.block_id(cfg, 2), T.block_id(cfg, 1)]
    if out.shape[1] < k.shape[2]:
        T.store_rows(out, (row, 0), T.rowsum(acc), row < out.shape[0])
    else:
        T.store_tile(out, (row,), first_key, acc, row < out.shape[0])
