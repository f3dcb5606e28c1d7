"""Operations that move elements and change none. What they mean is `rocmkern.ops.rows.reference`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import INTEGERS, Argument, accept, accept_out
from rocmkern.calls.axes import rows_of
from rocmkern.calls.plan import planned
from rocmkern.calls.streams import wait_for
from rocmkern.calls.types import Array, ArrayLike, Stream
from rocmkern.calls.view import View, describe
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

#: An index is 32 bits in a kernel.
MOST_ROWS = 2**31 - 1


@planned
def embedding(
    table: Array, indices: ArrayLike, *, check: bool = False, out: Array | None = None, stream: Stream = None
) -> Array:
    """Rows of a table: ``table[indices]``.

    Parameters
    ----------
    table : array, ``[V, n]``
        float32, float16 or bfloat16, with any strides.
    indices : array, ``[...]``
        int32 or int64 numbers from 0 to V - 1, beside `table`. Numbers in host memory are checked before anything is
        launched. Those in device memory are not copied back: a number outside gives a row of zeros, and the next wait
        (`ResourceManager.wait`, or a copy to the host) raises.
    check : bool
        Wait for the work, and raise here if an index in device memory was outside.
    out : array, ``[..., n]``, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., n]``
        Of the kind and dtype of `table`; exact.

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
    >>> table = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
    >>> rocmkern.embedding(table, np.array([1, 0, 1]))
    array([[2., 3.],
           [0., 1.],
           [2., 3.]], dtype=float32)
    """
    # Checks
    stream, check = _checks.stream(stream), _checks.flag("check", check)
    if (_arguments.kind_of_elements(table), _arguments.kind_of_elements(indices)) == ("int", "float"):
        allowed = "the table first, embedding(table, indices): torch.nn.functional takes them the other way round"
        raise ArgumentTypeError("table", describe(table), allowed)
    table, indices = accept("table", table), accept("indices", indices, INTEGERS)
    _arguments.same_place(table, [indices])
    _checks.rank(table, "V n")
    numbers = _checked_indices(indices, table)
    shape = (*indices.shape, table.shape[1])
    given = None if out is None else accept_out(out, shape, table.dtype, [table, indices])

    # Configuration
    result = given or _results.allocate("out", shape, table.dtype, table)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.rows.launch import launch_embedding

        rows = numbers[..., None].broadcast_to(shape)
        for some_rows, some_out in rows_of(rows, result.view):
            for a, b in np.ndindex(some_out.shape[:2]):
                launch_embedding(table.aligned(), some_rows[a, b, :, 0], some_out[a, b], stream)
        if check and result.view.on_device:
            wait_for([table.view, indices.view, result.view], "embedding", stream)
    return result.source


@planned
def transpose(x: Array, axes: Sequence[int] | None = None, *, out: Array | None = None, stream: Stream = None) -> Array:
    """The same elements with the axes in another order, in new memory.

    Parameters
    ----------
    x : array, ``[...]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    axes : sequence of int, optional
        Axis i of the result is axis ``axes[i]`` of x; negative numbers count from the end. By default the order is
        reversed.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from x.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array
        Of the kind and dtype of x, C-contiguous; exact.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `embedding`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.transpose(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), (1, 0))
    array([[1., 3.],
           [2., 4.]], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    x = accept("x", x)
    _checks.some_axes(x)
    view = x.aligned().transpose(_order(axes, len(x.shape)))
    given = None if out is None else accept_out(out, view.shape, x.dtype, [x])

    # Configuration
    result = given or _results.allocate("out", view.shape, x.dtype, x)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.rows.launch import launch_copy_rows

        for some_x, some_out in rows_of(view, result.view):
            launch_copy_rows(some_x, some_out, stream)
    return result.source


def _checked_indices(indices: Argument, table: Argument) -> View:
    """The numbers, checked and as int32 where the CPU can read them."""
    rows = table.shape[0]
    if rows > MOST_ROWS:
        raise ArgumentError("table", f"{rows} rows", f"at most {MOST_ROWS}")
    if indices.on_device:
        return indices.aligned()
    return indices.converted(functools.partial(row_numbers, rows=rows)).view


def row_numbers(array: np.ndarray, rows: int) -> np.ndarray:
    """Indices as int32, checked."""
    # A negative number is a large one without its sign: one pass finds both ends.
    if array.size and array.view(f"u{array.itemsize}").max() >= rows:
        wrong = np.argwhere((array < 0) | (array >= rows))
        place = tuple(int(i) for i in wrong[0])
        given = f"{array[place]} at index {place}" if place else str(array)
        raise ArgumentError("indices", given, f"numbers from 0 to {rows - 1}" if rows else "none, as table has no rows")
    return array.astype(np.int32)


def _order(axes: Any, ndim: int) -> tuple[int, ...]:
    """A permutation of ``0 .. ndim - 1``."""
    if axes is None:
        return tuple(reversed(range(ndim)))
    allowed = f"each of the {ndim} axes of x once"
    try:
        order = tuple(operator.index(axis) for axis in axes)
    except TypeError:
        raise ArgumentTypeError("axes", describe(axes), f"integers, {allowed}") from None
    counted = tuple(axis + ndim if axis < 0 else axis for axis in order)
    if sorted(counted) != list(range(ndim)):
        raise ArgumentError("axes", str(order), allowed)
    return counted
