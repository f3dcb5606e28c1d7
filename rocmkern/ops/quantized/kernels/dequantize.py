"""Numbers of quantized blocks: ``out[row, column]`` is the element of the row's blocks, rounded to out's dtype.

Shapes::

    blocks uint8 [A, B, R, bytes], the bytes of a row side by side   out [A, B, R, N], any strides

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time. Grid: (row block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns of a quantized format."""

    block_m: int = 16
    block_n: int = 64
    format: str = "q4_0"


@T.kernel
def dequantize(cfg, blocks: T.Tensor[4], out: T.Out[4]):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]
    source = T.quantized(blocks[a, b], cfg.format, out)
    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, source, (row,), n0, cfg.block_n, valid)
        T.store_tile(out[a, b], (row,), n0, t, valid)
