"""Kernels that read quantized sources: a tile, and a stage as the right side of a product."""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Tiles of ``m`` rows and windows of ``n`` rows, ``k`` columns at a time."""

    m: int = 4
    n: int = 16
    k: int = 64
    format: str = "q4_0"


@T.kernel
def decode(cfg, blocks: T.Tensor[2], out: T.Out[2]):
    source = T.quantized(blocks, cfg.format, out)
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < source.shape[0]
    for n0 in range(0, source.shape[1], cfg.k):
        T.store_tile(out, (row,), n0, T.load_tile(cfg, source, (row,), n0, cfg.k, valid), valid)


@T.kernel
def multiply(cfg, x: T.Tensor[2], blocks: T.Tensor[2], out: T.Out[2]):
    source = T.quantized(blocks, cfg.format, x)
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    for n0 in range(0, source.shape[0], cfg.n):
        acc = T.zeros(cfg, cfg.m, cfg.n)
        weights = T.stage(cfg, source, cfg.n, cfg.k)
        weights = T.fetch(weights, n0, 0)
        for k0 in range(0, source.shape[1], cfg.k):
            weights = T.fetch(T.acquire(weights), n0, k0 + cfg.k)
            acc = T.dot_nt(T.load_operand(cfg, x, (row,), k0, cfg.k, valid), weights, acc)
            weights = T.release(weights)
        T.finish(weights)
        T.store_tile(out, (row,), n0, acc, valid)
