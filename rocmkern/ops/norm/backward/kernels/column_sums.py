"""Sums of the parts of a gradient over blocks: ``out_n = sum over p of parts_np``, in float32, in one order.

With ``accumulates``, what is in out is added, before the only rounding.

Shapes (any strides): parts [N, P], float32, out [N]. Mapping: a block takes ``block_m`` sums, ``block_n`` parts at a
time. Grid: (block of sums, 1, 1). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` sums by ``block_n`` parts; whether out has a summand."""

    block_m: int = 16
    block_n: int = 64
    accumulates: bool = False


@T.kernel
def column_sums(cfg, parts: T.Tensor[2], out: T.InOut[1]):
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[0]
    total = T.full_rows(cfg, cfg.block_m, 0.0)
    for p0 in range(0, parts.shape[1], cfg.block_n):
        total = total + T.rowsum(T.load_tile(cfg, parts, (row,), p0, cfg.block_n, valid))
    if cfg.accumulates:
        total = total + T.load_rows(out, (row,), valid)
    T.store_rows(out, (row,), total, valid)
