"""Kernels that multiply rows of a source while they are loaded."""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """``m`` rows of the source beside ``few`` rows of a tile, ``k`` columns at a time."""

    m: int = 4
    few: int = 4
    k: int = 64
    format: str = ""


@T.kernel
def rowdots(cfg, x: T.Tensor[2], source: T.Tensor[2], out: T.Out[1], activation: T.Int):
    row = T.row_index(cfg, cfg.m)
    valid = row < source.shape[0]
    one_each = T.row_index(cfg, cfg.few)
    total = T.full_rows(cfg, cfg.m, 0.0)
    for k0 in range(0, x.shape[1], cfg.k):
        t = T.load_tile(cfg, x, (one_each,), k0, cfg.k, one_each < x.shape[0])
        total = total + T.load_rowdot(T.quantized(source, cfg.format, x, 16), (row,), k0, t, valid)
    if activation == 1:
        total = T.silu(total)
    if activation == 2:
        total = T.gelu(total)
    if activation == 3:
        total = T.gelu_tanh(total)
    if activation == 4:
        total = T.relu(total)
    T.store_rows(out, (row,), total, valid)


@T.kernel
def unaligned(cfg, x: T.Tensor[2], source: T.Tensor[2], out: T.Out[1]):
    row = T.row_index(cfg, cfg.m)
    valid = row < source.shape[0]
    t = T.load_tile(cfg, x, (0,), 0, cfg.k, valid)
    T.store_rows(out, (row,), T.load_rowdot(T.quantized(source, cfg.format, x, 3), (row,), 0, t, valid), valid)


@T.kernel
def too_many(cfg, x: T.Tensor[2], source: T.Tensor[2], out: T.Out[1]):
    row = T.row_index(cfg, cfg.m)
    valid = row < source.shape[0]
    one_each = T.row_index(cfg, cfg.few)
    t = T.load_tile(cfg, x, (one_each,), 0, cfg.k, one_each < x.shape[0])
    T.store_rows(out, (row,), T.load_rowdot(source, (row,), 0, t, valid), valid)


@T.kernel
def products(cfg, x: T.Tensor[2], source: T.Tensor[2], out: T.Out[1]):
    row = T.row_index(cfg, cfg.m)
    valid = row < source.shape[0]
    total = T.full_rows(cfg, cfg.m, 0.0)
    for k0 in range(0, x.shape[1], cfg.k):
        total = total + T.matvec(cfg, T.quantized(source, cfg.format, x, 16), (row,), k0, cfg.k, x[1], valid)
    T.store_rows(out, (row,), total, valid)


@T.kernel
def no_vector(cfg, x: T.Tensor[2], source: T.Tensor[2], out: T.Out[1]):
    row = T.row_index(cfg, cfg.m)
    valid = row < source.shape[0]
    T.store_rows(out, (row,), T.matvec(cfg, source, (row,), 0, cfg.k, x, valid), valid)
