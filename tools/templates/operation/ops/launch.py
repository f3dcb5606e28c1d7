"""Launch of `new_operation`: ``[..., ..., row, column]`` views."""

from __future__ import annotations

from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.new_operation.kernels import new_operation
from rocmkern.ops.streaming import by_rows


def launch_new_operation(x: View, out: View, stream: Stream) -> None:
    """``kernels.new_operation``."""
    args = {"x": x, "out": out}
    by_rows(new_operation.new_operation, new_operation.Config, out, args, stream, along_lanes=True)
