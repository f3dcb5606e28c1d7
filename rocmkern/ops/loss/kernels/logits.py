"""What the forward and the backward kernel of the cross-entropy share: a block of logits, and options of a row."""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` tokens, ``block_k`` of the inner axis in a step.

    ``group_m``: see `rocmkern.ops.linear.kernels.product_block`.
    """

    block_m: int = 16
    block_n: int = 16
    block_k: int = 16
    group_m: int = 0


def capped(logit, cap, inverse):
    """A logit between -cap and cap."""
    return cap * T.tanh(logit * inverse)


@T.device
def logits_of(cfg, products, bias, col0, cap, valid):
    """Logits of the tokens from ``col0`` on (consumes the products): with the bias, and capped unless ``cap`` is 0."""
    if bias.shape[0] > 0:
        products = products + T.load_tile(cfg, bias, (0,), col0, cfg.block_n, valid)
    if cap > 0.0:
        products = T.map(capped, products, cap, 1.0 / cap)
    return products
