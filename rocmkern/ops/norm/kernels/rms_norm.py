"""RMS norm over the last axis: ``out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`` (Zhang, Sennrich, 2019).

With a residual, ``sums = x + residual``, rounded to its dtype, takes the place of x. Where squares would overflow or
vanish, the sum is that of scaled values. The scale is at most ``first_scale``, a power of two up to ``1 / sqrt(eps)``:
values that are smaller than that do not count. It is 1 where no scale is needed.

Shapes (any strides; weight has one row)::

    x, residual, out, sums [A, B, R, N]   weight [1, N]

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time. It reads a row of one tile once, a longer one
twice, but for its last tile, which stays. Grid: (row block, B, A). Shared memory: what reductions take, if rows lie
along several waves.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether a tile holds whole rows; whether the
    numbers are those of float16, whose squares need no scale; whether there is a residual, and whether an offset."""

    block_m: int = 16
    block_n: int = 64
    single: bool = False
    moderate: bool = False
    with_residual: bool = False
    with_offset: bool = True


@T.device
def load(cfg, x, residual, a, b, row, n0, valid):
    t = T.load_tile(cfg, x[a, b], (row,), n0, cfg.block_n, valid)
    if cfg.with_residual:
        t = T.rounded(t + T.load_tile(cfg, residual[a, b], (row,), n0, cfg.block_n, valid), residual)
    return t


@T.device
def load_weight(cfg, weight, weight_offset, n0, valid):
    w = T.load_tile(cfg, weight, (0,), n0, cfg.block_n, valid)
    if cfg.with_offset:
        w = w + weight_offset
    return w


@T.device
def add_squares(cfg, t, scale, total):
    if cfg.moderate:
        return scale, total + T.rowdot(t, t)
    return T.square_step(t, scale, total)


@T.device
def store(cfg, t, scale, factor, w, out, row, n0, valid):
    if cfg.moderate:
        T.store_tile(out, (row,), n0, t * factor * w, valid)
    else:
        T.store_tile(out, (row,), n0, T.multiply_rows(t, scale, factor) * w, valid)


@T.kernel
def rms_norm(
    cfg, x: T.Tensor[4], residual: T.Tensor[4].optional("x"), weight: T.Tensor[2], out: T.Out[4],
    sums: T.Out[4].optional("x"), root_eps: T.Float, first_scale: T.Float, inverse_n: T.Float, weight_offset: T.Float,
):  # fmt: skip
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    n_columns = x.shape[3]
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < x.shape[2]

    scale = T.full_rows(cfg, cfg.block_m, first_scale)
    total = T.full_rows(cfg, cfg.block_m, 0.0)
    t = load(cfg, x, residual, a, b, row, 0, valid)
    last = 0
    if not cfg.single:
        for n0 in range(cfg.block_n, n_columns, cfg.block_n):
            scale, total = add_squares(cfg, t, scale, total)
            if cfg.with_residual:
                T.store_tile(sums[a, b], (row,), last, t, valid)
            last = n0
            t = load(cfg, x, residual, a, b, row, n0, valid)
    # On their way while the rows are reduced.
    w = load_weight(cfg, weight, weight_offset, last, valid)
    scale, total = add_squares(cfg, t, scale, total)
    if cfg.with_residual:
        T.store_tile(sums[a, b], (row,), last, t, valid)

    eps = root_eps * scale
    factor = T.reciprocal_or_zero(T.sqrt(total * inverse_n + eps * eps))
    store(cfg, t, scale, factor, w, out[a, b], row, last, valid)
    if not cfg.single:
        for n0 in range(0, last, cfg.block_n):
            t = load(cfg, x, residual, a, b, row, n0, valid)
            w = load_weight(cfg, weight, weight_offset, n0, valid)
            store(cfg, t, scale, factor, w, out[a, b], row, n0, valid)
