"""The cross-entropy of rows with any leading axes."""

from __future__ import annotations

import math

from rocmkern.calls.arguments import FLOAT32
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.inner import Inner
from rocmkern.ops.loss.problem import CrossEntropy


def row_losses(
    x: View,
    weight: View,
    bias: View | None,
    labels: View,
    loss: View,
    lse: View,
    options: CrossEntropy,
    stream: Stream,
) -> None:
    """Losses of rows ``x`` [..., K] with ``labels`` [...] in ``loss``, [] or [...], and their log-sum-exps [...]."""
    # deferred: start-up
    from rocmkern.ops.loss.launch import launch_row_losses, launch_sum_losses

    rows = math.prod(x.shape[:-1])
    with Inner(x, stream) as inner:
        summed = options.reduction != "none"
        labels = inner.reshaped(labels, (rows,))
        each = inner.room((rows,), FLOAT32) if summed else inner.written(loss, (rows,))
        if rows:
            matrix, sums = inner.reshaped(x, (rows, x.shape[-1])), inner.written(lse, (rows,))
            launch_row_losses(matrix, weight, bias, labels, each, sums, options, inner.stream)
        if summed:
            launch_sum_losses(each, labels, loss.reshape(1), options, inner.stream)
