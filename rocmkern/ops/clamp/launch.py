"""Launch of `clamp`: ``[..., ..., row, column]`` views."""

from __future__ import annotations

import math

from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.clamp.kernels import clamp
from rocmkern.ops.streaming import by_rows


def launch_clamp(x: View, out: View, low: float | None, high: float | None, stream: Stream) -> None:
    """``kernels.clamp``."""
    bounds = {"low": -math.inf if low is None else low, "high": math.inf if high is None else high}
    by_rows(clamp.clamp, clamp.Config, out, {"x": x, "out": out, **bounds}, stream, along_lanes=True)
