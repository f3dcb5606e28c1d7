"""Gated activations: ``out = f(gate) * up``, f being SiLU, GELU or GELU's tanh form (Shazeer, 2020).

Shapes (any strides): gate, up, out [A, B, R, N]. Mapping: a block takes ``block_m`` rows, ``block_n`` columns at a
time; out may be gate or up, because each block reads what it overwrites first. Grid: (row block, B, A). No local
memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; SiLU unless ``gelu`` or ``gelu_tanh``."""

    block_m: int = 16
    block_n: int = 64
    gelu: bool = False
    gelu_tanh: bool = False


@T.kernel
def gated(cfg, gate: T.Tensor[4], up: T.Tensor[4], out: T.Out[4]):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]
    for n0 in range(0, out.shape[3], cfg.block_n):
        t = T.load_tile(cfg, gate[a, b], (row,), n0, cfg.block_n, valid)
        u = T.load_tile(cfg, up[a, b], (row,), n0, cfg.block_n, valid)
        if cfg.gelu:
            t = T.gelu(t)
        elif cfg.gelu_tanh:
            t = T.gelu_tanh(t)
        else:
            t = T.silu(t)
        T.store_tile(out[a, b], (row,), n0, t * u, valid)
