"""Shapes and strides of views: indexing, reshape, transpose, extents and contiguous runs. Pure integer functions.

Strides and offsets are in bytes, as in NumPy. Python's integers are exact: an offset beyond 2**31 is nothing special.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

Shape = tuple[int, ...]


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """NumPy's name of an element type: each launch and each allocation asks, and NumPy makes it anew."""
    return dtype.name


def check_shape(shape: Any, argument: str = "shape") -> Shape:
    """Return `shape` (an int or a sequence of ints >= 0) as a tuple of ints."""
    allowed = "an int or a sequence of ints >= 0"
    try:
        dims = (operator.index(shape),) if not isinstance(shape, Sequence) else tuple(map(operator.index, shape))
    except TypeError:
        raise ArgumentTypeError(argument, repr(shape), allowed) from None
    if any(dim < 0 for dim in dims):
        raise ArgumentError(argument, repr(shape), allowed)
    return dims


def contiguous_strides(shape: Shape, itemsize: int) -> Shape:
    """Return the strides of a C-contiguous array."""
    strides, step = [], itemsize
    for dim in reversed(shape):
        strides.append(step)
        step *= max(dim, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Return whether the elements lie one after another in C order (strides of dimensions of 1 do not matter)."""
    if 0 in shape:
        return True
    return all(
        dim == 1 or stride == expected
        for dim, stride, expected in zip(shape, strides, contiguous_strides(shape, itemsize), strict=True)
    )


def byte_extent(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Return ``(first, end)``: the range of bytes touched, relative to element 0; (0, 0) if there is no element."""
    if 0 in shape:
        return 0, 0
    reach = [(dim - 1) * stride for dim, stride in zip(shape, strides, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + itemsize


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def index_view(shape: Shape, strides: Shape, index: Any) -> tuple[int, Shape, Shape]:
    """Return ``(offset, shape, strides)`` of a basic-indexing view.

    Parameters
    ----------
    shape, strides : tuple of int
        The array that is indexed.
    index : int, slice, None, Ellipsis or tuple of these
        Advanced indexing (arrays, lists, booleans) is refused: it cannot be a view.

    Raises
    ------
    ArgumentTypeError
        For advanced indices.
    IndexError
        For too many indices or one out of range, as NumPy does.
    """
    items = index if isinstance(index, tuple) else (index,)
    axes, rest = len(shape), len(shape)
    ellipses = 0
    for item in items:  # every view comes here: it counts microseconds
        if item is Ellipsis:
            ellipses += 1
        elif item is not None:
            if type(item) is not int and type(item) is not slice and not _is_integer(item):
                raise ArgumentTypeError("index", repr(item), "int, slice, None or Ellipsis (a view, not a gather)")
            rest -= 1
    if ellipses > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if rest < 0:
        raise IndexError(f"too many indices: the tensor has {axes} dimensions, but {axes - rest} were indexed")
    if not ellipses:
        items = (*items, Ellipsis)

    offset, axis = 0, 0
    new_shape: list[int] = []
    new_strides: list[int] = []
    for item in items:
        if item is None:
            new_shape.append(1)
            new_strides.append(0)
        elif item is Ellipsis:
            new_shape += shape[axis : axis + rest]
            new_strides += strides[axis : axis + rest]
            axis += rest
        elif isinstance(item, slice):
            start, stop, step = item.indices(shape[axis])
            length = len(range(start, stop, step))
            # An empty slice must not move the address outside the buffer.
            offset += start * strides[axis] if length else 0
            new_shape.append(length)
            new_strides.append(step * strides[axis])
            axis += 1
        else:
            position = operator.index(item)
            if not -shape[axis] <= position < shape[axis]:
                raise IndexError(f"index {position} is out of bounds for axis {axis} with size {shape[axis]}")
            offset += (position % shape[axis]) * strides[axis]
            axis += 1
    return offset, tuple(new_shape), tuple(new_strides)


def resolve_reshape(shape: Shape, new_shape: Sequence[int]) -> Shape:
    """Return `new_shape` with a single -1 worked out; raise `ArgumentError` if the sizes differ."""
    size = math.prod(shape)
    allowed = f"a shape of {size} elements, one dimension may be -1"
    try:
        target = list(map(operator.index, new_shape))
    except TypeError:
        raise ArgumentTypeError("shape", repr(tuple(new_shape)), allowed) from None
    if target.count(-1) > 1 or any(dim < -1 for dim in target):
        raise ArgumentError("shape", repr(tuple(target)), allowed)
    if -1 in target:
        known = math.prod(dim for dim in target if dim != -1)
        if known == 0 or size % known:
            raise ArgumentError("shape", repr(tuple(target)), allowed)
        target[target.index(-1)] = size // known
    if math.prod(target) != size:
        raise ArgumentError("shape", repr(tuple(target)), allowed)
    return tuple(target)


def reshape_strides(shape: Shape, strides: Shape, new_shape: Shape, itemsize: int) -> Shape | None:
    """Return the strides of `new_shape` as a view of the old array, or None if that needs a copy."""
    if 0 in shape:
        return contiguous_strides(new_shape, itemsize)
    # Neighbouring dimensions that walk memory in one even step are one chunk: (elements, step).
    chunks: list[tuple[int, int]] = []
    for dim, stride in zip(shape, strides, strict=True):
        if dim == 1:
            continue
        if chunks and chunks[-1][1] == dim * stride:
            chunks[-1] = (chunks[-1][0] * dim, stride)
        else:
            chunks.append((dim, stride))
    new_strides = [itemsize] * len(new_shape)
    axis = len(new_shape) - 1
    for elements, step in reversed(chunks):
        taken = 1
        while taken < elements and axis >= 0:
            new_strides[axis] = step * taken
            taken *= new_shape[axis]
            axis -= 1
        if taken != elements:
            return None
    return tuple(new_strides)


def transpose_axes(ndim: int, axes: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that `axes` names (reversed if empty), with negative axes resolved."""
    if not axes:
        return tuple(reversed(range(ndim)))
    try:
        resolved = tuple(range(ndim)[operator.index(axis)] for axis in axes)
    except (IndexError, TypeError):
        resolved = ()
    if sorted(resolved) != list(range(ndim)) or len(axes) != ndim:
        raise ArgumentError("axes", repr(tuple(axes)), f"a permutation of the {ndim} axes")
    return resolved


def contiguous_runs(
    shape: Shape, strides_a: Shape, strides_b: Shape, itemsize: int
) -> tuple[int, Iterator[tuple[int, int]]]:
    """Split an element-wise copy between two layouts of one shape into runs that are contiguous in both.

    Returns
    -------
    run_bytes : int
        Length of every run.
    offsets : iterator of (int, int)
        Start of each run in a and in b, relative to element 0, in C order; empty if there is no element.
    """
    if 0 in shape:
        return 0, iter(())
    run_bytes, outer = itemsize, len(shape)
    while outer and (shape[outer - 1] == 1 or strides_a[outer - 1] == strides_b[outer - 1] == run_bytes):
        outer -= 1
        run_bytes *= shape[outer]
    starts = (
        (
            sum(i * stride for i, stride in zip(position, strides_a, strict=False)),
            sum(i * stride for i, stride in zip(position, strides_b, strict=False)),
        )
        for position in itertools.product(*map(range, shape[:outer]))
    )
    return run_bytes, starts
