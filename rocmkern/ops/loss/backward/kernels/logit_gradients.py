"""Gradients of the logits of some tokens, which are computed again.

With ``z`` the logits before the cap, ``y`` behind it, ``p = exp(y - lse)``, ``f`` the factor of the row and ``s`` the
label smoothing over V tokens::

    dz = f (p (1 + 2 z_loss lse) - s / V - (1 - s) [token is the target]) (1 - (y / cap)^2)

and 0 in a row whose factor is 0, whatever its logits are.

Shapes (x, weight, out: any strides)::

    x [M, K]   weight [N, K]   bias [1, N] or [0, 0]   target [M], int32 or int64   lse, factors [M] float32
    out [M, N]: of the tokens from ``first`` on

Mapping. As `rocmkern.ops.linear.kernels.matmul`: a block computes ``block_m`` x ``block_n`` logits and walks along K,
``block_k`` at a time, with ``num_stages`` windows of each side ahead. Grid: (row block and column block, 1, 1), see
`product_block`.

Shared memory: windows of each side, ``(block_m + block_n) * block_k`` elements in use and as many for each on its way.
"""

from rocmkern import tile as T
from rocmkern.ops.linear.kernels.product_block import product_block
from rocmkern.ops.loss.kernels.logits import LOG2_E, Config, logits_of

__all__ = ["Config", "logit_gradients"]


def of_share(logit, lse, scale, share):
    """``p (1 + 2 z_loss lse) - s / V``."""
    return T.exp2((logit - lse) * LOG2_E) * scale - share


def less_target(gradient, distance, kept):
    """Less ``1 - s`` at a distance of 0 from the target."""
    return T.where(distance == 0.0, gradient - kept, gradient)


def through_cap(gradient, logit, inverse):
    """The slope of the cap at a logit behind it."""
    ratio = logit * inverse
    return gradient * (1.0 - ratio * ratio)


def by_factor(gradient, factor):
    """0 for a factor of 0."""
    return T.where(factor == 0.0, 0.0, gradient * factor)


@T.kernel
def logit_gradients(
    cfg,
    x: T.Tensor[2],
    weight: T.Tensor[2],
    bias: T.Tensor[2].optional("x"),
    target: T.Tensor[1],
    lse: T.Tensor[1],
    factors: T.Tensor[1],
    out: T.Out[2],
    first: T.Int,
    cap: T.Float,
    kept: T.Float,
    share: T.Float,
    z_loss: T.Float,
):
    row_blocks = (x.shape[0] + cfg.block_m - 1) // cfg.block_m
    column_blocks = (out.shape[1] + cfg.block_n - 1) // cfg.block_n
    row_block, column_block = product_block(cfg, T.block_id(cfg, 0), row_blocks, column_blocks)
    row0, col0 = row_block * cfg.block_m, column_block * cfg.block_n
    row = T.row_index(cfg, cfg.block_m) + row0
    valid = row < x.shape[0]

    left = T.stage(cfg, x, cfg.block_m, cfg.block_k)
    right = T.stage(cfg, weight, cfg.block_n, cfg.block_k)
    for ahead in range(0, cfg.num_stages * cfg.block_k, cfg.block_k):
        left = T.fetch(left, row0, ahead)
        right = T.fetch(right, col0, ahead)
    z = T.zeros(cfg, cfg.block_m, cfg.block_n)
    for k0 in range(0, x.shape[1], cfg.block_k):
        left = T.acquire(left)
        right = T.acquire(right)
        left = T.fetch(left, row0, k0 + cfg.num_stages * cfg.block_k)
        right = T.fetch(right, col0, k0 + cfg.num_stages * cfg.block_k)
        z = T.dot_nt(left, right, z)
        left = T.release(left)
        right = T.release(right)
    T.finish(left)
    T.finish(right)

    z = logits_of(cfg, z, bias, col0, cap, valid)
    log_sum = T.load_rows(lse, (row,), valid)
    label = T.load_integers(target, (row,), valid) - first
    dz = T.map(of_share, T.copy(z), log_sum, log_sum * (2.0 * z_loss) + 1.0, share)
    dz = T.map(less_target, dz, T.distance(cfg, label, col0, cfg.block_n), kept)
    if cap > 0.0:
        dz = T.map(through_cap, dz, z, 1.0 / cap)
    dz = T.map(by_factor, dz, T.load_rows(factors, (row,), valid))
    T.store_tile(out, (row,), col0, dz, valid)
