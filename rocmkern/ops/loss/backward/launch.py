"""Launches of the gradient of the cross-entropy, as those of the cross-entropy."""

from __future__ import annotations

from typing import Any

from rocmkern.calls.launch import ceil_div, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.loss import tuning
from rocmkern.ops.loss.backward.kernels import logit_gradients, row_factors
from rocmkern.ops.loss.problem import CrossEntropy


def block_of(x: View) -> tuple[int, int]:
    """Rows and tokens of a block of `launch_logit_gradients`, for all rows ``x`` [M, K]."""
    cfg = tuning.logits(logit_gradients.Config, target_for(x).arch, x.shape[0], x.itemsize)
    return cfg.block_m, cfg.block_n


def launch_row_factors(dloss: View, labels: View, out: View, options: CrossEntropy, stream: Stream) -> None:
    """``kernels.row_factors``."""
    target = target_for(out)
    cfg = tuning.numbers(row_factors.Config, target.arch)
    args = {"dloss": dloss, "target": labels, "out": out, "tokens": options.tokens, "ignored": options.ignored}
    args["mean"] = int(options.reduction == "mean")
    launch(target, row_factors.row_factors, cfg, (1, 1, 1), args, stream)


def launch_logit_gradients(
    x: View,
    weight: View,
    bias: View | None,
    labels: View,
    lse: View,
    factors: View,
    out: View,
    first: int,
    options: CrossEntropy,
    stream: Stream,
) -> None:
    """``kernels.logit_gradients`` of the tokens from ``first`` on, whose weights and biases are given."""
    target = target_for(x)
    rows, columns = out.shape
    cfg = tuning.logits(logit_gradients.Config, target.arch, rows, x.itemsize)
    args: dict[str, Any] = {"x": x, "weight": weight, "bias": bias, "target": labels}
    args |= {"lse": lse, "factors": factors, "out": out}
    args |= {"first": first, "cap": options.cap, "kept": 1.0 - options.smoothing}
    args |= {"share": options.smoothing / options.tokens, "z_loss": options.z_loss}
    grid = (ceil_div(rows, cfg.block_m) * ceil_div(columns, cfg.block_n), 1, 1)
    launch(target, logit_gradients.logit_gradients, cfg, grid, args, stream)
