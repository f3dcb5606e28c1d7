"""Launches of the gradients of matrix products: ``[outer, inner, row, column]`` views."""

from __future__ import annotations

from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.linear.backward.kernels import activation_gradient
from rocmkern.ops.linear.launch import ACTIVATIONS
from rocmkern.ops.streaming import by_rows


def launch_activation_gradient(x: View, dout: View, out: View, activation: str, stream: Stream) -> None:
    """``kernels.activation_gradient``."""
    args = {"x": x, "dout": dout, "out": out, "activation": ACTIVATIONS[activation]}
    dense = all(view.strides[3] == view.itemsize for view in (x, dout, out))
    kernel = activation_gradient
    by_rows(kernel.activation_gradient, kernel.Config, out, args, stream, along_lanes=dense)
