"""RMS normalisation of quantized rows: ``out = x / sqrt(mean(x^2) + eps) * (weight + offset)``, x the decoded row.

Everything is divided by the row's largest number (or by sqrt(eps), if that is larger) before it is squared, so that no
square overflows or vanishes::

    s   = max(max|x|, sqrt(eps), 2^-126)
    out = x / s / sqrt(mean((x / s)^2) + (sqrt(eps) / s)^2) * (weight + offset)

Shapes::

    blocks uint8 [A, B, R, bytes], the bytes of a row side by side   weight [1, N]   out [A, B, R, N], any strides

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time, and decodes them three times: for the largest
number, for the sum, and for the result. Grid: (row block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T

SMALLEST = 2.0**-126


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns of a quantized format."""

    block_m: int = 16
    block_n: int = 64
    format: str = "q4_0"


@T.kernel
def dequantize_rms_norm(
    cfg,
    blocks: T.Tensor[4],
    weight: T.Tensor[2],
    out: T.Out[4],
    root_eps: T.Float,
    inverse_length: T.Float,
    offset: T.Float,
):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]
    source = T.quantized(blocks[a, b], cfg.format, out)

    largest = T.full_rows(cfg, cfg.block_m, SMALLEST)
    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, source, (row,), n0, cfg.block_n, valid)
        largest = T.maximum(largest, T.rowmax(T.absolute(t)))
    inverse = T.reciprocal_or_zero(T.maximum(largest, root_eps))

    squares = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, source, (row,), n0, cfg.block_n, valid) * inverse
        squares = squares + T.rowdot(t, t)
    eps = inverse * root_eps
    factor = T.reciprocal_or_zero(T.sqrt(squares * inverse_length + eps * eps))

    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, source, (row,), n0, cfg.block_n, valid) * inverse * factor
        w = T.load_tile(cfg, weight, (0,), n0, cfg.block_n, valid) + offset
        T.store_tile(out[a, b], (row,), n0, t * w, valid)
