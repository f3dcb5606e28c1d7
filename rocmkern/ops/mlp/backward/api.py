"""Gradients of the MLP of a transformer layer. How they are computed: `rocmkern.ops.mlp.backward.products`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls.arguments import accept
from rocmkern.calls.gradients import Wanted
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Activation, Array, ArrayLike, Stream
from rocmkern.ops.inner import Inner
from rocmkern.ops.mlp.api import accept_weights
from rocmkern.ops.mlp.backward.products import Weights, mlp_gradients


@planned
def mlp_backward(
    dout: Array,
    x: ArrayLike,
    w_gate: ArrayLike | None,
    w_up: ArrayLike,
    w_down: ArrayLike,
    *,
    activation: Activation = "silu",
    b_gate: ArrayLike | None = None,
    b_up: ArrayLike | None = None,
    b_down: ArrayLike | None = None,
    needs: Sequence[str] | None = None,
    accumulate: bool = False,
    out: Array | tuple[Array, ...] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, ...]:
    """Gradients of `rocmkern.mlp` for the gradient of its result.

    Nothing of the forward call is needed but its arguments: what lies between its products is computed again.

    Parameters
    ----------
    dout : array, ``[..., out]``
        Of the shape of the result, and the dtype of x; with any strides.
    x, w_gate, w_up, w_down, activation, b_gate, b_up, b_down
        As `rocmkern.mlp` was given them.
    needs : sequence of str, optional
        Arguments whose gradients are wanted: some of "x", "w_gate", "w_up", "w_down", "b_gate", "b_up" and "b_down".
        All that are given by default.
    accumulate : bool
        Add the gradients to what `out` holds; the sums are rounded once.
    out : array, or tuple of arrays, optional
        As in `rocmkern.linear_backward`.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, or tuple of arrays
        The gradients that are wanted, in the order of `needs` above, of the kind of dout. All sums are float32; what
        is multiplied in a second product is rounded to the dtype of x, as are the results. The same bits every time.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rocmkern.mlp`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x, w = np.ones((1, 2), np.float32), np.ones((2, 2), np.float32)
    >>> rocmkern.mlp_backward(x, x, w, w, w, activation="relu", needs=("x",))
    array([[16., 16.]], dtype=float32)
    """
    # Checks
    stream, activation = _checks.stream(stream), _checks.activation(activation)
    dout, x = accept("dout", dout), accept("x", x)
    given = accept_weights(x, w_gate, w_up, w_down, b_gate, b_up, b_down)
    inputs = [dout, x, *(each for each in given.arrays.values() if each is not None)]
    _arguments.same_place(dout, inputs[1:])
    _arguments.same_dtype(dout, [x])
    _checks.same_shape(dout, (*x.shape[:-1], given.columns), "the shape of the result")
    wanted: Wanted[Array] = Wanted(needs, {"x": x, **given.arrays})
    accumulate = wanted.place(out, accumulate, inputs)

    # Launch
    if not wanted.empty:
        rows = math.prod(x.shape[:-1])
        with Inner(x.view, stream) as inner:
            matrix = inner.reshaped(x.aligned(), (rows, x.shape[-1]))
            of_result = inner.reshaped(dout.aligned(), (rows, given.columns))
            dx = wanted.view("x")
            dx = None if dx is None else inner.written(dx, (rows, x.shape[-1]), filled=accumulate)
            into = Weights(*(wanted.view(name) for name in given.arrays))
            mlp_gradients(of_result, matrix, Weights(*given.views), activation, dx, into, accumulate, inner.stream)
    return wanted.sources
