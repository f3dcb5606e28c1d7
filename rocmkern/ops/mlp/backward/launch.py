"""Launches of the gradient of the MLP: ``[outer, inner, row, column]`` views."""

from __future__ import annotations

from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.linear.launch import ACTIVATIONS
from rocmkern.ops.mlp.backward.kernels import hidden_gradient
from rocmkern.ops.streaming import by_rows


def launch_hidden_gradient(
    gate: View, up: View, dh: View, h: View | None, dgate: View, dup: View, activation: str | None, stream: Stream
) -> None:
    """``kernels.hidden_gradient``."""
    args = {"gate": gate, "up": up, "dh": dh, "h": h, "dgate": dgate, "dup": dup}
    numbers = {"activation": ACTIVATIONS[activation]}
    kernel = hidden_gradient
    by_rows(kernel.hidden_gradient, kernel.Config, dup, args | numbers, stream, along_lanes=True)
