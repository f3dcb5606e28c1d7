"""Gradients of gated activations ``f(gate) * up``, f being SiLU, GELU or GELU's tanh form (Shazeer, 2020)::

    dgate = dout * f'(gate) * up
    dup   = dout * f(gate)

    SiLU    f'(x) = s + x s (1 - s)                      s = 1 / (1 + exp(-x))
    GELU    f'(x) = s + x phi(x)                         s = Phi(x), of the normal distribution
    tanh    f'(x) = s + x s (1 - s) 2 c (1 + 3 a x^2)    s = 1 / (1 + exp(-2 z)), z = c (x + a x^3)

with ``c = sqrt(2 / pi)`` and ``a = 0.044715``. All are computed where x is negative, from ``x s = f(x)``, which has all
its digits there: ``f'(x) = 1 - f'(-x)`` and ``f(x) = x + f(-x)``. So slopes that are nearly 0 have all digits too. What
lies beyond where f' has become 0 or 1 counts as the border, so that infinity times 0 does not occur.

Shapes (any strides): dout, gate, up, dgate, dup [A, B, R, N]. Mapping: a block takes ``block_m`` rows, ``block_n``
columns at a time; a result may be one of the inputs, because each block reads what it overwrites first. Grid: (row
block, B, A). No shared memory.
"""

from dataclasses import dataclass

from rocmkern import tile as T

LOG2_E = 1.4426950408889634
INVERSE_ROOT_2_PI = 0.3989422804014327
ROOT_2_OVER_PI = 0.7978845608028654
CUBE = 0.044715
SMALLEST, FAR = 2.0**-24, 120.0
TO_SIXTEENTHS = 1.5 * 2.0**19


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``block_m`` rows by ``block_n`` columns; SiLU unless ``gelu`` or ``gelu_tanh``."""

    block_m: int = 16
    block_n: int = 64
    gelu: bool = False
    gelu_tanh: bool = False


def below(x):
    """-|x|, where that is not too far: what f is computed of."""
    size = abs(x)
    return -T.where(size > FAR, FAR, size)


def value(x, f):
    """f(x) from f(-|x|)."""
    return T.where(x < 0.0, f, x + f)


def share(a, f):
    """``f(a) / a``; NaN stays NaN."""
    return T.where(a > -SMALLEST, 0.5, f / a)


def on_its_side(x, slope):
    """The slope at x from that at -|x|."""
    return T.where(x < 0.0, slope, 1.0 - slope)


def of_share(s, f, inner):
    """``s + f (1 - s) inner``."""
    return s + f * (1.0 - s) * inner


def density(x):
    """Of the normal distribution, ``exp(-x^2 / 2) / sqrt(2 pi)``.

    A square and its product with log2(e) / 2 would lack as many digits as the exponent has. So there are two powers:
    one of the square of x rounded to a multiple of 1 / 16, which is exact, and so is its product with 23 / 32.
    """
    near = (x + TO_SIXTEENTHS) - TO_SIXTEENTHS
    square = near * near
    rest = square * (0.5 * LOG2_E - 0.71875) + (x - near) * (x + near) * (0.5 * LOG2_E)
    return T.exp2(square * -0.71875) * T.exp2(-rest) * INVERSE_ROOT_2_PI


def silu_slope(x, f):
    """The slope at x from f(-|x|), as those below."""
    return on_its_side(x, of_share(share(below(x), f), f, 1.0))


def gelu_slope(x, f):
    a = below(x)
    return on_its_side(x, share(a, f) + a * density(a))


def gelu_tanh_slope(x, f):
    a = below(x)
    return on_its_side(x, of_share(share(a, f), f, (1.0 + 3.0 * CUBE * a * a) * (2.0 * ROOT_2_OVER_PI)))


@T.kernel
def gated_backward(
    cfg, dout: T.Tensor[4], gate: T.Tensor[4], up: T.Tensor[4], dgate: T.Out[4], dup: T.Out[4]
):  # fmt: skip
    a = T.block_id(cfg, 2)
    b = T.block_id(cfg, 1)
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    valid = row < dout.shape[2]
    for n0 in range(0, dout.shape[3], cfg.block_n):
        d = T.load_tile(cfg, dout[a, b], (row,), n0, cfg.block_n, valid)
        t = T.load_tile(cfg, gate[a, b], (row,), n0, cfg.block_n, valid)
        u = T.load_tile(cfg, up[a, b], (row,), n0, cfg.block_n, valid)
        f = T.map(below, T.copy(t))
        if cfg.gelu:
            f = T.gelu(f)
            slope = T.map(gelu_slope, T.copy(t), T.copy(f))
        elif cfg.gelu_tanh:
            f = T.gelu_tanh(f)
            slope = T.map(gelu_tanh_slope, T.copy(t), T.copy(f))
        else:
            f = T.silu(f)
            slope = T.map(silu_slope, T.copy(t), T.copy(f))
        T.store_tile(T.reread(dgate)[a, b], (row,), n0, slope * T.copy(d) * u, valid)
        T.store_tile(T.reread(dup)[a, b], (row,), n0, T.map(value, t, f) * d, valid)
