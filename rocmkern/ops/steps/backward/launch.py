"""Launches of the gradients of the steps of attention: ``[batch, head, row, column]`` views."""

from __future__ import annotations

from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.steps.backward.kernels import softmax_backward
from rocmkern.ops.streaming import by_rows


def launch_softmax_backward(dout: View, y: View, dx: View, scale: float, stream: Stream) -> None:
    """``kernels.softmax_backward``."""
    args = {"dout": dout, "y": y, "dx": dx, "scale": scale}
    kernel, config = softmax_backward.softmax_backward, softmax_backward.Config
    by_rows(kernel, config, dx, args, stream, along_lanes=True, whole=True)
