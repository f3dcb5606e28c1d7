"""Draw one token a row: temperature, top-k, top-p, and the inverse of the cumulative distribution.

::

    weight[i] = exp((x[i] - max(x)) / temperature) = 2 ** ((x[i] - max(x)) * scale)   of tokens that are kept, else 0
    token     = the first i with  weight[0] + ... + weight[i] > u * sum(weight),   u uniform in [0, 1)

Top-k keeps what is at least the k-th largest logit. Top-p then keeps what is at least the largest bound above which the
kept weights add up to ``top_p`` of their sum. Both bounds are found by bisection over the float32 numbers in their
order, so that ties share their fate, whatever the logits are. The sum up to a token is found in three steps: the part
of the row, the tile of the part, the column of the tile. Each compares with sums that it made itself, in the order in
which it made them, so that rounding never leads to a token of weight 0. Temperature 0 keeps the largest logits, with
``scale = 0`` and so weight 1, and has u = 0.

u has 53 bits of Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; 2011): the upper 27 of its
first word, then the upper 26 of its second one. Its words, the low one of 64 bits first::

    key      seed      (2 words)
    counter  offset    (2 words), 0, 0

The row is no part of it: what a sequence gets does not depend on which row of which batch it is.

Shapes (any strides)::

    x    [B, M, C]   a row of V logits as M = block_m parts: part m has the columns from m * own on, of which it owns
                     the first ``own = V // M``, the last part all of its C = V - (M - 1) * own
    out  [B]         int32
    error, refused [1]                   float32
    temperatures, shares [B]             float32, with ``per_row``
    limits, seeds, offsets [B]           integers, with ``per_row``

With ``per_row`` a row has a temperature, a top-p (``shares``), a top-k (``limits``), a seed and an offset of its own;
else all have the same ones. A top-k of V or more keeps everything. Of seeds and offsets the 64 bits count, not the
sign.

A row with NaN or plus infinity, or of minus infinity throughout, gives -1 and writes 1 to ``error``; one whose
temperature, top-k or top-p is out of range gives -1 and writes 1 to ``refused``. Nothing else writes these.

Mapping: a block takes one row of logits, a tile row one part. Grid: (B, 1, 1). Shared memory: some hundred bytes.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634
INFINITY = float("inf")
#: Places of the float32 numbers in their order: the lowest finite one, infinity.
LOWEST, HIGHEST = -2139095040, 2139095040
WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` parts of a row, ``block_n`` columns at a time; whether every row has
    numbers of its own."""

    block_m: int = 16
    block_n: int = 64
    per_row: bool = False


@T.device
def philox(c0, c1, c2, c3, k0, k1):
    """Four random 32-bit words for a counter and a key of 32-bit words. 64-bit products may wrap around."""
    for _ in range(10):
        p0 = MULTIPLIERS[0] * c0
        p1 = MULTIPLIERS[1] * c2
        c0 = ((p1 >> 32) & WORD) ^ c1 ^ k0
        c2 = ((p0 >> 32) & WORD) ^ c3 ^ k1
        c1 = p1 & WORD
        c3 = p0 & WORD
        k0 = (k0 + WEYL[0]) & WORD
        k1 = (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


@T.device
def uniform(seed, offset):
    """A float64 in [0, 1) with 53 random bits."""
    r0, r1, _, _ = philox(offset & WORD, (offset >> 32) & WORD, 0, 0, seed & WORD, (seed >> 32) & WORD)
    return ((r0 >> 5) * 67108864.0 + (r1 >> 6)) * (1.0 / 9007199254740992.0)


@T.device
def weights(t, bound, peak, scale):
    """Weights of a tile of logits."""
    kept = T.at_least(T.copy(t), bound)
    return T.exp2(T.mask_where((t - peak) * scale, kept))


@T.device
def load(cfg, logits, row, n0, last, valid):
    """Logits from column n0 on of every part; minus infinity where a part does not own the column."""
    t = T.load_tile(cfg, logits, (row,), n0, cfg.block_n, valid)
    return T.mask_outside(t, n0, row * 0, last)


@T.device
def counts(cfg, logits, row, last, bound):
    """How many logits of each part are at least ``bound``."""
    kept = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, logits.shape[1], cfg.block_n):
        kept = kept + T.rowsum(T.at_least(load(cfg, logits, row, n0, last, row >= 0), bound))
    return kept


@T.device
def masses(cfg, logits, row, last, bound, peak, scale):
    """Sum of the weights of each part."""
    sums = T.full_rows(cfg, cfg.block_m, 0.0)
    for n0 in range(0, logits.shape[1], cfg.block_n):
        sums = sums + T.rowsum(weights(load(cfg, logits, row, n0, last, row >= 0), bound, peak, scale))
    return sums


