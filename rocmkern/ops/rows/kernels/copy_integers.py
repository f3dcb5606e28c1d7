"""``out = x`` of integers, a view of any strides in another order of memory. What int32 does not hold is clipped.

Shapes (any strides): x [A, B, R, N], int32 or int64; out [A, B, R, N], int32. Mapping: a block takes ``block_m``
elements of R rows. Grid: (element block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` elements."""

    block_m: int = 16


@T.kernel
def copy_integers(cfg, x: T.Tensor[4], out: T.Out[4]):
    a, b = T.block_id(cfg, 2), T.block_id(cfg, 1)
    element = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = element < out.shape[2] * out.shape[3]
    row, column = element // out.shape[3], element % out.shape[3]
    T.store_rows(out[a, b], (row, column), T.load_integers(x[a, b], (row, column), valid), valid)
