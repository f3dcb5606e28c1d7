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
    """Sum of the rows of ``x`` [..., N] in ``out`` [N], as a product with ones."""
    if not out.size:
        return
    rows = math.prod(x.shape[:-1])
    ones = constant(inner.target, _ONES[x.dtype]).broadcast_to((1, rows))
    multiply(ones, inner.reshaped(x, (rows, x.shape[-1])), None, out[None], None, inner.stream, accumulate=accumulate)
