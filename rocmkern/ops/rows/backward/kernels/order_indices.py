"""Indices in ascending order, equal ones in their own: what lies at place p, and which index that was.

The place of an index is the number of those that are smaller, or equal and earlier: all are compared with all. It is
for indices in the memory of a GPU, which nobody else can order without waiting for them.

Shapes (any strides)::

    indices [A, B, C, D], int32 or int64   order, ids [T], int32, with T = A B C D   error [1], float32

An index outside 0 .. rows - 1 counts as -1 or as ``rows``, and writes 1 to ``error``, which nothing else writes.

Mapping: a block takes ``block_m`` indices, and goes through all. Grid: (row block, 1, 1). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` indices."""

    block_m: int = 16


@T.kernel
def order_indices(
    cfg, indices: T.Tensor[4], order: T.Out[1], ids: T.Out[1], error: T.Out[1], rows: T.Int
):  # fmt: skip
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < order.shape[0]
    d, rest = row % indices.shape[3], row // indices.shape[3]
    c, rest = rest % indices.shape[2], rest // indices.shape[2]
    index = T.load_integers(indices, (rest // indices.shape[1], rest % indices.shape[1], c, d), valid)
    outside = T.where((index >= 0) & (index < rows), 0, 1) == 1
    T.store_rows(error, (0,), T.full_rows(cfg, cfg.block_m, 1.0), valid & outside)
    index = T.minimum(T.maximum(index, -1), rows)
    place = T.full_rows(cfg, cfg.block_m, 0)
    number = 0
    for i in range(indices.shape[0]):
        for j in range(indices.shape[1]):
            for k in range(indices.shape[2]):
                for l in range(indices.shape[3]):
                    other = min(max(int(indices[i, j, k, l]), -1), rows)
                    earlier = T.where(index == other, T.where(row > number, 1, 0), 0)
                    place = place + T.where(index > other, 1, earlier)
                    number += 1
    T.store_rows(order, (place,), row, valid)
    T.store_rows(ids, (place,), index, valid)
