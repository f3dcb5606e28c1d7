"""The operation `new_operation`. What it means is `rocmkern.ops.new_operation.reference`."""

from __future__ import annotations

from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import accept, accept_out
from rocmkern.calls.axes import flat_rows_of
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, Stream


@planned
def new_operation(x: Array, *, out: Array | None = None, stream: Stream = None) -> Array:
    """FILL IN: what it is, and the formula.

    Parameters
    ----------
    x : array, ``[...]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    out : array, optional
        Where to write the result; x itself is allowed.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[...]``
        Of the shape, kind and dtype of x. Computed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.
    """
    # Checks
    stream = _checks.stream(stream)
    numbers = accept("x", x)
    _checks.some_axes(numbers)
    given = None if out is None else accept_out(out, numbers.shape, numbers.dtype, [numbers], elementwise=True)

    # Configuration
    result = given or _results.allocate("out", numbers.shape, numbers.dtype, numbers)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.new_operation.launch import launch_new_operation

        for some_x, some_out in flat_rows_of(numbers.aligned(), result.view):
            launch_new_operation(some_x, some_out, stream)
    return result.source
