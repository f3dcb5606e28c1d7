"""Gradients of losses over a vocabulary. How they are computed: `rocmkern.ops.loss.backward.gradients`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls.arguments import FLOAT32, accept
from rocmkern.calls.gradients import Wanted
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Stream
from rocmkern.ops.inner import Inner
from rocmkern.ops.loss.api import options_of, rows_of
from rocmkern.ops.loss.backward.gradients import Gradients, Problem, row_factors, token_gradients


@planned
def linear_cross_entropy_backward(
    dloss: Array,
    x: ArrayLike,
    weight: ArrayLike,
    target: ArrayLike,
    lse: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
    needs: Sequence[str] | None = None,
    accumulate: bool = False,
    out: Array | tuple[Array, ...] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, ...]:
    """Gradients of `rocmkern.linear_cross_entropy` for the gradient of its loss.

    The logits are computed again, a part at a time: beside inputs and gradients, and a copy of x or of its gradient
    whose rows are not one even step apart, there is never more than a tenth of them in memory, or one block; and, for
    the time of a product whose inner axis is split, a block of its result for each that runs at the same time.

    Parameters
    ----------
    dloss : array, ``[]``, or ``[...]`` for the reduction "none"
        float32.
    x, weight, target, bias, ignore_index, label_smoothing, z_loss, softcap, reduction
        As `rocmkern.linear_cross_entropy` was given them.
    lse : array, ``[...]``
        float32: its second result.
    needs : sequence of str, optional
        Arguments whose gradients are wanted: some of "x", "weight" and "bias". All that are given by default.
    accumulate : bool
        Add the gradients to what `out` holds; the sums are rounded once.
    out : array, or tuple of arrays, optional
        Where to write the gradients, apart from the inputs and from each other: one array, or a tuple of as many as
        there are, each of the shape and dtype of its argument.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, or tuple of arrays
        The gradients of x, weight and bias that are wanted, in this order, of the kind of dloss; 0 of rows that do not
        count. Summed in float32, rounded once; the gradients of logits that the products multiply are rounded to the
        dtype of x: with float16 the loss wants a scale, as it does in PyTorch. The same bits every time.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError, IndexOutOfRangeError
        As `rocmkern.linear_cross_entropy`; that a target in device memory is no token was found there.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x, weight, target = np.ones((1, 2), np.float32), np.zeros((2, 2), np.float32), np.array([1])
    >>> loss, lse = rocmkern.linear_cross_entropy(x, weight, target)
    >>> rocmkern.linear_cross_entropy_backward(np.ones_like(loss), x, weight, target, lse, needs=("weight",)).round(3)
    array([[ 0.5,  0.5],
           [-0.5, -0.5]], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    dloss, x, weight = accept("dloss", dloss, (FLOAT32,)), accept("x", x), accept("weight", weight)
    sums = accept("lse", lse, (FLOAT32,))
    given_bias = None if bias is None else accept("bias", bias)
    rows = rows_of(x, weight, target, given_bias, ignore_index)
    options = options_of(rows, ignore_index, label_smoothing, z_loss, softcap, reduction)
    inputs = [dloss, sums, *rows.inputs]
    _arguments.same_place(dloss, inputs[1:])
    shape = x.shape[:-1]
    _checks.same_shape(dloss, shape if options.reduction == "none" else (), "the shape of the loss")
    _checks.same_shape(sums, shape, "a number for each row of x")
    wanted: Wanted[Array] = Wanted(needs, {"x": x, "weight": weight, "bias": given_bias})
    accumulate = wanted.place(out, accumulate, inputs)

    # Launch
    if not wanted.empty:
        count, depth = math.prod(shape), x.shape[-1]
        with Inner(x.view, stream) as inner:
            matrix, each = inner.reshaped(x.aligned(), (count, depth)), inner.reshaped(sums.aligned(), (count,))
            labels = inner.reshaped(rows.labels, (count,))
            factors = row_factors(inner, dloss.aligned(), labels, options)
            problem = Problem(matrix, weight.aligned(), rows.bias, labels, each, factors, options)
            dx = wanted.view("x")
            dx = None if dx is None else inner.written(dx, (count, depth), filled=accumulate)
            into = Gradients(dx, wanted.view("weight"), wanted.view("bias"), accumulate)
            token_gradients(problem, into, inner.stream)
    return wanted.sources
