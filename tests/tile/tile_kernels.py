"""Small kernels that use every operation of the tile language, several at a time so that few are compiled."""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """Tiles of ``m`` rows and ``n`` columns; ``k`` is the inner dimension, or the width of the accumulator."""

    m: int = 4
    n: int = 32
    k: int = 24


ARITHMETIC = (
    "tile + tile", "tile - tile", "tile * tile", "tile + rows", "tile - rows", "tile * rows",
    "tile + scalar", "tile - scalar", "tile * scalar", "exp2", "tanh", "absolute", "distance", "mask_outside",
    "mask_where", "device", "copy", "silu", "gelu", "gelu_tanh", "relu", "pad_columns", "multiply_add", "multiply_rows",
    "multiply_rows in order",
)  # fmt: skip


@T.device
def load(cfg, x, row, col0, valid):
    return T.load_tile(cfg, x, (row,), col0, cfg.n, valid)


@T.device
def affine(t, rows, factor):
    if factor > 0.0:
        t = t * factor
    return t + rows


@T.kernel
def arithmetic(
    cfg, x: T.Tensor[2], y: T.Tensor[2], r: T.Tensor[1], out: T.Tensor[3], stats: T.Tensor[2],
    factor: T.Float, col0: T.Int,
):  # fmt: skip
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < x.shape[0]
    rows = T.load_rows(r, (row,), valid)
    T.store_tile(out[0], (row,), 0, load(cfg, x, row, col0, valid) + load(cfg, y, row, col0, valid), valid)
    T.store_tile(out[1], (row,), 0, load(cfg, x, row, col0, valid) - load(cfg, y, row, col0, valid), valid)
    T.store_tile(out[2], (row,), 0, load(cfg, x, row, col0, valid) * load(cfg, y, row, col0, valid), valid)
    T.store_tile(out[3], (row,), 0, load(cfg, x, row, col0, valid) + rows, valid)
    T.store_tile(out[4], (row,), 0, load(cfg, x, row, col0, valid) - rows, valid)
    T.store_tile(out[5], (row,), 0, load(cfg, x, row, col0, valid) * rows, valid)
    T.store_tile(out[6], (row,), 0, load(cfg, x, row, col0, valid) + factor, valid)
    T.store_tile(out[7], (row,), 0, load(cfg, x, row, col0, valid) - factor, valid)
    T.store_tile(out[8], (row,), 0, load(cfg, x, row, col0, valid) * factor, valid)
    T.store_tile(out[9], (row,), 0, T.exp2(load(cfg, x, row, col0, valid)), valid)
    T.store_tile(out[10], (row,), 0, T.tanh(load(cfg, x, row, col0, valid)), valid)
    T.store_tile(out[11], (row,), 0, T.absolute(load(cfg, x, row, col0, valid)), valid)
    T.store_tile(out[12], (row,), 0, T.distance(cfg, row * 3, col0, cfg.n), valid)
    inside = T.mask_outside(load(cfg, x, row, col0, valid), col0, row - 1, row * 2 + 3)
    T.store_tile(out[13], (row,), 0, inside, valid)
    hidden = T.mask_where(load(cfg, x, row, col0, valid), load(cfg, y, row, col0, valid))
    T.store_tile(out[14], (row,), 0, hidden, valid)
    T.store_tile(out[15], (row,), 0, affine(load(cfg, x, row, col0, valid), rows, factor), valid)
    t = load(cfg, x, row, col0, valid)
    T.store_tile(out[16], (row,), 0, T.absolute(T.copy(t)) + t, valid)
    T.store_tile(out[17], (row,), 0, T.silu(load(cfg, x, row, col0, valid)), valid)
    T.store_tile(out[18], (row,), 0, T.gelu(load(cfg, x, row, col0, valid)), valid)
    T.store_tile(out[19], (row,), 0, T.gelu_tanh(load(cfg, x, row, col0, valid)), valid)
    T.store_tile(out[20], (row,), 0, T.relu(load(cfg, x, row, col0, valid)), valid)
    padded = T.pad_columns(load(cfg, x, row, col0, valid), col0, 17, factor)
    T.store_tile(out[21], (row,), 0, padded, valid)
    factors = load(cfg, y, row, col0, valid)
    summands = T.absolute(load(cfg, x, row, col0, valid))
    once = T.multiply_add(load(cfg, x, row, col0, valid), factors, summands)
    T.store_tile(out[22], (row,), 0, T.multiply_add(once, factors, summands), valid)
    T.store_tile(out[23], (row,), 0, T.multiply_rows(load(cfg, x, row, col0, valid), rows, rows), valid)
    tiny, large = T.full_rows(cfg, cfg.m, 2.0**-100), T.full_rows(cfg, cfg.m, 2.0**90)
    once = T.multiply_rows(load(cfg, x, row, col0, valid) * tiny, large, large)
    T.store_tile(out[24], (row,), 0, once, valid)
    t = load(cfg, x, row, col0, valid)
    T.store_rows(stats[0], (row,), T.rowmax(t), valid)
    T.store_rows(stats[1], (row,), T.rowsum(t), valid)
    T.store_rows(stats[2], (row,), T.rowdot(t, load(cfg, y, row, col0, valid)), valid)
    T.store_rows(stats[3], (row,), T.rowdot(t, t), valid)


