"""Gradients of matrix products and linear layers in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmkern.ops.activations.backward.reference import gelu_slope, silu_slope
from rocmkern.ops.linear.reference import matmul

__all__ = ["linear_backward", "matmul_backward"]


def matmul_backward(
    dout: Any,
    a: Any,
    b: Any,
    *,
    transpose_b: bool = False,
    bias: Any = None,
    activation: str | None = None,
    needs: Sequence[str] | None = None,
    compute: Any = np.float64,
) -> Any:
    """Gradients of ``activation(a @ b + bias)`` with respect to a, b and bias."""
    dz = before_activation(dout, a, b, transpose_b, bias, activation, compute)
    left = a.astype(compute)[None] if a.ndim == 1 else a.astype(compute)
    right = b.astype(compute)[:, None] if b.ndim == 1 else b.astype(compute)
    if transpose_b and b.ndim > 1:
        right = right.swapaxes(-1, -2)
    dz = dz[..., None] if b.ndim == 1 else dz
    dz = dz[..., None, :] if a.ndim == 1 else dz
    with np.errstate(all="ignore"):
        dleft = broadcast_from(dz @ right.swapaxes(-1, -2), left.shape)
        dright = broadcast_from(left.swapaxes(-1, -2) @ dz, right.shape)
        dbias = dz.sum(axis=tuple(range(dz.ndim - 1)))
    if transpose_b and b.ndim > 1:
        dright = dright.swapaxes(-1, -2)
    gradients = {"a": dleft.reshape(a.shape), "b": dright.reshape(b.shape)}
    return chosen(gradients | ({} if bias is None else {"bias": dbias}), needs)


def linear_backward(
    dout: Any,
    x: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    *,
    needs: Sequence[str] | None = None,
    compute: Any = np.float64,
) -> Any:
    """Gradients of ``activation(x @ weight^T + bias)`` with respect to x, weight and bias."""
    names = of_products(needs)
    return matmul_backward(
        dout, x, weight, transpose_b=True, bias=bias, activation=activation, needs=names, compute=compute
    )


def of_products(needs: Sequence[str] | None) -> list[str] | None:
    """The names of `matmul` for those of `linear`."""
    return None if needs is None else [{"x": "a", "weight": "b"}.get(name, name) for name in needs]


def chosen(gradients: dict[str, Any], needs: Sequence[str] | None) -> Any:
    """The gradients that are wanted, in their order; a single one by itself."""
    found = tuple(gradients[name] for name in gradients if needs is None or name in needs)
    return found if len(found) > 1 else found[0]


def broadcast_from(x: Any, shape: tuple[int, ...]) -> Any:
    """The sum over the axes along which an array of a shape was broadcast to that of x."""
    missing = x.ndim - len(shape)
    repeated = [missing + axis for axis, length in enumerate(shape) if length == 1 != x.shape[missing + axis]]
    return x.sum(axis=(*range(missing), *repeated)).reshape(shape)


def before_activation(
    dout: Any, a: Any, b: Any, transpose_b: bool, bias: Any, activation: str | None, compute: Any = np.float64
) -> Any:
    """Gradient of what the activation of a product is given."""
    dout = dout.astype(compute)
    if activation is None:
        return dout
    z = matmul(a, b, transpose_b=transpose_b, bias=bias, compute=compute)
    return activation_gradient(z, dout, activation)


def activation_gradient(x: Any, dout: Any, name: str) -> Any:
    """``dout`` times the slope of an activation at x, in the dtype of x."""
    with np.errstate(all="ignore"):
        if name == "relu":
            return np.where(x <= 0, x.dtype.type(0), dout)
        if name == "silu":
            return dout * silu_slope(x)
        return dout * gelu_slope(x, "tanh" if name == "gelu_tanh" else "none")
