"""Gradients of the steps of attention. What they mean is `rocmkern.ops.steps.backward.reference`."""

from __future__ import annotations

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import accept, accept_out
from rocmkern.calls.axes import rows_of
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Stream


@planned
def softmax_backward(
    dout: Array,
    y: ArrayLike,
    *,
    scale: float = 1.0,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Gradient of `softmax`, from its result y: ``scale * y * (dout - sum(dout * y))`` over the last axis.

    A row of zeros, the softmax of minus infinities, has a gradient of zeros.

    Parameters
    ----------
    dout : array, ``[..., n]``
        Gradient of the result: float32, float16 or bfloat16, at least one axis, with any strides.
    y : array, ``[..., n]``
        What `softmax` returned, of the shape and dtype of `dout`.
    scale : float
        What x was multiplied by before its softmax, if the gradient is that of what was multiplied. Finite; rounded to
        float32.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., n]``
        Of the shape, kind and dtype of `dout`. Computed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> y = rocmkern.softmax(np.zeros((1, 2), np.float32))
    >>> rocmkern.softmax_backward(np.array([[1.0, 0.0]], np.float32), y)
    array([[ 0.25, -0.25]], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    dout, y = accept("dout", dout), accept("y", y)
    _arguments.same_place(dout, [y])
    _arguments.same_dtype(dout, [y])
    _checks.some_axes(dout)
    _checks.same_shape(y, dout.shape, "the shape of dout")
    factor = _checks.number("scale", scale)
    given = None if out is None else accept_out(out, dout.shape, dout.dtype, [dout, y])

    # Configuration
    result = given or _results.allocate("out", dout.shape, dout.dtype, dout)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.steps.backward.launch import launch_softmax_backward

        for some_dout, some_y, some_out in rows_of(dout.aligned(), y.aligned(), result.view):
            launch_softmax_backward(some_dout, some_y, some_out, factor, stream)
    return result.source
