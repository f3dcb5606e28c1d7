"""Sum of the losses of rows, or their mean over the rows that count: ``out = sum loss``, ``out = sum loss / count``.

Without a row that counts the mean is 0 / 0, which is NaN, as PyTorch's.

Shapes::

    loss [M] float32   target [M], int32 or int64   out [1] float32

Mapping: one block adds up ``block_m`` rows at a time, `RUN` times, and then these sums: always in the same order, and
none is lost beside a large one. Grid: (1, 1, 1). No shared memory.
"""

from rocmkern import tile as T
from rocmkern.ops.loss.kernels.row_losses import Config, is_counted

__all__ = ["Config", "sum_losses"]

RUN = 64


@T.device
def count_of(cfg, target, ignored, tokens):
    """How many targets count: a number."""
    first = T.row_index(cfg, cfg.block_m)
    count = T.full_rows(cfg, cfg.block_m, 0.0)
    for row0 in range(0, target.shape[0], cfg.block_m):
        valid = first + row0 < target.shape[0]
        label = T.load_integers(target, (first + row0,), valid)
        count = count + T.where(valid & is_counted(label, ignored, tokens), 1.0, 0.0)
    return T.total(count)


@T.kernel
def sum_losses(cfg, loss: T.Tensor[1], target: T.Tensor[1], out: T.Out[1], tokens: T.Int, ignored: T.Int, mean: T.Int):
    first = T.row_index(cfg, cfg.block_m)
    sums = T.full_rows(cfg, cfg.block_m, 0.0)
    for begin in range(0, loss.shape[0], cfg.block_m * RUN):
        some = T.full_rows(cfg, cfg.block_m, 0.0)
        for row0 in range(begin, min(begin + cfg.block_m * RUN, loss.shape[0]), cfg.block_m):
            some = some + T.load_rows(loss, (first + row0,), first + row0 < loss.shape[0])
        sums = sums + some
    result = T.full_rows(cfg, cfg.block_m, T.total(sums))
    if mean == 1:
        result = result / T.full_rows(cfg, cfg.block_m, count_of(cfg, target, ignored, tokens))
    T.store_rows(out, (0,), result, first == 0)
