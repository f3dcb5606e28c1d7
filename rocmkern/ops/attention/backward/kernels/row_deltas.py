"""What the gradients of attention need of each query: the offset of its exponents and its delta.

For one query of one head::

    offset = -lse                    minus infinity where no key is seen: weights are 0 then
    delta = dout . out - dlse        dlse only where the log-sum-exp has a gradient
    dsink = -min(exp(sink - lse), 1) * delta

Shapes (any strides)::

    dout, out [B, H, S, Dv]   lse, dlse [B, H, S]   sinks [H]   offsets, deltas, dsink [B, H, S] float32

Mapping: a block takes ``block_m`` rows of one (batch, head), ``block_n`` columns at a time. Grid: (row block, head,
batch). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.attention.backward.kernels.softmax_gradient import LOG2_E


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns."""

    block_m: int = 16
    block_n: int = 64


@T.kernel
def row_deltas(
    cfg,
    dout: T.Tensor[4],
    out: T.Tensor[4],
    lse: T.Tensor[3],
    dlse: T.Tensor[3].optional("float32"),
    sinks: T.Tensor[1].optional("float32"),
    offsets: T.Out[3],
    deltas: T.Out[3],
    dsink: T.Out[3].optional("float32"),
):
    batch, head = T.block_id(cfg, 2), T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[2]

    delta = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, out.shape[3], cfg.block_n):
        gradient = T.load_tile(cfg, dout[batch, head], (row,), n0, cfg.block_n, valid)
        delta = delta + T.rowdot(gradient, T.load_tile(cfg, out[batch, head], (row,), n0, cfg.block_n, valid))
    if dlse.shape[1] > 0:
        delta = delta - T.load_rows(dlse[batch, head], (row,), valid)
    offset = T.load_rows(lse[batch, head], (row,), valid) * -1.0
    offset = T.where(offset == -T.NEG_INF, T.NEG_INF, offset)
    T.store_rows(offsets[batch, head], (row,), offset, valid)
    T.store_rows(deltas[batch, head], (row,), delta, valid)
    if dsink.shape[1] > 0:
        power = (T.load_rows(sinks, (head,), valid) + offset) * LOG2_E
        weight = T.exp2(T.where(power > 0.0, 0.0, power))
        T.store_rows(dsink[batch, head], (row,), T.where(weight == 0.0, 0.0, weight * delta * -1.0), valid)
