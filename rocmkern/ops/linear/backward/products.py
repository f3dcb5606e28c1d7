"""Gradients of a product ``activation(left @ right + bias)`` of views with any leading axes.

With ``z`` what the activation is given, and sums over the axes along which a side was broadcast::

    dz = dout * activation'(z)     dleft = dz @ right^T     dright = left^T @ dz     dbias = ones @ dz

Axes that are summed over are joined with the inner axis of the product: so there is one sum, in float32, and one
rounding. What cannot be joined as a view is copied. dz is rounded to the dtype of the product's sides, which is what
the products multiply.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rocmkern.calls.arguments import FLOAT32, FLOATS
from rocmkern.calls.axes import rows_of
from rocmkern.calls.launch import constant
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.inner import Inner
from rocmkern.ops.linear.products import multiply

#: Rows that are added up in one chain in float32, in which the roundings of equal numbers all go one way: the sum of
#: so many tenths is off by 2e-6 of it, that of 4096 in a chain by 4e-5, that of a million by 3e-3 (measured on a CPU).
LONGEST = 256
_ONES = {dtype: np.ones(1, dtype) for dtype in FLOATS}


class Gradients(NamedTuple):
    """Where gradients are written; None: not wanted. With ``accumulate`` they are added to what is there.

    ``left`` and ``right`` have the shapes of the sides of the product, ``bias`` is ``[N]``.
    """

    left: View | None
    right: View | None
    bias: View | None
    accumulate: bool = False


def product_gradients(
    dout: View, left: View, right: View, bias: View | None, activation: str | None, into: Gradients, stream: Stream
) -> None:
    """Gradients of ``left`` [..., M, K], ``right`` [..., K, N] and ``bias`` [1, N], for ``dout`` [..., M, N].

    Leading axes of both sides broadcast to those of dout; ``right`` may have none.
    """
    with Inner(left, stream) as inner:
        dz = before_activation(inner, dout, left, right, bias, activation)
        if into.left is not None:
            summed_product(inner, dz, right.swapaxes(-1, -2), into.left, into.accumulate)
        if into.right is not None:
            summed_product(inner, left.swapaxes(-1, -2), dz, into.right, into.accumulate)
        if into.bias is not None:
            summed_rows(inner, dz, into.bias, into.accumulate)


def before_activation(
    inner: Inner, dout: View, left: View, right: View, bias: View | None, activation: str | None
) -> View:
    """Gradient of what the activation is given, which is computed again."""
    if activation is None:
        return dout
    leading = dout.shape[:-2]
    left = left.broadcast_to((*leading, *left.shape[-2:]))
    right = right.broadcast_to((*leading, *right.shape[-2:])) if right.ndim > 2 else right
    z = inner.room(dout.shape, FLOAT32)
    multiply(left, right, bias, z, None, inner.stream)
    return through_activation(inner, z, dout, activation)


def through_activation(inner: Inner, z: View, dout: View, activation: str) -> View:
    """``dout * activation'(z)`` of float32 z, in its memory where dout is float32 too."""
    # deferred: start-up
    from rocmkern.ops.linear.backward.launch import launch_activation_gradient

    dz = z if dout.dtype == FLOAT32 else inner.room(dout.shape, dout.dtype)
    for some_z, some_dout, some_dz in rows_of(z, dout, dz):
        launch_activation_gradient(some_z, some_dout, some_dz, activation, inner.stream)
    return dz


def summed_product(inner: Inner, left: View, right: View, out: View, accumulate: bool = False) -> None:
    """``left @ right``, summed over the leading axes that ``out`` does not have, or has with length 1."""
    if not out.size:
        return
    leading = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    count, missing = len(leading), len(leading) - (out.ndim - 2)
    summed = [axis for axis in range(count) if axis < missing or out.shape[axis - missing] != leading[axis]]
    if summed:
        kept = [axis for axis in range(count) if axis not in summed]
        lengths = tuple([leading[axis] for axis in kept])
        left = left.broadcast_to((*leading, *left.shape[-2:])).transpose(*kept, count, *summed, count + 1)
        right = right.broadcast_to((*leading, *right.shape[-2:])).transpose(*kept, *summed, count, count + 1)
        depth = math.prod(right.shape[len(kept) : -1])
        left = inner.reshaped(left, (*lengths, out.shape[-2], depth))
        right = inner.reshaped(right, (*lengths, depth, out.shape[-1]))
        out = out[tuple([0 if axis in summed else slice(None) for axis in range(missing, count)])]
    elif right.ndim > 2:
        left, right = (side.broadcast_to((*leading, *side.shape[-2:])) for side in (left, right))
    if left.ndim == right.ndim and out.strides[-1] != out.itemsize == out.strides[-2]:
        # The result lies in columns: those are rows of the transposed product.
        left, right, out = (x.swapaxes(-1, -2) for x in (right, left, out))
    multiply(left, right, None, out, None, inner.stream, accumulate=accumulate)


def summed_rows(inner: Inner, x: View, out: View, accumulate: bool = False) -> None:
    """Sum of the rows of ``x`` [..., N] in ``out`` [N], by products with ones: of `LONGEST` rows, then of the sums."""
    if not out.size:
        return
    rows = inner.reshaped(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    while rows.shape[0] > LONGEST:
        rows = _sums_of_rows(inner, rows)
    _multiply_ones(inner, rows, out[None], accumulate)


def bytes_of_sums(count: int) -> int:
    """What `summed_rows` of so many rows needs for a column, at most."""
    return FLOAT32.itemsize * (count // (LONGEST - 1) + 2) if count > LONGEST else 0


def _sums_of_rows(inner: Inner, rows: View) -> View:
    """Sums of each `LONGEST` rows, and of the last ones, which are fewer."""
    count, last = divmod(rows.shape[0], LONGEST)
    sums = inner.room((count + (last > 0), rows.shape[1]), FLOAT32)
    _multiply_ones(inner, inner.reshaped(rows[: count * LONGEST], (count, LONGEST, rows.shape[1])), sums[:count, None])
    if last:
        _multiply_ones(inner, rows[count * LONGEST :], sums[count:])
    return sums


def _multiply_ones(inner: Inner, rows: View, out: View, accumulate: bool = False) -> None:
    """``[..., 1, N]`` from rows ``[..., R, N]``."""
    ones = constant(inner.target, _ONES[rows.dtype]).broadcast_to((*rows.shape[:-2], 1, rows.shape[-2]))
    multiply(ones, rows, None, out, None, inner.stream, accumulate=accumulate)
