"""Layer norm over the last axis: ``out = (x - mean) / sqrt(var + eps) * weight + bias`` (Ba, Kiros, Hinton, 2016).

The variance is the mean of ``(x - mean)^2``, summed as in `rms_norm`, never a difference of two means. What the mean
lacks by its rounding shows as the mean of ``x - mean``, and is taken into account.

Shapes (any strides; weight and bias have one row)::

    x, out [A, B, R, N]   weight, bias [1, N]

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time; if it keeps weights and biases, it goes on with
the rows ``step`` row blocks further on. A row of one tile is read once; of a longer one, three times, but for its last
tile, which stays. Grid: (row block, B, A). Local memory: what reductions take, if rows lie along several waves.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether a tile holds whole rows; whether
    there are weights and biases, and whether a block keeps those of the last tile for all its rows."""

    block_m: int = 16
    block_n: int = 64
    single: bool = False
    with_weight: bool = True
    with_bias: bool = True
    keep: bool = False


@T.device
def load_weight(cfg, weight, n0, valid):
    if cfg.with_weight:
        return T.load_tile(cfg, weight, (0,), n0, cfg.block_n, valid)
    return T.zeros(cfg, cfg.block_m, cfg.block_n) + 1.0


@T.device
def load_bias(cfg, bias, n0, valid):
    if cfg.with_bias:
        return T.load_tile(cfg, bias, (0,), n0, cfg.block_n, valid)
    return T.zeros(cfg, cfg.block_m, cfg.block_n)


@T.device
def centred(cfg, x, t, row, last, valid, root_eps, first_scale, inverse_n):
    """The last tile t, normalised, and of the rows the mean, the scale, and what scaled values are multiplied by."""
    n_columns = x.shape[1]
    mean = T.rowsum(t) * inverse_n
    if not cfg.single:
        for n0 in range(0, last, cfg.block_n):
            mean = mean + T.rowsum(T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid)) * inverse_n

    t = t - mean
    if last + cfg.block_n > n_columns:
        t = T.pad_columns(t, last, n_columns, 0.0)
    scale = T.full_rows(cfg, cfg.block_m, first_scale)
    scale, total = T.square_step(t, scale, T.full_rows(cfg, cfg.block_m, 0.0))
    shift = T.rowsum(t)
    if not cfg.single:
        for n0 in range(0, last, cfg.block_n):
            u = T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid) - mean
            scale, total = T.square_step(u, scale, total)
            shift = shift + T.rowsum(u)

    shift = shift * inverse_n
    eps = root_eps * scale
    off = shift * scale
    variance = total * inverse_n - off * off
    variance = T.where(variance < 0.0, 0.0, variance)
    factor = T.reciprocal_or_zero(T.sqrt(variance + eps * eps))
    return T.multiply_rows(t - shift, scale, factor), mean + shift, scale, factor


@T.device
def store_others(cfg, x, weight, bias, out, row, last, valid, mean, scale, factor):
    if not cfg.single:
        for n0 in range(0, last, cfg.block_n):
            u = T.multiply_rows(T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid) - mean, scale, factor)
            w, c = load_weight(cfg, weight, n0, valid), load_bias(cfg, bias, n0, valid)
            T.store_tile(out, (row,), n0, T.multiply_add(u, w, c), valid)


@T.kernel
def layer_norm(
    cfg, x: T.Tensor[4], weight: T.Tensor[2], bias: T.Tensor[2], out: T.Out[4],
    root_eps: T.Float, first_scale: T.Float, inverse_n: T.Float, step: T.Int,
):  # fmt: skip
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    last = (x.shape[3] - 1) // cfg.block_n * cfg.block_n
    if cfg.single:
        last = 0
    first_row = T.row_index(cfg, cfg.block_m)
    if cfg.keep:
        w, c = load_weight(cfg, weight, last, first_row >= 0), load_bias(cfg, bias, last, first_row >= 0)
        for row0 in range(T.block_id(cfg, 0) * cfg.block_m, x.shape[2], step * cfg.block_m):
            row = first_row + row0
            valid = row < x.shape[2]
            t = T.load_tile(cfg, x[a, b], (row,), last, cfg.block_n, valid)
            t, mean, scale, factor = centred(cfg, x[a, b], t, row, last, valid, root_eps, first_scale, inverse_n)
            T.store_tile(out[a, b], (row,), last, T.multiply_add(t, w, c), valid)
            store_others(cfg, x[a, b], weight, bias, out[a, b], row, last, valid, mean, scale, factor)
    else:
        row = first_row + T.block_id(cfg, 0) * cfg.block_m
        valid = row < x.shape[2]
        t = T.load_tile(cfg, x[a, b], (row,), last, cfg.block_n, valid)
        # On their way while the rows are reduced.
        w = load_weight(cfg, weight, last, valid)
        t, mean, scale, factor = centred(cfg, x[a, b], t, row, last, valid, root_eps, first_scale, inverse_n)
        c = load_bias(cfg, bias, last, valid)
        T.store_tile(out[a, b], (row,), last, T.multiply_add(t, w, c), valid)
        store_others(cfg, x[a, b], weight, bias, out[a, b], row, last, valid, mean, scale, factor)
