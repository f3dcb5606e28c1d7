"""Sums of squares that neither overflow nor vanish, as device functions for the norms.

The sum over what has been seen of a row is kept in units of ``m^2``, m being the largest absolute value so far, and is
rescaled when m grows, as the denominator of an online softmax is. So 1e25 and 1e-25 in float32 cost no digits.
"""

from rocmkern import tile as T

LARGEST_FLOAT32 = 3.4028234663852886e38


@T.device
def unit(m):
    """``1 / sqrt(m)``: twice a factor, it brings values of size m to 1 without overflow; 1 where m is 0 or infinite."""
    m = T.where(m > LARGEST_FLOAT32, 1.0, m)
    return T.reciprocal_or_zero(T.sqrt(T.where(m == 0.0, 1.0, m)))


@T.device
def add_squares(t, m, total):
    """Take the squares of a tile into ``total``; returns the new m and total."""
    new = T.maximum(m, T.rowmax(T.absolute(T.copy(t))))
    scale = unit(new)
    scaled = T.copy(t) * scale * scale
    # Exactly 1 where m stays as it is: a rounding in each step would add up.
    shrink = T.where(m == new, 1.0, m * scale * scale)
    return new, total * shrink * shrink + T.rowdot(scaled, scaled)
