"""``out = ln(sum(exp(x)))`` of each row, without overflow: a running maximum, and a sum relative to it.

Shapes: x [R, N], out [R]. A block takes ``block_m`` rows, ``block_n`` columns at a time. Grid: (row block, 1, 1).
"""

from dataclasses import dataclass

import numpy as np

from rocmkern import tile as T
from rocmkern.targets import current_target

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def log_sum_exp_kernel(cfg, x: T.Tensor[2], out: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[0]
    n_columns = x.shape[1]
    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.pad_columns(T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid), n0, n_columns, T.NEG_INF)
        new = T.maximum(m, T.rowmax(t))
        base = T.where(new == T.NEG_INF, 0.0, new)
        l = l * T.exp2((m - base) * LOG2_E) + T.rowsum(T.exp2((t - base) * LOG2_E))
        m = new
    base = T.where(m == T.NEG_INF, 0.0, m)
    T.store_rows(out, (row,), base + T.log2(l) * LN_2, valid)


def log_sum_exp(x: np.ndarray, *, out: np.ndarray | None = None) -> np.ndarray:
    """Log-sum-exp of the rows of ``x`` ``[R, N]``, in x's dtype; minus infinity for an empty row."""
    target = current_target()
    if out is None:
        out = np.empty(x.shape[:1], x.dtype)
    if x.shape[0]:
        cfg = Config(arch=target.arch)
        target.launch(log_sum_exp_kernel, cfg, (-(-x.shape[0] // cfg.block_m), 1, 1), [x, out])
    return out
