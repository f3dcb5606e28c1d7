"""The end of a sum of squares, as a device function for the norms; the sum itself is `tile.api.square_step`."""

from rocmkern import tile as T

LARGEST_FLOAT32 = 3.4028234663852886e38


@T.device
def unit(m):
    """``1 / sqrt(m)``: twice a factor, it brings values of size m to 1 without overflow; 1 where m is 0 or infinite."""
    m = T.where(m > LARGEST_FLOAT32, 1.0, m)
    return T.reciprocal_or_zero(T.sqrt(T.where(m == 0.0, 1.0, m)))
