"""Launches of the gradients of gated activations: ``[..., ..., row, column]`` views."""

from __future__ import annotations

from typing import Any

from rocmkern.architectures import tuned
from rocmkern.calls.launch import target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.activations.backward.kernels import gated_backward
from rocmkern.ops.streaming import LaneBlock, by_rows

# A lane has five tiles: of 32 columns each they take 218 registers on sm_90, of 16 columns 104 (times not measured).
_WIDTHS = {"nvidia": {512: LaneBlock(4, 4, 32)}}


def launch_gated_backward(
    dout: View, gate: View, up: View, dgate: View, dup: View, activation: str, stream: Stream
) -> None:
    """``kernels.gated_backward`` with ``activation`` "silu", "gelu" or "gelu_tanh"."""
    features: dict[str, Any] = {name: activation == name for name in ("gelu", "gelu_tanh")}
    features["widths"] = tuned(_WIDTHS, target_for(dup).arch, None)
    args = {"dout": dout, "gate": gate, "up": up, "dgate": dgate, "dup": dup}
    by_rows(gated_backward.gated_backward, gated_backward.Config, dup, args, stream, along_lanes=True, **features)
