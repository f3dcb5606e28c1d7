"""Launches of the MLP: ``[outer, inner, row, column]`` views."""

from __future__ import annotations

from typing import Any

from rocmkern.calls import invariance as _invariance
from rocmkern.calls.launch import ceil_div, inner_result, launch, stream_of, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.linear.launch import ACTIVATIONS, launch_matmul
from rocmkern.ops.linear.tuning import one_row
from rocmkern.ops.mlp import tuning
from rocmkern.ops.mlp.kernels import gated_mlp, gated_row


def launch_mlp(
    x: View,
    w_gate: View | None,
    w_up: View,
    w_down: View,
    b_gate: View | None,
    b_up: View | None,
    b_down: View | None,
    out: View,
    activation: str | None,
    stream: Stream,
    rows: int,
) -> None:
    """``kernels.gated_mlp`` (or ``kernels.matmul`` without a gate), then ``kernels.matmul``; rows as there."""
    target = target_for(x)
    outer, inner, own_rows, _ = x.shape
    hidden_size = w_up.shape[0]
    stream = stream_of(x, stream)

    def weights(w: View) -> View:
        """A weight as the right side of every product."""
        return w.swapaxes(0, 1).broadcast_to((outer, inner, *w.shape[::-1]))

    with inner_result((outer, inner, own_rows, hidden_size), x.dtype, x, target, stream) as hidden:
        if w_gate is None:
            launch_matmul(x, weights(w_up), b_up, hidden, activation, stream, rows)
        else:
            args: dict[str, Any] = {
                "x": x,
                "w_gate": w_gate,
                "w_up": w_up,
                "b_gate": b_gate,
                "b_up": b_up,
                "out": hidden,
            }
            args["activation"] = ACTIVATIONS[activation]
            invariant = _invariance.active()
            by_rows = not invariant and all(w.strides[1] == w.itemsize for w in (w_gate, w_up))
            sizes = one_row(target.arch, rows, hidden_size, x.shape[3]) if by_rows else None
            if sizes:
                row_cfg = tuning.gated_row_of(target.arch, sizes)
                grid = (ceil_div(hidden_size, row_cfg.block_n), inner, outer)
                launch(target, gated_row.gated_row, row_cfg, grid, args, stream)
            else:
                cfg = tuning.gated_product(target.arch, rows, x.itemsize, invariant)
                grid = (ceil_div(own_rows, cfg.block_m) * ceil_div(hidden_size, cfg.block_n), inner, outer)
                launch(target, gated_mlp.gated_mlp, cfg, grid, args, stream)
        launch_matmul(hidden, weights(w_down), b_down, out, None, stream, rows)
