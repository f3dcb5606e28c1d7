"""Launches of the gated activations: ``[..., ..., row, column]`` views."""

from __future__ import annotations

from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.activations.kernels import gated
from rocmkern.ops.streaming import by_rows


def launch_gated(gate: View, up: View | None, out: View, activation: str, stream: Stream) -> None:
    """``kernels.gated`` with ``activation`` "silu", "gelu" or "gelu_tanh"."""
    features = {name: activation == name for name in ("gelu", "gelu_tanh")}
    args = {"gate": gate, "up": up, "out": out}
    by_rows(gated.gated, gated.Config, out, args, stream, along_lanes=True, **features)
