"""A kernel of one's own: log-softmax over the last axis, ``out = x - max(x) - ln(sum(exp(x - max(x))))``.

Run it (``python examples/custom_kernel.py``): the same function is interpreted by the python target and compiled by the
cpu target, and both are checked against float64.
"""

import sys
from dataclasses import dataclass

import numpy as np

import rocmkern
from rocmkern import tile as T
from rocmkern.targets import current_target

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Config(T.Config):
    """What is fixed at compile time: a block takes ``block_m`` rows, ``block_n`` columns at a time."""

    block_m: int = 16
    block_n: int = 256


@T.kernel
def log_softmax_kernel(cfg, x: T.Tensor[2], out: T.Out[2]):
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[0]
    n_columns = x.shape[1]

    m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)  # running maximum and sum of each row
    l = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.pad_columns(T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid), n0, n_columns, T.NEG_INF)
        new = T.maximum(m, T.rowmax(t))
        base = T.where(new == T.NEG_INF, 0.0, new)  # -inf - (-inf) would be NaN
        l = l * T.exp2((m - base) * LOG2_E) + T.rowsum(T.exp2((t - base) * LOG2_E))
        m = new

    log_sum = m + T.log2(l) * LN_2
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid)
        T.store_tile(out, (row,), n0, t - log_sum, valid)


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Log-softmax of the rows of ``x`` ``[R, N]`` (float32, float16 or bfloat16, any strides) on the chosen target."""
    target = current_target()
    cfg = Config(arch=target.arch)
    out = np.empty(x.shape, x.dtype)
    target.launch(log_softmax_kernel, cfg, (-(-x.shape[0] // cfg.block_m), 1, 1), [x, out])
    return out


def reference(x: np.ndarray) -> np.ndarray:
    """The same in float64."""
    shifted = x.astype(np.float64) - x.astype(np.float64).max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def main() -> int:
    """Run on both targets and print the largest error of each."""
    x = np.random.default_rng(0).normal(0, 10, (50, 1000)).astype(np.float32)
    worst = 0.0
    for name in ("python", "cpu"):
        with rocmkern.use(name):
            error = float(np.abs(log_softmax(x) - reference(x)).max())
        print(f"log_softmax on {name:<6} {x.shape}: largest error {error:.1e}")
        worst = max(worst, error)
    return 0 if worst < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
