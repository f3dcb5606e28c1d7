"""Numbers between two bounds. What that means is `rocmkern.ops.clamp.reference`."""

from __future__ import annotations

from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import accept, accept_out
from rocmkern.calls.axes import flat_rows_of
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, Stream
from rocmkern.runtime.errors import ArgumentError


@planned
def clamp(
    x: Array,
    min: float | None = None,
    max: float | None = None,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Numbers between two bounds: ``min(max(x, min), max)``, as `torch.clamp`.

    Parameters
    ----------
    x : array, ``[...]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    min, max : float, optional
        The bounds, of which there is at least one. Where `min` is above `max` the result is `max`.
    out : array, optional
        Where to write the result; x itself is allowed.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[...]``
        Of the shape, kind and dtype of x. NaN stays NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.clamp(np.array([-2.0, 0.5, 3.0], np.float32), -1.0, 1.0)
    array([-1. ,  0.5,  1. ], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    numbers = accept("x", x)
    _checks.some_axes(numbers)
    if min is None and max is None:
        raise ArgumentError("min", "None, as max", "at least one of the bounds")
    low = None if min is None else _checks.number("min", min)
    high = None if max is None else _checks.number("max", max)
    given = None if out is None else accept_out(out, numbers.shape, numbers.dtype, [numbers], elementwise=True)

    # Configuration
    result = given or _results.allocate("out", numbers.shape, numbers.dtype, numbers)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.clamp.launch import launch_clamp

        for some_x, some_out in flat_rows_of(numbers.aligned(), result.view):
            launch_clamp(some_x, some_out, low, high, stream)
    return result.source
