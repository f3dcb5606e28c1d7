"""Product of one row with a matrix that is stored by rows: ``out = activation(x @ w^T + bias)``.

Every number of w is used once, so this is a matter of how fast w streams through.

Shapes (x, bias, out: any strides)::

    x [A, B, 1, K]   w [A, B, N, K]   bias [1, N] or [0, 0]   out [A, B, 1, N]

With ``cfg.format`` w is quantized: uint8 [A, B, N, bytes of K elements], decoded in registers; scales go to sums.

Mapping. The tile rows of a block are ``block_n`` rows of w; it walks along K, ``block_k`` at a time. Grid: (row block
of w, B, A). Rows lie along the lanes of a wave, and there is no shared memory and no barrier; or along those of all
waves of a block, whose sums meet at the end. With ``cfg.split_kv`` all waves have all rows and a part of K, and a
target may bring packed bytes to shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.activations.kernels.activations import activate


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration.

    Attributes
    ----------
    block_n, block_k : int
        Rows of w of a block, and what it takes of K in a step.
    format : str
        Quantized format of w; ``""`` is none.
    alignment : int
        Rows of a quantized w start at multiples of so many bytes.
    """

    block_n: int = 16
    block_k: int = 64
    format: str = ""
    alignment: int = 1


@T.kernel
def row_product(
    cfg,
    x: T.Tensor[4],
    w: T.Tensor[4],
    bias: T.Tensor[2].optional("x"),
    out: T.Out[4],
    activation: T.Int,
):
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_n) + T.block_id(cfg, 0) * cfg.block_n
    valid = row < w.shape[2]
    weights = T.quantized(w[a, b], cfg.format, x, cfg.alignment)

    total = T.full_rows(cfg, cfg.block_n, 0.0)
    for k0 in range(0, x.shape[3], cfg.block_k):
        total = total + T.matvec(cfg, weights, (row,), k0, cfg.block_k, x[a, b, 0], valid)

    if bias.shape[0] > 0:
        total = total + T.load_rows(bias, (0, row), valid)
    T.store_rows(out, (a, b, 0, row), activate(total, activation), valid)
