"""Launches of the cross-entropy: rows ``[M, K]``, weights ``[V, K]``, and one number for each row."""

from __future__ import annotations

from typing import Any

from rocmkern.calls.arguments import FLOAT32
from rocmkern.calls.launch import ceil_div, error_word, inner_result, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.loss import tuning
from rocmkern.ops.loss.kernels import logit_sums, row_losses, sum_losses
from rocmkern.ops.loss.problem import CrossEntropy


def launch_row_losses(
    x: View, weight: View, bias: View | None, labels: View, loss: View, lse: View, options: CrossEntropy, stream: Stream
) -> None:
    """``kernels.logit_sums``, then ``kernels.row_losses``."""
    target = target_for(x)
    rows = x.shape[0]
    cfg = tuning.logits(logit_sums.Config, target.arch, rows, x.itemsize)
    each = tuning.numbers(row_losses.Config, target.arch)
    share = tuning.share(target.arch)
    shares = ceil_div(options.tokens, share)
    with inner_result((4, shares, rows), FLOAT32, x, target, stream) as parts:
        args: dict[str, Any] = {"x": x, "weight": weight, "bias": bias, "target": labels, "parts": parts}
        args |= {"cap": options.cap, "share": share}
        launch(target, logit_sums.logit_sums, cfg, (ceil_div(rows, cfg.block_m), shares, 1), args, stream)
        args = {"parts": parts, "target": labels, "loss": loss, "lse": lse}
        args["error"] = error_word(target, "linear_cross_entropy", "target", "weight", "the loss of its row is 0")
        args |= {"tokens": options.tokens, "ignored": options.ignored}
        args |= {"smoothing": options.smoothing, "z_loss": options.z_loss}
        launch(target, row_losses.row_losses, each, (ceil_div(rows, each.block_m), 1, 1), args, stream)


def launch_sum_losses(loss: View, labels: View, out: View, options: CrossEntropy, stream: Stream) -> None:
    """``kernels.sum_losses``."""
    target = target_for(out)
    cfg = tuning.numbers(sum_losses.Config, target.arch)
    args = {"loss": loss, "target": labels, "out": out, "tokens": options.tokens, "ignored": options.ignored}
    args["mean"] = int(options.reduction == "mean")
    launch(target, sum_losses.sum_losses, cfg, (1, 1, 1), args, stream)