@T.device
def drawn(cfg, logits, row, last, own, bound, peak, scale, u):
    """The token at which the running sum of weights passes ``u`` times the sum of all."""
    block_m, block_n = cfg.block_m, cfg.block_n
    columns = logits.shape[1]

    # The part in which the running sum of weights passes u times the sum of all.
    sums = masses(cfg, logits, row, last, bound, peak, scale)
    mass = T.total(sums)
    target = u * mass
    low, high = -1, block_m - 1
    while high - low > 1:
        middle = (low + high) // 2
        running = T.total(T.where(row <= middle, sums, 0.0))
        if running > target or running >= mass:
            high = middle
        else:
            low = middle
    part = high
    chosen = row == part
    target = target - T.total(T.where(row < part, sums, 0.0))
    mass = T.total(T.where(chosen, sums, 0.0))

    # The tile of the part.
    sums = T.full_rows(cfg, block_m, 0.0)
    start = 0
    searching = True
    while searching:
        t = load(cfg, logits, row, start, last, chosen)
        new = sums + T.rowsum(weights(t, bound, peak, scale))
        running = T.total(T.where(chosen, new, 0.0))
        if running > target or running >= mass or start + block_n >= columns:
            searching = False
        else:
            sums = new
            start = start + block_n
    target = target - T.total(T.where(chosen, sums, 0.0))
    t = load(cfg, logits, row, start, last, chosen)
    mass = T.total(T.where(chosen, T.rowsum(weights(T.copy(t), bound, peak, scale)), 0.0))

    # The column of the tile.
    low, high = -1, block_n - 1
    while high - low > 1:
        middle = (low + high) // 2
        up_to = T.mask_outside(T.copy(t), start, row * 0, row * 0 + (start + middle))
        running = T.total(T.where(chosen, T.rowsum(weights(up_to, bound, peak, scale)), 0.0))
        if running > target or running >= mass:
            high = middle
        else:
            low = middle
    return part * own + start + high


@T.kernel
def sample(
    cfg,
    x: T.Tensor[3],
    out: T.Out[1],
    error: T.Out[1],
    refused: T.Out[1],
    own: T.Int,
    temperature: T.Float,
    top_k: T.Int,
    top_p: T.Float,
    seed: T.Int,
    offset: T.Int,
    temperatures: T.Tensor[1].optional("float32"),
    limits: T.Tensor[1].optional("int64"),
    shares: T.Tensor[1].optional("float32"),
    seeds: T.Tensor[1].optional("int64"),
    offsets: T.Tensor[1].optional("int64"),
):
    block_m, block_n = cfg.block_m, cfg.block_n
    b = T.block_id(cfg, 0)
    logits = x[b]
    columns = x.shape[2]
    row = T.row_index(cfg, block_m)
    last = T.where(row < block_m - 1, row * 0 + (own - 1), row * 0 + (columns - 1))

    if cfg.per_row:
        temperature = temperatures[b]
        top_k = limits[b]
        top_p = shares[b]
        seed = seeds[b]
        offset = offsets[b]
    # False of NaN.
    in_range = temperature >= 0.0 and temperature < INFINITY and top_k >= 1 and top_p > 0.0 and top_p <= 1.0
    greedy = temperature == 0.0
    scale = T.reciprocal_or_zero(T.full_rows(cfg, block_m, temperature)) * LOG2_E

    # The largest logit, and whether all are numbers.
    highest = T.full_rows(cfg, block_m, T.NEG_INF)
    nans = T.full_rows(cfg, block_m, 0.0)
    for n0 in range(0, columns, block_n):
        t = load(cfg, logits, row, n0, last, row >= 0)
        highest = T.maximum(highest, T.rowmax(t))
        nans = nans + T.rowsum(T.at_least(t, T.NEG_INF) * -1.0 + 1.0)
    peak = T.largest(highest)
    invalid = T.total(nans) > 0.0 or peak == INFINITY or peak == T.NEG_INF
    searching = in_range and not invalid and not greedy

    low, high = LOWEST, HIGHEST
    if searching and top_k < (block_m - 1) * own + columns:
        while high - low > 1:
            middle = (low + high) // 2
            kept = T.total(counts(cfg, logits, row, last, T.ordered_float(middle)))
            if kept >= top_k:
                low = middle
            else:
                high = middle
            if kept == top_k:
                high = low + 1

    if searching and top_p < 1.0:
        needed = T.total(masses(cfg, logits, row, last, T.ordered_float(low), peak, scale)) * top_p
        high = HIGHEST
        while high - low > 1:
            middle = (low + high) // 2
            if T.total(masses(cfg, logits, row, last, T.ordered_float(middle), peak, scale)) >= needed:
                low = middle
            else:
                high = middle

    bound = T.ordered_float(low)
    u = uniform(seed, offset)
    if greedy:
        bound = peak
        u = 0.0

    token = drawn(cfg, logits, row, last, own, bound, peak, scale, u)
    if invalid:
        token = -1
        T.store_rows(error, (0,), T.full_rows(cfg, block_m, 1.0), row == 0)
    if not in_range:
        token = -1
        T.store_rows(refused, (0,), T.full_rows(cfg, block_m, 1.0), row == 0)
    T.store_rows(out, (b,), row * 0 + token, row == 0)
