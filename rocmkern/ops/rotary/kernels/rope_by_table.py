"""Rotate rows of sequences by rows of a table of cosines and sines, and write them behind what a cache has of each.

Row s of sequence n is at position ``p = seqlens[n] + advance * s``. For the pair i of each of its heads::

    out[0]_i = x[0]_i cos[p]_i - x[1]_i sin[p]_i
    out[1]_i = x[1]_i cos[p]_i + x[0]_i sin[p]_i

``rest`` is what is not rotated, and is copied. The row becomes row ``t = s + behind * seqlens[n]`` of its sequence:
row t of out[n], or, with pages of L rows, row ``t % L`` of page ``block_table[n, t // L]``. What has no place there is
not written, what has no row in the table becomes 0, and 1 is written to ``error`` [1] for either.

Shapes (any strides)::

    x [2, N, S, H, P]   rest [N, S, H, R]   out [2, pages, L, H, P]   out_rest [pages, L, H, R]
    cos, sin [T, P]   seqlens [N]   block_table [N, entries]

Mapping: a tile has ``block_m`` rows, each a head of a row of the sequence, and ``block_n`` columns. Grid: (row block,
sequence). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; whether out has pages."""

    block_m: int = 16
    block_n: int = 64
    paged: bool = False


@T.device
def copy(cfg, x, out, token, page, line, head, written):
    """Columns that are not rotated."""
    for n0 in range(0, x.shape[2], cfg.block_n):
        T.store_tile(out, (page, line, head), n0, T.load_tile(cfg, x, (token, head), n0, cfg.block_n, written), written)


@T.kernel
def rope_by_table(
    cfg,
    x: T.Tensor[5],
    rest: T.Tensor[4],
    out: T.InOut[5],
    out_rest: T.InOut[4],
    cos: T.Tensor[2].optional("x"),
    sin: T.Tensor[2].optional("x"),
    seqlens: T.Tensor[1],
    block_table: T.Tensor[2].optional("int32"),
    error: T.Out[1],
    advance: T.Int,
    behind: T.Int,
):
    # Which rows, at which positions.
    sequence, heads = T.block_id(cfg, 1), rest.shape[2]
    start = int(seqlens[sequence])
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < rest.shape[1] * heads
    head, token = row % heads, row // heads
    position = token * advance + start
    turned = valid & (position >= 0) & (position < cos.shape[0])

    # Where they go.
    line, length = token + start * behind, out_rest.shape[1]
    page = token * 0 + sequence
    written = valid & (line >= 0)
    if cfg.paged:
        table, entry = block_table[sequence], line // length
        listed = written & (entry < table.shape[0])
        page = T.load_integers(table, (entry,), listed)
        written = listed & (page >= 0) & (page < out_rest.shape[0])
        line = line % length
    else:
        written = written & (line < length)

    unplaced = T.where(written, 0, 1) == 1
    T.store_rows(error, (0,), T.full_rows(cfg, cfg.block_m, 1.0), valid & unplaced)
    if x.shape[4] > 0:
        unknown = T.where(turned, 0, 1) == 1
        T.store_rows(error, (0,), T.full_rows(cfg, cfg.block_m, 1.0), valid & unknown)

    for n0 in range(0, x.shape[4], cfg.block_n):
        a = T.load_tile(cfg, x[0, sequence], (token, head), n0, cfg.block_n, written)
        b = T.load_tile(cfg, x[1, sequence], (token, head), n0, cfg.block_n, written)
        cosines = T.load_tile(cfg, cos, (position,), n0, cfg.block_n, turned)
        sines = T.load_tile(cfg, sin, (position,), n0, cfg.block_n, turned)
        a, b = T.rotate(a, b, cosines, sines)
        T.store_tile(out[0], (page, line, head), n0, a, written)
        T.store_tile(out[1], (page, line, head), n0, b, written)
    copy(cfg, rest[sequence], out_rest, token, page, line, head, written)
