"""Gradient of a softmax over the last axis, from its result y: ``dx = scale * y * (dout - sum(dout * y))``.

Shapes (any strides)::

    dout, y, dx [A, B, R, N]

Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a time. It reads a row that a tile holds once, a longer
one twice. Grid: (row block, B, A). Shared memory: what reductions take, if rows lie along several waves.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether a tile holds whole rows."""

    block_m: int = 16
    block_n: int = 64
    single: bool = False


@T.kernel
def softmax_backward(cfg, dout: T.Tensor[4], y: T.Tensor[4], dx: T.Out[4], scale: T.Float):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < dx.shape[2]
    if cfg.single:
        d = T.load_tile(cfg, dout[a, b], (row,), 0, cfg.block_n, valid)
        t = T.load_tile(cfg, y[a, b], (row,), 0, cfg.block_n, valid)
        dot = T.rowdot(d, t)
        T.store_tile(dx[a, b], (row,), 0, (d - dot) * t * scale, valid)
    else:
        dot = T.full_rows(cfg, cfg.block_m, 0.0)
        for n0 in range(0, dx.shape[3], cfg.block_n):
            d = T.load_tile(cfg, dout[a, b], (row,), n0, cfg.block_n, valid)
            dot = dot + T.rowdot(d, T.load_tile(cfg, y[a, b], (row,), n0, cfg.block_n, valid))
        for n0 in range(0, dx.shape[3], cfg.block_n):
            d = T.load_tile(cfg, dout[a, b], (row,), n0, cfg.block_n, valid)
            t = T.load_tile(cfg, y[a, b], (row,), n0, cfg.block_n, valid)
            T.store_tile(dx[a, b], (row,), n0, (d - dot) * t * scale, valid)
