"""Gradient of a table whose rows were taken: ``out[v] = sum of dout[t] over all t with indices[t] = v``, in float32.

``ids`` are the indices in ascending order, and ``order`` says which each of them was; equal ones keep their order, in
which they are added: `RUN` at a time, and then these sums, so that many of them do not vanish in a large one. With
``accumulates``, what is in out is added, before the only rounding.

Shapes (any strides)::

    dout [T, N]   order, ids [T], int32   out [V, N]

Mapping: a block takes ``block_m`` rows of the table, finds where each begins in ids in ``steps`` halvings, and adds up
``block_n`` columns at a time. Grid: (row block, 1, 1). Shared memory: what reductions over the block take.
"""

from dataclasses import dataclass

from rocmkern import tile as T

RUN = 256


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether out has a summand."""

    block_m: int = 16
    block_n: int = 64
    accumulates: bool = False


@T.device
def first_places(cfg, ids, row, valid, steps):
    """The first place in ids whose number is not below each row."""
    low = T.full_rows(cfg, cfg.block_m, 0)
    high = T.full_rows(cfg, cfg.block_m, ids.shape[0])
    for _step in range(steps):
        middle = (low + high) // 2
        is_open = valid & (low < high)
        below = is_open & (T.load_integers(ids, (middle,), is_open) < row)
        high = T.where(below, high, T.where(is_open, middle, high))
        low = T.where(below, middle + 1, low)
    return low


@T.device
def is_here(ids, place, row, valid):
    """Whether the number at a place of ids is that of the row."""
    inside = valid & (place < ids.shape[0])
    return inside & (T.load_integers(ids, (place,), inside) == row)


@T.kernel
def embedding_backward(
    cfg, dout: T.Tensor[2], order: T.Tensor[1], ids: T.Tensor[1], out: T.InOut[2], steps: T.Int
):  # fmt: skip
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < out.shape[0]
    first = first_places(cfg, ids, row, valid, steps)
    taken = is_here(ids, first, row, valid)
    for n0 in range(0, out.shape[1], cfg.block_n):
        total = T.zeros(cfg, cfg.block_m, cfg.block_n)
        some = T.zeros(cfg, cfg.block_m, cfg.block_n)
        count = 0
        place = first
        here = taken
        while T.largest(T.where(here, 1.0, 0.0)) > 0.0:
            token = T.load_integers(order, (place,), here)
            some = some + T.load_tile(cfg, dout, (token,), n0, cfg.block_n, here)
            place = place + 1
            here = is_here(ids, place, row, here)
            count = count + 1
            if count % RUN == 0:
                total = total + some
                some = T.zeros(cfg, cfg.block_m, cfg.block_n)
        total = total + some
        if cfg.accumulates:
            total = total + T.load_tile(cfg, out, (row,), n0, cfg.block_n, taken)
            T.store_tile(out, (row,), n0, total, taken)
        else:
            T.store_tile(out, (row,), n0, total, valid)
