"""Matrix product with bias and activation: ``out = activation(a @ b + bias)``.

Shapes (any strides)::

    a [A, B, M, K], or [A, B, K, M] if cfg.left_transposed   b [A, B, N, K] if cfg.transposed, else [A, B, K, N]
    bias [M, N] or [0, 0]
    out [splits, A, B, M, N]

With ``cfg.format`` b is quantized: uint8 [A, B, N, bytes of K elements], decoded where a window of it is brought in.

Mapping. A block computes ``block_m`` x ``block_n`` of one product and walks along K, ``block_k`` at a time; both sides
are windows that move along, ``num_stages`` of them ahead. Its grid index is (row block and column block, B, A x
split), see
`product_block`. With ``splits`` > 1 each block takes its share of K and writes a partial sum without bias and
activation; `sum_splits` adds them up. That is for products of so few rows and columns that there are not enough blocks
otherwise.

Shared memory: windows of each side, ``(block_m + block_n) * block_k`` elements in use and as many for each on its way.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.activations.kernels.activations import activate
from rocmkern.ops.linear.kernels.product_block import product_block


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration.

    Attributes
    ----------
    block_m, block_n, block_k : int
        Rows and columns of a block's part of the product, and what it takes of K in a step.
    transposed, left_transposed : bool
        Whether b is stored as [N, K], and a as [K, M].
    group_m : int
        See `product_block`.
    format : str
        Quantized format of b; ``""`` is none.
    """

    block_m: int = 16
    block_n: int = 16
    block_k: int = 16
    transposed: bool = True
    left_transposed: bool = False
    group_m: int = 0
    format: str = ""

    @property
    def window_rows(self) -> int:
        """Rows of a window of b."""
        return self.block_n if self.transposed else self.block_k

    @property
    def window_columns(self) -> int:
        """Columns of a window of b."""
        return self.block_k if self.transposed else self.block_n


@T.device
def fetch_right(cfg, right, col0, k0):
    """Fetch the window of b for columns from ``col0`` and the part of K from ``k0``."""
    if cfg.transposed:
        right = T.fetch(right, col0, k0)
    else:
        right = T.fetch(right, k0, col0)
    return right


@T.kernel
def matmul(
    cfg,
    a: T.Tensor[4],
    b: T.Tensor[4],
    bias: T.Tensor[2].optional("a"),
    out: T.Out[5],
    activation: T.Int,
    splits: T.Int,
):
    # Which part of which product.
    outer, split = T.block_id(cfg, 2) // splits, T.block_id(cfg, 2) % splits
    inner = T.block_id(cfg, 1)
    source = T.transposed(a[outer, inner], cfg.left_transposed)
    row_blocks = (source.shape[0] + cfg.block_m - 1) // cfg.block_m
    column_blocks = (out.shape[4] + cfg.block_n - 1) // cfg.block_n
    row_block, column_block = product_block(cfg, T.block_id(cfg, 0), row_blocks, column_blocks)
    row0, col0 = row_block * cfg.block_m, column_block * cfg.block_n
    row = T.row_index(cfg, cfg.block_m) + row0
    valid = row < source.shape[0]
    steps = (source.shape[1] + cfg.block_k - 1) // cfg.block_k
    share = (steps + splits - 1) // splits * cfg.block_k
    begin = split * share
    end = min(begin + share, source.shape[1])

    left = T.stage(cfg, source, cfg.block_m, cfg.block_k)
    right = T.stage(cfg, T.quantized(b[outer, inner], cfg.format, a), cfg.window_rows, cfg.window_columns)
    for ahead in range(0, cfg.num_stages * cfg.block_k, cfg.block_k):
        left = T.fetch(left, row0, begin + ahead)
        right = fetch_right(cfg, right, col0, begin + ahead)
    acc = T.zeros(cfg, cfg.block_m, cfg.block_n)
    for k0 in range(begin, end, cfg.block_k):
        left = T.acquire(left)
        right = T.acquire(right)
        left = T.fetch(left, row0, k0 + cfg.num_stages * cfg.block_k)
        right = fetch_right(cfg, right, col0, k0 + cfg.num_stages * cfg.block_k)
        acc = T.dot(left, right, cfg.transposed, acc)
        left = T.release(left)
        right = T.release(right)
    T.finish(left)
    T.finish(right)

    if bias.shape[0] > 0:
        acc = acc + T.load_tile(cfg, bias, (row,), col0, cfg.block_n, valid)
    T.store_tile(out[split, outer, inner], (row,), col0, activate(acc, activation), valid)
