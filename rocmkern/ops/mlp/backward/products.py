"""Gradients of an MLP, of the products that it is made of.

With ``gate`` and ``up`` computed again, in float32, and ``h`` and the gradients of all three rounded to the dtype of x,
which is what the products multiply::

    dh = dout @ w_down                 dw_down = dout^T @ h     db_down = ones @ dout
    dgate, dup: `kernels/hidden_gradient.py`
    dx = dgate @ w_gate + dup @ w_up   dw_gate = dgate^T @ x    dw_up = dup^T @ x    db_gate, db_up: sums of rows

The two products of dx are added up in float32. Without a gate it is two linear layers, see `linear.backward`.
"""

from __future__ import annotations

from typing import NamedTuple

from rocmkern.calls.arguments import FLOAT32
from rocmkern.calls.axes import four_axes
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.inner import Inner
from rocmkern.ops.linear.backward.products import before_activation, summed_product, summed_rows
from rocmkern.ops.linear.products import multiply


class Weights(NamedTuple):
    """Weights ``[out, in]`` and biases (``[1, out]``, or where they are gradients ``[out]``); None: there is none.

    The same for gradients of them: None is what is not wanted.
    """

    w_gate: View | None
    w_up: View | None
    w_down: View | None
    b_gate: View | None = None
    b_up: View | None = None
    b_down: View | None = None


def mlp_gradients(
    dout: View,
    x: View,
    weights: Weights,
    activation: str | None,
    dx: View | None,
    into: Weights,
    accumulate: bool,
    stream: Stream,
) -> None:
    """Gradients for ``dout`` [M, out] of rows ``x`` [M, in], where they are wanted; with ``accumulate`` added there."""
    assert weights.w_up is not None and weights.w_down is not None
    with Inner(x, stream) as inner:
        if into.b_down is not None:
            summed_rows(inner, dout, into.b_down, accumulate)
        wanted = [dx, into.w_gate, into.w_up, into.b_gate, into.b_up]
        if all(each is None for each in (*wanted, into.w_down)):
            return
        hidden = (x.shape[0], weights.w_up.shape[0])
        dh = inner.room(hidden, x.dtype)
        multiply(dout, weights.w_down, None, dh, None, inner.stream)
        h = None if into.w_down is None else inner.room(hidden, x.dtype)
        if weights.w_gate is None:
            if h is not None:
                multiply(x, weights.w_up.swapaxes(0, 1), weights.b_up, h, activation, inner.stream)
            dgate, dup = None, before_activation(inner, dh, x, weights.w_up.swapaxes(0, 1), weights.b_up, activation)
        else:
            dgate, dup = _through_gate(inner, dh, h, x, weights, activation)
        if h is not None and into.w_down is not None:
            summed_product(inner, dout.swapaxes(0, 1), h, into.w_down, accumulate)
        for dz, weight, bias in ((dgate, into.w_gate, into.b_gate), (dup, into.w_up, into.b_up)):
            if dz is not None and weight is not None:
                summed_product(inner, dz.swapaxes(0, 1), x, weight, accumulate)
            if dz is not None and bias is not None:
                summed_rows(inner, dz, bias, accumulate)
        if dx is not None:
            total = dx
            if dgate is not None and weights.w_gate is not None:
                total = inner.written(dx, dx.shape, FLOAT32, filled=accumulate)
                multiply(dgate, weights.w_gate, None, total, None, inner.stream, accumulate=accumulate)
                accumulate = True
            multiply(dup, weights.w_up, None, total, None, inner.stream, accumulate=accumulate)


def _through_gate(
    inner: Inner, dh: View, h: View | None, x: View, weights: Weights, activation: str | None
) -> tuple[View, View]:
    """Gradients of gate and up; with ``h`` that is computed as well."""
    # deferred: start-up
    from rocmkern.ops.mlp.backward.launch import launch_hidden_gradient

    assert weights.w_gate is not None and weights.w_up is not None
    gate, up = (inner.room(dh.shape, FLOAT32) for _ in range(2))
    multiply(x, weights.w_gate.swapaxes(0, 1), weights.b_gate, gate, None, inner.stream)
    multiply(x, weights.w_up.swapaxes(0, 1), weights.b_up, up, None, inner.stream)
    dgate, dup = (each if each.dtype == dh.dtype else inner.room(dh.shape, dh.dtype) for each in (gate, up))
    views = [gate, up, dh, dgate, dup] if h is None else [gate, up, dh, dgate, dup, h]
    for a, b, c, d, e, *f in four_axes(*views, row_axes=1):
        launch_hidden_gradient(a, b, c, f[0] if f else None, d, e, activation, inner.stream)
    return dgate, dup
