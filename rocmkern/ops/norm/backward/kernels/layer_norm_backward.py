"""Gradients of a layer norm ``out = xh * weight + bias`` (Ba, Kiros, Hinton, 2016), with ``xh = (x - mean(x)) r``.

With ``r = 1 / sqrt(var(x) + eps)``, the means being those of a row::

    g       = dout * weight
    dx      = r (g - mean(g) - xh mean(g xh))
    dweight = sum over rows of dout * xh
    dbias   = sum over rows of dout

Mean and variance are those of `layer_norm`.

Shapes (any strides; weight has one row)::

    dout, x, dx [R, N]   weight [1, N]   dweights, dbiases [P, N], float32, contiguous

Mapping: the rows are cut into row blocks of ``block_m`` rows. Block n of ``step`` takes the row blocks n, n + step,
n + 2 step, ..., ``block_n`` columns at a time, and adds up dweight and dbias in rows ``n * block_m`` on of
dweights and dbiases, of which ``column_sums`` makes one. It reads a row of one tile once, and of a longer one x four
times and dout twice. Grid: (step, 1, 1). Shared memory: what reductions take, if rows lie along several waves.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.norm.backward.kernels.rms_norm_backward import add_part
from rocmkern.ops.norm.kernels.layer_norm import centred, load_weight


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether a tile holds whole rows; whether
    there are weights and biases."""

    block_m: int = 16
    block_n: int = 64
    single: bool = False
    with_weight: bool = True
    with_bias: bool = True


@T.device
def weighted(cfg, d, weight, n0, valid):
    """The gradient of a tile's normalised numbers."""
    if cfg.with_weight:
        d = d * load_weight(cfg, weight, n0, valid)
    return d


@T.device
def store_in_tiles(
    cfg, dout, x, weight, dx, dweights, dbiases, row, place, first, valid, mean, scale, factor, inverse_n
):  # fmt: skip
    n_columns = x.shape[1]
    total = T.full_rows(cfg, cfg.block_m, 0.0)
    dot = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.multiply_rows(T.load_tile(cfg, T.reread(x), (row,), n0, cfg.block_n, valid) - mean, scale, factor)
        g = weighted(cfg, T.load_tile(cfg, T.reread(dout), (row,), n0, cfg.block_n, valid), T.reread(weight), n0, valid)
        total = total + T.rowsum(g)
        dot = dot + T.rowdot(g, t)
    total = total * inverse_n
    dot = dot * inverse_n
    for n0 in range(0, n_columns, cfg.block_n):
        t = T.multiply_rows(T.load_tile(cfg, T.reread(x), (row,), n0, cfg.block_n, valid) - mean, scale, factor)
        d = T.load_tile(cfg, T.reread(dout), (row,), n0, cfg.block_n, valid)
        if cfg.with_weight:
            add_part(cfg, T.reread(dweights), place, n0, T.copy(d) * T.copy(t), first)
        if cfg.with_bias:
            add_part(cfg, T.reread(dbiases), place, n0, T.copy(d), first)
        g = weighted(cfg, d, T.reread(weight), n0, valid) - total - t * dot
        T.store_tile(T.reread(dx), (row,), n0, T.multiply_rows(g, scale, factor), valid)


@T.kernel
def layer_norm_backward(
    cfg, dout: T.Tensor[2], x: T.Tensor[2], weight: T.Tensor[2].optional("x"), dx: T.Out[2],
    dweights: T.InOut[2].optional("float32"), dbiases: T.InOut[2].optional("float32"), root_eps: T.Float,
    first_scale: T.Float, inverse_n: T.Float, step: T.Int,
):  # fmt: skip
    last = (x.shape[1] - 1) // cfg.block_n * cfg.block_n
    if cfg.single:
        last = 0
    first_row = T.row_index(cfg, cfg.block_m)
    begin = T.block_id(cfg, 0) * cfg.block_m
    place = first_row + begin
    total_dweight = T.zeros(cfg, cfg.block_m, cfg.block_n)
    total_dbias = T.zeros(cfg, cfg.block_m, cfg.block_n)
    for row0 in range(begin, x.shape[0], step * cfg.block_m):
        row = first_row + row0
        valid = row < x.shape[0]
        t = T.load_tile(cfg, x, (row,), last, cfg.block_n, valid)
        if cfg.single:
            d = T.load_tile(cfg, dout, (row,), 0, cfg.block_n, valid)
            t, mean, scale, factor = centred(cfg, x, t, row, last, valid, root_eps, first_scale, inverse_n)
            if cfg.with_weight:
                total_dweight = T.multiply_add(T.copy(d), t, total_dweight)
            if cfg.with_bias:
                total_dbias = total_dbias + T.copy(d)
            g = weighted(cfg, d, weight, 0, valid)
            dot = T.rowdot(g, t) * inverse_n
            g = g - T.rowsum(g) * inverse_n - t * dot
            T.store_tile(dx, (row,), 0, T.multiply_rows(g, scale, factor), valid)
        else:
            t, mean, scale, factor = centred(cfg, T.reread(x), t, row, last, valid, root_eps, first_scale, inverse_n)
            store_in_tiles(
                cfg, dout, x, weight, dx, dweights, dbiases, row, place, row0 == begin, valid,
                mean, scale, factor, inverse_n,
            )  # fmt: skip
    if cfg.single and cfg.with_weight:
        T.store_tile(dweights, (place,), 0, total_dweight, place >= 0)
    if cfg.single and cfg.with_bias:
        T.store_tile(dbiases, (place,), 0, total_dbias, place >= 0)
