"""Gradients of operations that move elements. What they mean is `rocmkern.ops.rows.backward.reference`."""

from __future__ import annotations

import functools

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import INTEGERS, Argument, accept, accept_out
from rocmkern.calls.axes import four_axes
from rocmkern.calls.gradients import accumulates
from rocmkern.calls.plan import planned
from rocmkern.calls.streams import wait_for
from rocmkern.calls.types import Array, ArrayLike, Stream
from rocmkern.calls.view import View
from rocmkern.ops.rows.api import MOST_ROWS, row_numbers
from rocmkern.runtime.errors import ArgumentError


@planned
def embedding_backward(
    dout: Array,
    table: ArrayLike,
    indices: ArrayLike,
    *,
    check: bool = False,
    accumulate: bool = False,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Gradient of the table of `embedding`: row v is the sum of ``dout[t]`` over all t with ``indices[t] = v``.

    Rows of equal indices are added in their order, so that the bits are the same every time. Rows that no index names
    have a gradient of zeros.

    Parameters
    ----------
    dout : array, ``[..., n]``
        Gradient of the result: float32, float16 or bfloat16, with any strides.
    table : array, ``[V, n]``
        Of the dtype of `dout`. Its numbers do not matter.
    indices : array, ``[...]``
        As in `embedding`. Those in host memory are put in order there. Those in device memory are not copied back: they
        are compared with each other, all with all, in a kernel of its own; a row of `dout` whose index is outside
        counts nowhere, and the next wait raises. Of their axes at most four may lie apart in memory.
    check : bool
        Wait for the work, and raise here if an index in device memory was outside.
    accumulate : bool
        Add the sums to what is in `out`, instead of writing over it; they are rounded once. Rows that no index names
        are left alone.
    out : array, ``[V, n]``, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[V, n]``
        Of the kind and dtype of `dout`. Summed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    IndexOutOfRangeError
        With ``check=True``, or from a later wait: an index in device memory was outside.
    TargetError
        The arrays lie on a device that no target here can reach.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> dout, table = np.array([[1.0], [2.0], [4.0]], np.float32), np.zeros((2, 1), np.float32)
    >>> rocmkern.embedding_backward(dout, table, np.array([1, 0, 1]))
    array([[2.],
           [5.]], dtype=float32)
    """
    # Checks
    stream, check = _checks.stream(stream), _checks.flag("check", check)
    dout, table, indices = accept("dout", dout), accept("table", table), accept("indices", indices, INTEGERS)
    _arguments.same_place(dout, [table, indices])
    _arguments.same_dtype(dout, [table])
    _checks.rank(table, "V n")
    _checks.same_shape(dout, (*indices.shape, table.shape[1]), "that of the rows that indices name")
    accumulate = accumulates(accumulate, out)
    if max(table.shape[0], indices.view.size) > MOST_ROWS:
        raise ArgumentError("indices", f"{indices.view.size} indices of {table.shape[0]} rows", f"at most {MOST_ROWS}")
    of_device = _indices_of_device(indices) if indices.on_device else None
    in_order = _ordered(indices, table.shape[0]) if of_device is None else None
    given = None if out is None else accept_out(out, table.shape, table.dtype, [dout, table, indices])

    # Configuration
    result = given or _results.allocate("out", table.shape, table.dtype, dout)

    # Launch
    if result.view.size and dout.view.size:
        # deferred: start-up
        from rocmkern.ops.rows.backward.launch import launch_embedding_backward

        if in_order is not None:
            launch_embedding_backward(dout.aligned(), *in_order, result.view, accumulate, stream)
        elif of_device is not None:
            # deferred: start-up
            from rocmkern.ops.rows.backward.launch import ordered_indices

            with ordered_indices(of_device, dout.view, table.shape[0], stream) as (order, ids):
                launch_embedding_backward(dout.aligned(), order, ids, result.view, accumulate, stream)
        if check and result.view.on_device:
            wait_for([dout.view, indices.view, result.view], "embedding_backward", stream)
    elif not accumulate:
        _results.assign(result.view, 0, stream)
    return result.source


def _indices_of_device(indices: Argument) -> View:
    """The numbers with four axes."""
    pieces = [some for (some,) in four_axes(indices.aligned())]
    if len(pieces) > 1:
        allowed = "at most four axes that lie apart, as of a contiguous array"
        raise ArgumentError(indices.name, f"strides {indices.view.strides} with shape {indices.shape}", allowed)
    return pieces[0]


def _ordered(indices: Argument, rows: int) -> tuple[View, View]:
    """The order of numbers in host memory, and the numbers in it."""
    find = [functools.partial(each, rows=rows) for each in (_order, _numbers_in_order)]
    order, ids = (indices.converted(each).view for each in find)
    return order, ids


def _order(array: np.ndarray, rows: int) -> np.ndarray:
    """Which indices stand where, equal ones in their own order; checked."""
    return np.argsort(row_numbers(array, rows).reshape(-1), kind="stable").astype(np.int32)


def _numbers_in_order(array: np.ndarray, rows: int) -> np.ndarray:
    return np.sort(row_numbers(array, rows).reshape(-1))