ROWS = (
    "x + y", "x - y", "x * y", "2 - x", "minimum", "maximum", "minimum(x, 0.5)", "maximum(x, 0.5)",
    "where(x < y)", "where scalars", "reciprocal_or_zero", "log2", "exp2", "full_rows", "x <= y", "x > y", "x >= y",
    "x == y", "x != y", "&", "i + j", "i - j", "i * 3", "i // 3", "i % 3", "i // -3", "i % -3", "i // j", "i % j",
    "minimum(i, j)", "maximum(i, 2)", "7 - i", "block_id", "x[i]", "int(c[i])", "where integers", "sqrt",
    "load_integers",
)  # fmt: skip


@T.device
def as_float(cfg, integers):
    """Small integers as float32, through what a tile can do with them."""
    return T.rowmax(T.distance(cfg, integers, 0, 1))


@T.kernel
def row_arithmetic(
    cfg, x: T.Tensor[1], y: T.Tensor[1], c: T.Tensor[1], out: T.Tensor[2], shift: T.Int, divisor: T.Int,
):  # fmt: skip
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < x.shape[0]
    a = T.load_rows(x, (row,), valid)
    b = T.load_rows(y, (row,), valid)
    i = row - shift
    j = row % 5 + 1
    T.store_rows(out[0], (row,), a + b, valid)
    T.store_rows(out[1], (row,), a - b, valid)
    T.store_rows(out[2], (row,), a * b, valid)
    T.store_rows(out[3], (row,), 2.0 - a, valid)
    T.store_rows(out[4], (row,), T.minimum(a, b), valid)
    T.store_rows(out[5], (row,), T.maximum(a, b), valid)
    T.store_rows(out[6], (row,), T.minimum(a, 0.5), valid)
    T.store_rows(out[7], (row,), T.maximum(0.5, a), valid)
    T.store_rows(out[8], (row,), T.where(a < b, a, 7.0), valid)
    T.store_rows(out[9], (row,), T.where(a < b, 1.5, 0.25), valid)
    T.store_rows(out[10], (row,), T.reciprocal_or_zero(a), valid)
    T.store_rows(out[11], (row,), T.log2(T.maximum(a, 0.0)), valid)
    T.store_rows(out[12], (row,), T.exp2(a), valid)
    T.store_rows(out[13], (row,), T.full_rows(cfg, cfg.m, -1.25), valid)
    T.store_rows(out[14], (row,), T.where(a <= b, 1.0, 0.0), valid)
    T.store_rows(out[15], (row,), T.where(a > b, 1.0, 0.0), valid)
    T.store_rows(out[16], (row,), T.where(a >= b, 1.0, 0.0), valid)
    T.store_rows(out[17], (row,), T.where(a == b, 1.0, 0.0), valid)
    T.store_rows(out[18], (row,), T.where(a != b, 1.0, 0.0), valid)
    T.store_rows(out[19], (row,), T.where((a > 0.0) & (i > 0), 1.0, 0.0), valid)
    T.store_rows(out[20], (row,), as_float(cfg, i + j), valid)
    T.store_rows(out[21], (row,), as_float(cfg, i - j), valid)
    T.store_rows(out[22], (row,), as_float(cfg, i * 3), valid)
    T.store_rows(out[23], (row,), as_float(cfg, i // divisor), valid)
    T.store_rows(out[24], (row,), as_float(cfg, i % divisor), valid)
    T.store_rows(out[25], (row,), as_float(cfg, i // -divisor), valid)
    T.store_rows(out[26], (row,), as_float(cfg, i % -divisor), valid)
    T.store_rows(out[27], (row,), as_float(cfg, i // j), valid)
    T.store_rows(out[28], (row,), as_float(cfg, i % j), valid)
    T.store_rows(out[29], (row,), as_float(cfg, T.minimum(i, j)), valid)
    T.store_rows(out[30], (row,), as_float(cfg, T.maximum(i, 2)), valid)
    T.store_rows(out[31], (row,), as_float(cfg, 7 - i), valid)
    index = T.block_id(cfg, 0) + 10 * T.block_id(cfg, 1) + 100 * T.block_id(cfg, 2)
    T.store_rows(out[32], (row,), as_float(cfg, row * 0 + index), valid)
    T.store_rows(out[33], (row,), T.full_rows(cfg, cfg.m, x[1]), valid)
    T.store_rows(out[34], (row,), as_float(cfg, row * 0 + int(c[0])), valid)
    T.store_rows(out[35], (row,), as_float(cfg, T.where(a < b, i, 3)), valid)
    T.store_rows(out[36], (row,), T.sqrt(a), valid)
    T.store_rows(out[37], (row,), as_float(cfg, T.load_integers(c, (row * 0,), valid)), valid)


@T.kernel
def convert(
    cfg, floats: T.Tensor[3], halves: T.Tensor[3], brains: T.Tensor[3], flags: T.Tensor[3], integers: T.Tensor[3],
    to_float: T.Tensor[4], to_half: T.Tensor[3], to_brain: T.Tensor[3], col0: T.Int, out_col0: T.Int,
):  # fmt: skip
    head = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = (row < floats.shape[0]) & (row >= 1)
    index = (row, head)
    t = T.load_tile(cfg, floats, index, col0, cfg.n, valid)
    T.store_tile(to_float[0], index, out_col0, t, valid)
    T.store_tile(to_half, index, out_col0, t, valid)
    T.store_tile(to_brain, index, out_col0, t, valid)
    T.store_tile(to_float[5], index, out_col0, T.rounded(T.copy(t), to_half), valid)
    T.store_tile(to_float[6], index, out_col0, T.rounded(T.copy(t), to_brain), valid)
    T.store_tile(to_float[7], index, out_col0, T.rounded(t, floats), valid)
    T.store_tile(to_float[1], index, out_col0, T.load_tile(cfg, halves, index, col0, cfg.n, valid), valid)
    T.store_tile(to_float[2], index, out_col0, T.load_tile(cfg, brains, index, col0, cfg.n, valid), valid)
    T.store_tile(to_float[3], index, out_col0, T.load_tile(cfg, flags, index, col0, cfg.n, valid), valid)
    T.store_tile(to_float[4], index, out_col0, T.load_tile(cfg, integers, index, col0, cfg.n, valid), valid)


@T.kernel
def products(
    cfg, a: T.Tensor[2], b: T.Tensor[2], p: T.Tensor[2], d: T.Tensor[2],
    nt: T.Tensor[3], nn: T.Tensor[3], tn: T.Tensor[2], first: T.Int, last: T.Int,
):  # fmt: skip
    """a [M, K], b [N, K], p [M, N], d [N, M]; rows first .. last of b and d count."""
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < a.shape[0]
    left = T.load_operand(cfg, a, (row,), 0, cfg.k, valid)
    right = T.stage(cfg, T.rows(b, first, last), cfg.n, cfg.k)
    turned = T.stage(cfg, T.rows(d, first, last), cfg.n, cfg.m)
    sums = T.zeros(cfg, cfg.m, cfg.k)
    seen = T.zeros(cfg, cfg.m, cfg.k)
    crossed = T.zeros(cfg, cfg.m, cfg.k)
    right = T.fetch(right, 0)
    turned = T.fetch(turned, 0)
    for n0 in range(0, last - first, cfg.n):
        right = T.fetch(T.acquire(right), n0 + cfg.n)
        turned = T.fetch(T.acquire(turned), n0 + cfg.n)
        start = T.load_tile(cfg, p, (row,), n0, cfg.n, valid)
        T.store_tile(nt[0], (row,), n0, T.dot_nt(left, right), valid)
        T.store_tile(nt[1], (row,), n0, T.dot_nt(left, right, start), valid)
        weights = T.operand(T.load_tile(cfg, p, (row,), n0, cfg.n, valid), right)
        sums = T.dot_nn(weights, right, sums)
        seen = T.dot_nn_where(weights, right, seen)
        crossed = T.dot_tn(turned, right, crossed)
        if n0 == 0:
            T.store_tile(nn[2], (row,), 0, T.dot_nn(weights, right), valid)
            T.store_tile(nn[3], (row,), 0, T.dot_tn(turned, right), valid)
        right = T.release(right)
        turned = T.release(turned)
    T.finish(right)
    T.finish(turned)
    T.store_tile(nn[0], (row,), 0, sums, valid)
    T.store_tile(nn[1], (row,), 0, seen, valid)
    T.store_tile(tn, (row,), 0, crossed, valid)


@T.kernel
def online_softmax(
    cfg, x: T.Tensor[2], v: T.Tensor[2], acc_out: T.Tensor[2], stats: T.Tensor[2], scale: T.Float,
):  # fmt: skip
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < x.shape[0]
    last = row * 0 + (x.shape[1] - 1)
    m = T.full_rows(cfg, cfg.m, T.NEG_INF)
    l = T.full_rows(cfg, cfg.m, 0.0)
    acc = T.zeros(cfg, cfg.m, cfg.k)
    values = T.stage(cfg, v, cfg.n, cfg.k)
    for n0 in range(0, x.shape[1], cfg.n):
        s = T.mask_outside(T.load_tile(cfg, x, (row,), n0, cfg.n, valid), n0, row * 0, last)
        p, m, l, acc = T.softmax_step(s, scale, m, l, acc)
        values = T.acquire(T.fetch(values, n0))
        acc = T.dot_nn_where(T.operand(p, values), values, acc)
        values = T.release(values)
    m, l, acc = T.softmax_end(scale, m, l, acc)
    T.store_tile(acc_out, (row,), 0, acc, valid)
    T.store_rows(stats[0], (row,), m, valid)
    T.store_rows(stats[1], (row,), l, valid)


@T.kernel
def sums_of_squares(cfg, x: T.Tensor[2], stats: T.Tensor[2], first: T.Float):
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < x.shape[0]
    m = T.full_rows(cfg, cfg.m, first)
    total = T.full_rows(cfg, cfg.m, 0.0)
    for n0 in range(0, x.shape[1], cfg.n):
        m, total = T.square_step(load(cfg, x, row, n0, valid), m, total)
    T.store_rows(stats[0], (row,), m, valid)
    T.store_rows(stats[1], (row,), total, valid)


@T.kernel
def grid_indices(cfg, out: T.Tensor[4]):
    """out[z, y, x] = 1 + its block's number, plus what was there."""
    x = T.block_id(cfg, 0)
    y = T.block_id(cfg, 1)
    z = T.block_id(cfg, 2)
    row = T.row_index(cfg, cfg.m)
    number = 1 + x + out.shape[2] * (y + out.shape[1] * z)
    old = T.load_rows(out[z, y, x], (row,), row < 1)
    T.store_rows(out[z, y, x], (row,), old + as_float(cfg, row * 0 + number), row < 1)


@T.kernel
def windows(
    cfg, a: T.Tensor[2], b: T.Tensor[2], c: T.Tensor[2], nt: T.Tensor[2], nn: T.Tensor[3], row0: T.Int, col0: T.Int
):
    """Products of two stages whose windows move along the reduced axis, from ``row0`` and ``col0`` on."""
    row = T.row_index(cfg, cfg.m)
    valid = row < nt.shape[0]
    left = T.stage(cfg, a, cfg.m, cfg.k)
    by_rows = T.stage(cfg, b, cfg.n, cfg.k)
    by_columns = T.stage(cfg, c, cfg.k, cfg.n)
    first = T.zeros(cfg, cfg.m, cfg.n)
    second = T.zeros(cfg, cfg.m, cfg.n)
    third = T.zeros(cfg, cfg.m, cfg.n)
    left = T.fetch(left, row0, col0)
    by_rows = T.fetch(by_rows, row0, col0)
    by_columns = T.fetch(by_columns, col0, row0)
    for k0 in range(col0, a.shape[1], cfg.k):
        left = T.acquire(left)
        by_rows = T.acquire(by_rows)
        by_columns = T.acquire(by_columns)
        left = T.fetch(left, row0, k0 + cfg.k)
        by_rows = T.fetch(by_rows, row0, k0 + cfg.k)
        by_columns = T.fetch(by_columns, k0 + cfg.k, row0)
        first = T.dot_nt(left, by_rows, first)
        second = T.dot_nn(left, by_columns, second)
        third = T.dot(left, by_columns, False, T.dot(left, by_rows, True, third))
        left = T.release(left)
        by_rows = T.release(by_rows)
        by_columns = T.release(by_columns)
    T.finish(left)
    T.finish(by_rows)
    T.finish(by_columns)
    T.store_tile(nt, (row,), 0, first, valid)
    T.store_tile(nn[0], (row,), 0, second, valid)
    T.store_tile(nn[1], (row,), 0, third, valid)


@T.kernel
def rotating(
    cfg, x: T.Tensor[2], y: T.Tensor[2], position: T.Tensor[1], turns: T.Tensor[1], cos_out: T.Tensor[2],
    sin_out: T.Tensor[2], out: T.Tensor[3], read: T.Tensor[1], col0: T.Int,
):  # fmt: skip
    """Angles of all rows, and the points (x, y) turned by them; ``read`` is what was read of the positions."""
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < x.shape[0]
    p = T.load_integers(position, (row,), valid)
    T.store_rows(read, (row,), as_float(cfg, p % 4099), valid)
    cos, sin = T.rotations(cfg, p, turns, col0, cfg.n)
    a, b = T.rotate(
        T.load_tile(cfg, x, (row,), 0, cfg.n, valid), T.load_tile(cfg, y, (row,), 0, cfg.n, valid), cos, sin
    )
    T.store_tile(cos_out, (row,), 0, cos, valid)
    T.store_tile(sin_out, (row,), 0, sin, valid)
    T.store_tile(out[0], (row,), 0, a, valid)
    T.store_tile(out[1], (row,), 0, b, valid)


@T.kernel
def through_pages(
    cfg, left: T.Tensor[2], cache: T.Tensor[4], table: T.Tensor[1], out: T.Tensor[2], head: T.Int, stop: T.Int
):
    """out = left @ rows.T, where the rows of one head lie in pages."""
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < left.shape[0]
    a = T.load_operand(cfg, left, (row,), 0, cfg.k, valid)
    keys = T.stage(cfg, cache[0, 0], cfg.n, cfg.k, left, True)
    keys = T.fetch(T.paged(keys, cache, head, table, stop), 0)
    for n0 in range(0, out.shape[1], cfg.n):
        keys = T.fetch(T.acquire(keys), n0 + cfg.n)
        T.store_tile(out, (row,), n0, T.dot_nt(a, keys), valid)
        keys = T.release(keys)
    T.finish(keys)
