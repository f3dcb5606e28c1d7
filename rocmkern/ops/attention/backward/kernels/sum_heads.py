"""Sums of a number of each query over the queries of a head, of every sequence or of all of them.

    out[n, h] = sum_i x[n, h, i]          in a fixed order; with one row of out, over n too

Shapes (any strides)::

    x [B, H, S] float32   out [N, H]

With cu_seqlens x has one batch element, and the queries of sequence n are ``cu[n] .. cu[n + 1]``. Mapping: a block adds
up ``block_m`` numbers at a time, `RUN` times, and then these sums. Grid: (1, head, row of out). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.attention.kernels.visibility import rows_of_sequence

RUN = 64


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` numbers at a time."""

    block_m: int = 64


@T.kernel
def sum_heads(cfg, x: T.Tensor[3], cu_seqlens: T.Tensor[1].optional("int32"), out: T.Out[2]):
    sequence, head = T.block_id(cfg, 2), T.block_id(cfg, 1)
    first, start, length = rows_of_sequence(cu_seqlens, sequence, x.shape[2])
    last = first + 1
    if out.shape[0] == 1:
        last = x.shape[0]

    total = T.full_rows(cfg, cfg.block_m, 0.0)
    for batch in range(first, last):
        for begin in range(0, length, cfg.block_m * RUN):
            some = T.full_rows(cfg, cfg.block_m, 0.0)
            for row0 in range(begin, min(begin + cfg.block_m * RUN, length), cfg.block_m):
                row = T.row_index(cfg, cfg.block_m) + row0
                some = some + T.load_rows(x[batch, head], (row + start,), row < length)
            total = total + some
    only = T.row_index(cfg, cfg.block_m) == 0
    T.store_rows(out, (sequence, head), T.full_rows(cfg, cfg.block_m, T.total(total)), only)
