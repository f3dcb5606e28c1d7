"""Loss and log-sum-exp of each row, from the sums over shares of the vocabulary that `logit_sums` writes.

With ``s`` the label smoothing and ``z`` the logits of V tokens::

    lse  = ln sum_j exp(z_j)
    loss = lse - (1 - s) z_target - s / V sum_j z_j + z_loss lse^2

A row whose target is ``ignored`` has the loss 0. So has one whose target is no token, which writes 1 to ``error``,
which nothing else writes.

Shapes::

    parts [4, shares, M] float32   target [M], int32 or int64   loss, lse [M] float32, any strides   error [1], float32

Mapping: a block takes ``block_m`` rows, and the shares one after the other. Grid: (row block, 1, 1). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.loss.kernels.logits import LN_2, LOG2_E


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows."""

    block_m: int = 16


@T.device
def is_counted(label, ignored, tokens):
    """Rows of bool: whether a target is a token that counts."""
    return (T.where(label == ignored, 0, 1) == 1) & ((label >= 0) & (label < tokens))


@T.kernel
def row_losses(
    cfg,
    parts: T.Tensor[3],
    target: T.Tensor[1],
    loss: T.Out[1],
    lse: T.Out[1],
    error: T.Out[1],
    tokens: T.Int,
    ignored: T.Int,
    smoothing: T.Float,
    z_loss: T.Float,
):
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < lse.shape[0]
    label = T.load_integers(target, (row,), valid)
    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    picked = T.full_rows(cfg, cfg.block_m, 0.0)
    total = T.full_rows(cfg, cfg.block_m, 0.0)
    for share in range(parts.shape[1]):
        part = T.load_rows(parts, (0, share, row), valid)
        new = T.maximum(m, part)
        base = T.where(new == T.NEG_INF, 0.0, new)
        mine = T.load_rows(parts, (1, share, row), valid)
        l = l * T.exp2((m - base) * LOG2_E) + mine * T.exp2((part - base) * LOG2_E)
        picked = picked + T.load_rows(parts, (2, share, row), valid)
        total = total + T.load_rows(parts, (3, share, row), valid)
        m = new

    log_sum = m + T.log2(l) * LN_2
    value = log_sum - picked * (1.0 - smoothing)
    if smoothing > 0.0:
        value = value - total * (smoothing / tokens)
    if z_loss > 0.0:
        value = value + log_sum * log_sum * z_loss
    counted = is_counted(label, ignored, tokens)
    known = T.where(label == ignored, 1, T.where(counted, 1, 0))
    T.store_rows(lse, (row,), log_sum, valid)
    T.store_rows(loss, (row,), T.where(counted, value, 0.0), valid)
    T.store_rows(error, (0,), T.full_rows(cfg, cfg.block_m, 1.0), valid & (known == 0))
