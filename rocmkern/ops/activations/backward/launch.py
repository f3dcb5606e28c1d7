"""Launches of the gradients of gated activations: ``[..., ..., row, column]`` views."""

from __future__ import annotations

from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.activations.backward.kernels import gated_backward
from rocmkern.ops.streaming import by_rows


def launch_gated_backward(
    dout: View, gate: View, up: View, dgate: View, dup: View, activation: str, stream: Stream
) -> None:
    """``kernels.gated_backward`` with ``activation`` "silu", "gelu" or "gelu_tanh"."""
    features = {name: activation == name for name in ("gelu", "gelu_tanh")}
    args = {"dout": dout, "gate": gate, "up": up, "dgate": dgate, "dup": dup}
    by_rows(gated_backward.gated_backward, gated_backward.Config, dup, args, stream, along_lanes=True, **features)
