"""Gradients of a linear layer with quantized weights ``W``, which are decoded inside the products::

dz = dout * activation'(x @ W^T + bias)     dx = dz @ W     dbias = ones @ dz
"""

from __future__ import annotations

from rocmkern.calls.arguments import FLOAT32
from rocmkern.calls.view import View
from rocmkern.ops.inner import Inner
from rocmkern.ops.linear.backward.products import summed_rows, through_activation


def quantized_gradients(
    inner: Inner,
    dout: View,
    x: View,
    blocks: View,
    bias: View | None,
    name: str,
    activation: str | None,
    dx: View | None,
    dbias: View | None,
    accumulate: bool,
) -> None:
    """Gradients for ``dout`` [M, out] of ``x`` [M, in] and ``bias`` [1, out], where they are wanted."""
    # deferred: start-up
    from rocmkern.ops.quantized.backward.launch import launch_quantized_gradient

    dz = dout
    if activation is not None and dout.size:
        dz = _before_activation(inner, dout, x, blocks, bias, name, activation)
    if dx is not None and dx.size:
        launch_quantized_gradient(dz, blocks, dx, name, accumulate, inner.stream)
    if dbias is not None:
        summed_rows(inner, dz, dbias, accumulate)


def _before_activation(
    inner: Inner, dout: View, x: View, blocks: View, bias: View | None, name: str, activation: str
) -> View:
    """Gradient of what the activation is given, which is computed again."""
    # deferred: start-up
    from rocmkern.ops.quantized.launch import launch_quantized_linear

    z = inner.room(dout.shape, FLOAT32)
    launch_quantized_linear(x[None, None], blocks, bias, z[None, None], name, None, inner.stream, x.shape[0])
    return through_activation(inner, z, dout, activation)
