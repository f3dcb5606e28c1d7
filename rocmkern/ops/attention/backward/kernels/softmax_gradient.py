"""What the gradients of attention share: weights from log-sum-exps, gradients of scores, softcap, the configuration.

For a query i and a key j, with the score s and its capped part c = softcap * tanh(...)::

    p = min(exp(s - lse_i), 1)
    ds = p * (dout_i . v_j - delta_i)        delta_i = dout_i . out_i - dlse_i
    the product's gradient: scale * ds * (1 - (c / softcap) ** 2)

A weight of 0 makes a gradient of 0, whatever dout and v hold: so what is hidden stays hidden. Rows of a tile are
queries and its columns keys, or the other way round; then log-sum-exps and deltas are tiles whose rows are alike.
"""

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.ops.attention.kernels.scores import bias_scores, cap_scores, hide_scores

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration of the kernels with products.

    Attributes
    ----------
    block_m, block_n : int
        Rows of a block, and columns of a step.
    head_dim, value_dim : int
        Upper bounds of D and Dv: the bucket, not the exact value.
    score_mods : bool
        Whether softcap, ALiBi, bias and mask are looked at. Each of them is then switched on at run time.
    """

    block_m: int = 16
    block_n: int = 16
    head_dim: int = 64
    value_dim: int = 64
    score_mods: bool = False


def exponent(score, scale, offset):
    """What 2 is raised to for a weight, which is at most 1.

    Where a log-sum-exp is large, its last digit alone is a factor of many; so it is taken off before anything is
    rounded, and what is still above 0 is a rounding.
    """
    power = T.multiply_add(score, scale, offset) * LOG2_E
    return T.where(power > 0.0, 0.0, power)


def of_score(product, weight, delta):
    """The gradient of a score, from dout . v."""
    return weight * (product - delta)


def of_score_where(product, weight, delta):
    """As `of_score`, but 0 where the weight is, whatever the rest holds: the score may be hidden."""
    return T.where(weight == 0.0, 0.0, weight * (product - delta))


def of_cap(gradient, capped, inverse):
    """The gradient of a score before its softcap; 0 stays 0, whatever the score of what is hidden is."""
    ratio = capped * inverse
    return T.where(gradient == 0.0, 0.0, gradient * (1.0 - ratio * ratio))


@T.device
def exponents_of(cfg, s, offset, scale, softcap, alibi_slopes, bias, mask, head, row, diagonal, n0, valid):
    """What 2 is raised to for the weights, from raw products (consumed) and offsets: -lse.

    ``alibi_slopes`` are those of a sequence, ``bias`` and ``mask`` those of a batch element.
    """
    if cfg.score_mods:
        s = bias_scores(cfg, cap_scores(s, scale, softcap), alibi_slopes, bias, head, row, diagonal, n0, valid)
        return hide_scores(cfg, T.map(exponent, s, 1.0, offset), mask, head, row, n0, valid)
    return T.map(exponent, s, scale, offset)


@T.device
def gradient_of(cfg, product, weight, delta, at_border):
    """Gradients of scores, from dout . v, weights (both consumed) and deltas; off the border nothing is hidden."""
    if cfg.score_mods or at_border:
        return T.map(of_score_where, product, weight, delta)
    return T.map(of_score, product, weight, delta)


@T.device
def before_cap(ds, product, scale, softcap):
    """Gradients of scores before their softcap, from those behind it and the raw products once more (consumes both)."""
    return T.map(of_cap, ds, cap_scores(product, scale, softcap), 1.0 / softcap)
