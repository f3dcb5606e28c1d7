"""Sums over a share of the vocabulary, of logits that are never written.

With ``z = softcap(x @ weight^T + bias)``, for each row over its share of the tokens::

    parts[0] = max z     parts[1] = sum exp(z - max z)     parts[2] = z of the target, or 0     parts[3] = sum z

Shapes (x, weight: any strides)::

    x [M, K]   weight [V, K]   bias [1, V] or [0, 0]   target [M], int32 or int64   parts [4, shares, M] float32

Mapping. A block takes ``block_m`` rows and ``share`` tokens, ``block_n`` of them at a time, and walks along K for each
of these, ``block_k`` at a time. The maximum and the sum are running ones (Milakov and Gimelshein, 2018). Windows of
both sides move along, ``num_stages`` of them ahead. Grid: (row block, share, 1). Blocks side by side have the same
tokens, so they share what they read of the weights.

Shared memory: windows of each side, ``(block_m + block_n) * block_k`` elements in use and as many for each on its way.
"""

from rocmkern import tile as T
from rocmkern.ops.loss.kernels.logits import LOG2_E, Config, logits_of

__all__ = ["Config", "logit_sums"]


def of_target(distance, logit):
    """The logit at a distance of 0 from the target, else 0."""
    return T.where(distance == 0.0, logit, 0.0)


@T.kernel
def logit_sums(
    cfg,
    x: T.Tensor[2],
    weight: T.Tensor[2],
    bias: T.Tensor[2].optional("x"),
    target: T.Tensor[1],
    parts: T.Out[3],
    cap: T.Float,
    share: T.Int,
):
    tokens = weight.shape[0]
    row0 = T.block_id(cfg, 0) * cfg.block_m
    row = T.row_index(cfg, cfg.block_m) + row0
    valid = row < x.shape[0]
    label = T.load_integers(target, (row,), valid)
    number = T.block_id(cfg, 1)
    begin = number * share
    end = min(begin + share, tokens)
    steps = max((x.shape[1] + cfg.block_k - 1) // cfg.block_k, 1)

    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    picked = T.full_rows(cfg, cfg.block_m, 0.0)
    total = T.full_rows(cfg, cfg.block_m, 0.0)
    left = T.stage(cfg, x, cfg.block_m, cfg.block_k)
    right = T.stage(cfg, weight, cfg.block_n, cfg.block_k)
    for ahead in range(cfg.num_stages):
        left = T.fetch(left, row0, ahead % steps * cfg.block_k)
        right = T.fetch(right, begin + ahead // steps * cfg.block_n, ahead % steps * cfg.block_k)
    for col0 in range(begin, end, cfg.block_n):
        z = T.zeros(cfg, cfg.block_m, cfg.block_n)
        for step in range(steps):
            left = T.acquire(left)
            right = T.acquire(right)
            # After the last step of these tokens comes the first one of the next tokens.
            k0 = (step + cfg.num_stages) % steps * cfg.block_k
            left = T.fetch(left, row0, k0)
            right = T.fetch(right, col0 + (step + cfg.num_stages) // steps * cfg.block_n, k0)
            z = T.dot_nt(left, right, z)
            left = T.release(left)
            right = T.release(right)
        z = logits_of(cfg, z, bias, col0, cap, valid)
        picked = picked + T.rowsum(T.map(of_target, T.distance(cfg, label, col0, cfg.block_n), T.copy(z)))
        total = total + T.rowsum(T.pad_columns(T.copy(z), col0, tokens, 0.0))
        z = T.pad_columns(z, col0, tokens, T.NEG_INF)
        new = T.maximum(m, T.rowmax(z))
        base = T.where(new == T.NEG_INF, 0.0, new)
        l = l * T.exp2((m - base) * LOG2_E) + T.rowsum(T.exp2((z - base) * LOG2_E))
        m = new
    T.finish(left)
    T.finish(right)

    T.store_rows(parts, (0, number, row), m, valid)
    T.store_rows(parts, (1, number, row), l, valid)
    T.store_rows(parts, (2, number, row), picked, valid)
    T.store_rows(parts, (3, number, row), total, valid)
