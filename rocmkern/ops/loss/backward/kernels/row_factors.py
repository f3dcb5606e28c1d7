"""What the gradient of each row's loss is multiplied by: ``dloss``, over the number of rows that count for a mean.

Shapes::

    dloss [M] float32, any strides   target [M], int32 or int64   out [M] float32

A row that does not count has 0. Mapping: one block, ``block_m`` rows at a time. Grid: (1, 1, 1). No shared memory.
"""

from rocmkern import tile as T
from rocmkern.ops.loss.kernels.row_losses import Config, is_counted
from rocmkern.ops.loss.kernels.sum_losses import count_of

__all__ = ["Config", "row_factors"]


@T.kernel
def row_factors(
    cfg, dloss: T.Tensor[1], target: T.Tensor[1], out: T.Out[1], tokens: T.Int, ignored: T.Int, mean: T.Int
):
    first = T.row_index(cfg, cfg.block_m)
    share = T.full_rows(cfg, cfg.block_m, 1.0)
    if mean == 1:
        share = T.reciprocal_or_zero(T.full_rows(cfg, cfg.block_m, count_of(cfg, target, ignored, tokens)))
    for row0 in range(0, out.shape[0], cfg.block_m):
        row = first + row0
        valid = row < out.shape[0]
        counted = is_counted(T.load_integers(target, (row,), valid), ignored, tokens)
        factor = T.load_rows(dloss, (row,), valid) * share
        T.store_rows(out, (row,), T.where(counted, factor, 0.0), valid)
