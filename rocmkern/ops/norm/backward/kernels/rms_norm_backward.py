"""Gradients of an RMS norm ``out = xh * w`` (Zhang, Sennrich, 2019), with ``xh = x r`` and ``w = weight + offset``.

With ``r = 1 / sqrt(mean(x^2) + eps)``, the means being those of a row, and dresidual the gradient of x as a result::

    g       = dout * w
    dx      = r (g - xh mean(g xh)) + dresidual
    dweight = sum over rows of dout * xh

Squares are summed as in `rms_norm`, and so is ``mean(g xh)``: in units of a scale of its row.

Shapes (any strides; weight has one row)::

    dout, x, dresidual, dx [R, N]   weight [1, N]   parts [P, N], float32, contiguous

Mapping: the rows are cut into row blocks of ``block_m`` rows. Block n of ``step`` takes the row blocks n, n + step,
n + 2 step, ..., ``block_n`` columns at a time, and adds up dweight in rows ``n * block_m`` on of parts, of
which ``column_sums`` makes one. It reads a row of one tile once, and a longer one twice. Grid: (step, 1, 1). Shared
memory: what reductions take, if rows lie along several waves.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.norm.kernels.rms_norm import load_weight


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether a tile holds whole rows; whether
    there is a dresidual, and whether an offset."""

    block_m: int = 16
    block_n: int = 64
    single: bool = False
    with_residual: bool = False
    with_offset: bool = True


@T.device
def store_gradient(cfg, g, xh, mean, scale, factor, dresidual, dx, row, n0, valid):
    t = T.multiply_rows(g - xh * mean, scale, factor)
    if cfg.with_residual:
        t = t + T.load_tile(cfg, dresidual, (row,), n0, cfg.block_n, valid)
    T.store_tile(dx, (row,), n0, t, valid)


@T.device
def add_part(cfg, parts, place, n0, t, first):
    """Add a tile to the block's rows of parts, or begin them with it."""
    if not first:
        t = t + T.load_tile(cfg, parts, (place,), n0, cfg.block_n, place >= 0)
    T.store_tile(parts, (place,), n0, t, place >= 0)


@T.device
def of_whole_rows(
    cfg, dout, x, weight, dresidual, dx, total_dweight, row, valid, root_eps, first_scale, inverse_n, weight_offset
):  # fmt: skip
    """Write the gradient of rows that a tile holds, and add their gradients of the weights to a tile."""
    t = T.load_tile(cfg, x, (row,), 0, cfg.block_n, valid)
    d = T.load_tile(cfg, dout, (row,), 0, cfg.block_n, valid)
    w = load_weight(cfg, weight, weight_offset, 0, valid)
    scale = T.full_rows(cfg, cfg.block_m, first_scale)
    scale, total = T.square_step(t, scale, T.full_rows(cfg, cfg.block_m, 0.0))
    eps = root_eps * scale
    factor = T.reciprocal_or_zero(T.sqrt(total * inverse_n + eps * eps))
    t = T.multiply_rows(t, scale, factor)
    total_dweight = T.multiply_add(T.copy(d), t, total_dweight)
    g = d * w
    mean = T.rowdot(g, t) * inverse_n
    store_gradient(cfg, g, t, mean, scale, factor, dresidual, dx, row, 0, valid)
    return total_dweight


@T.device
def of_rows_in_tiles(
    cfg, dout, x, weight, dresidual, dx, parts, place, first, row, valid, root_eps, first_scale, inverse_n,
    weight_offset,
):  # fmt: skip
    """Write the gradient of rows, and add their gradients of the weights to the block's rows of parts."""
    scale = T.full_rows(cfg, cfg.block_m, first_scale)
    total = T.full_rows(cfg, cfg.block_m, 0.0)
    dot = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, x.shape[1], cfg.block_n):
        t = T.load_tile(cfg, T.reread(x), (row,), n0, cfg.block_n, valid)
        d = T.load_tile(cfg, T.reread(dout), (row,), n0, cfg.block_n, valid)
        before = scale
        scale, total = T.square_step(t, scale, total)
        g = d * load_weight(cfg, T.reread(weight), weight_offset, n0, valid)
        dot = dot * (scale / before) + T.rowdot(g, t * scale)
    eps = root_eps * scale
    factor = T.reciprocal_or_zero(T.sqrt(total * inverse_n + eps * eps))
    mean = dot * inverse_n * factor
    for n0 in range(0, x.shape[1], cfg.block_n):
        t = T.load_tile(cfg, T.reread(x), (row,), n0, cfg.block_n, valid)
        d = T.load_tile(cfg, T.reread(dout), (row,), n0, cfg.block_n, valid)
        w = load_weight(cfg, T.reread(weight), weight_offset, n0, valid)
        t = T.multiply_rows(t, scale, factor)
        add_part(cfg, T.reread(parts), place, n0, T.copy(d) * T.copy(t), first)
        store_gradient(cfg, d * w, t, mean, scale, factor, T.reread(dresidual), T.reread(dx), row, n0, valid)


@T.kernel
def rms_norm_backward(
    cfg, dout: T.Tensor[2], x: T.Tensor[2], weight: T.Tensor[2], dresidual: T.Tensor[2].optional("x"), dx: T.Out[2],
    parts: T.InOut[2], root_eps: T.Float, first_scale: T.Float, inverse_n: T.Float, weight_offset: T.Float, step: T.Int,
):  # fmt: skip
    first_row = T.row_index(cfg, cfg.block_m)
    begin = T.block_id(cfg, 0) * cfg.block_m
    place = first_row + begin
    total_dweight = T.zeros(cfg, cfg.block_m, cfg.block_n)
    for row0 in range(begin, x.shape[0], step * cfg.block_m):
        row = first_row + row0
        valid = row < x.shape[0]
        if cfg.single:
            total_dweight = of_whole_rows(
                cfg, dout, x, weight, dresidual, dx, total_dweight, row, valid, root_eps, first_scale,
                inverse_n, weight_offset,
            )  # fmt: skip
        else:
            of_rows_in_tiles(
                cfg, dout, x, weight, dresidual, dx, parts, place, row0 == begin, row, valid,
                root_eps, first_scale, inverse_n, weight_offset,
            )  # fmt: skip
    if cfg.single:
        T.store_tile(parts, (place,), 0, total_dweight, place >= 0)
