"""Layer norm over the last axis: ``out = (x - mean) / sqrt(var + eps) * weight + bias`` (Ba, Kiros, Hinton, 2016).

The variance is the mean of ``(x - mean)^2``, summed as in `rms_norm`, never a difference of two means. A row of equal
numbers has no variance at all: what the mean lacks by its rounding shows as the mean of ``x - mean``, and is taken into
account. Or, where results have fewer digits than sums, the numbers are those above the first one of the row.

Shapes (any strides; weight and bias have one row)::

    x, out [A, B, R, N]   weight, bias [1, N]

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time; if it keeps weights and biases, it goes on with
the rows ``step`` row blocks further on. A row of one tile is read once; of a longer one, three times, but for its last
tile, which stays. Grid: (row block, B, A). Shared memory: what reductions take, if rows lie along several waves.
"""

from dataclasses import dataclass

from rocmkern import tile as T

#: Share of the square of what a mean lacks that roundings of a row of equal numbers may leave of its variance. A number
#: that differs from the others by its last digit makes far more.
ROUNDINGS = 2.0**-18


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether a tile holds whole rows; whether the
    numbers of such a row are those above its first one, and whether they are of float16, whose squares need no scale;
    whether there are weights and biases, and whether a block keeps those of the last tile for all its rows."""

    block_m: int = 16
    block_n: int = 64
    single: bool = False
    shifted: bool = False
    moderate: bool = False
    with_weight: bool = True
    with_bias: bool = True
    keeps_weights: bool = False


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
def less(cfg, t, rows, col0, n_columns):
    """The tile less its rows; 0 past the end."""
    t = t - rows
    if col0 + cfg.block_n > n_columns:
        t = T.pad_columns(t, col0, n_columns, 0.0)
    return t


@T.device
def factor_of(variance, eps):
    return T.reciprocal_or_zero(T.sqrt(variance + eps * eps))


@T.device
def normalised(cfg, x, t, row, valid, root_eps, first_scale, inverse_n):
    """The tile t, which is whole rows, normalised."""
    t = less(cfg, t, T.load_rows(x, (row, 0), valid), 0, x.shape[1])
    t = less(cfg, t, T.rowsum(t) * inverse_n, 0, x.shape[1])
    scale = T.full_rows(cfg, cfg.block_m, first_scale)
    if cfg.moderate:
        return t * factor_of(T.rowdot(t, t) * inverse_n, scale * root_eps)
    scale, total = T.square_step(t, scale, T.full_rows(cfg, cfg.block_m, 0.0))
    return T.multiply_rows(t, scale, factor_of(total * inverse_n, root_eps * scale))


@T.device
def centred(cfg, x, t, row, last, valid, root_eps, first_scale, inverse_n):
    """The last tile t, normalised, and of the rows the mean, the scale, and what scaled values are multiplied by."""
    n_columns = x.shape[1]
    mean = T.rowsum(t) * inverse_n
    if not cfg.single:
        for n0 in range(0, last, cfg.block_n):
            mean = mean + T.rowsum(T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid)) * inverse_n

    t = less(cfg, t, mean, last, n_columns)
    scale = T.full_rows(cfg, cfg.block_m, first_scale)
    scale, total = T.square_step(t, scale, T.full_rows(cfg, cfg.block_m, 0.0))
    shift = T.rowsum(t)
    if not cfg.single:
        for n0 in range(0, last, cfg.block_n):
            u = T.load_tile(cfg, x, (row,), n0, cfg.block_n, valid) - mean
            scale, total = T.square_step(u, scale, total)
            shift = shift + T.rowsum(u)

    shift = shift * inverse_n
    off = shift * scale
    variance = total * inverse_n - off * off
    # Of equal numbers nothing but roundings is left, more or less of them by how a target joins products and sums.
    factor = factor_of(T.where(variance <= off * off * ROUNDINGS, 0.0, variance), root_eps * scale)
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
    cfg, x: T.Tensor[4], weight: T.Tensor[2].optional("x"), bias: T.Tensor[2].optional("x"), out: T.Out[4],
    root_eps: T.Float, first_scale: T.Float, inverse_n: T.Float, step: T.Int,
):  # fmt: skip
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    last = (x.shape[3] - 1) // cfg.block_n * cfg.block_n
    if cfg.single:
        last = 0
    first_row = T.row_index(cfg, cfg.block_m)
    if cfg.keeps_weights:
        w, c = load_weight(cfg, weight, last, first_row >= 0), load_bias(cfg, bias, last, first_row >= 0)
        for row0 in range(T.block_id(cfg, 0) * cfg.block_m, x.shape[2], step * cfg.block_m):
            row = first_row + row0
            valid = row < x.shape[2]
            t = T.load_tile(cfg, x[a, b], (row,), last, cfg.block_n, valid)
            if cfg.shifted:
                t = normalised(cfg, x[a, b], t, row, valid, root_eps, first_scale, inverse_n)
                T.store_tile(out[a, b], (row,), 0, T.multiply_add(t, w, c), valid)
            else:
                t, mean, scale, factor = centred(cfg, x[a, b], t, row, last, valid, root_eps, first_scale, inverse_n)
                T.store_tile(out[a, b], (row,), last, T.multiply_add(t, w, c), valid)
                store_others(cfg, x[a, b], weight, bias, out[a, b], row, last, valid, mean, scale, factor)
    else:
        row = first_row + T.block_id(cfg, 0) * cfg.block_m
        valid = row < x.shape[2]
        t = T.load_tile(cfg, x[a, b], (row,), last, cfg.block_n, valid)
        # On their way while the rows are reduced.
        w, c = load_weight(cfg, weight, last, valid), load_bias(cfg, bias, last, valid)
        if cfg.shifted:
            t = normalised(cfg, x[a, b], t, row, valid, root_eps, first_scale, inverse_n)
            T.store_tile(out[a, b], (row,), 0, T.multiply_add(t, w, c), valid)
        else:
            t, mean, scale, factor = centred(cfg, x[a, b], t, row, last, valid, root_eps, first_scale, inverse_n)
            T.store_tile(out[a, b], (row,), last, T.multiply_add(t, w, c), valid)
            store_others(cfg, x[a, b], weight, bias, out[a, b], row, last, valid, mean, scale, factor)
