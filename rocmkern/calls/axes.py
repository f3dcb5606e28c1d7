"""Views in the order of a kernel's axes: layouts of attention, leading axes joined, cut or taken apart. No copies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rocmkern.calls.view import View

#: Lengths of the rows that elementwise operations work on, the first that divides the problem.
LINE_LENGTHS = (1024, 512, 256)


def heads_second(x: View, layout: str) -> View:
    """View ``[B, H, S, D]`` of an array in `layout`; packed sequences (``"packed"``) are one batch."""
    if layout == "bhsd":
        return x
    return (x[None] if layout == "packed" else x).transpose(0, 2, 1, 3)


def four_axes(*arrays: View, row_axes: int = 0) -> Iterator[tuple[View, ...]]:
    """Views with four axes of arrays of one shape, for operations that do not care about leading axes.

    Fewer axes get leading ones of length 1. More are joined where all strides allow it; what is left over is taken
    apart, one tuple of views an index. Nothing is copied, so a view of ``out`` writes to ``out``.

    Parameters
    ----------
    *arrays : View
        All of the same shape, but for the trailing ones of `row_axes`.
    row_axes : int
        Trailing axes that keep their meaning.
    """
    arrays = _joined(arrays, row_axes, 4)
    extra = arrays[0].ndim - 4
    if extra <= 0:
        ones, zeros = (1,) * -extra, (0,) * -extra
        yield tuple([x.part(0, ones + x.shape, zeros + x.strides) for x in arrays])
        return
    for index in np.ndindex(arrays[0].shape[:extra]):
        yield tuple(x[index] for x in arrays)


def rows_of(*arrays: View) -> Iterator[tuple[View, ...]]:
    """As `four_axes`, with as many leading axes as possible joined: for operations on rows of the last axis."""
    yield from four_axes(*_joined(arrays, 1, 2), row_axes=1)


def flat_rows_of(*arrays: View) -> Iterator[tuple[View, ...]]:
    """As `four_axes`, for elementwise operations: all axes are joined that can be, and cut into rows of equal length.

    So a single long row is work for many blocks.
    """
    joined = _joined(arrays, 0, 1)
    columns = joined[0].shape[-1]
    length = next((n for n in LINE_LENGTHS if columns % n == 0), columns)
    yield from four_axes(*[_cut(x, columns // length, length) for x in joined], row_axes=1)


def _cut(x: View, pieces: int, length: int) -> View:
    """View with the last axis cut into pieces."""
    step = x.strides[-1]
    return x.part(0, (*x.shape[:-1], pieces, length), (*x.strides[:-1], step * length, step))


def joined_rows(*arrays: View) -> tuple[View, ...]:
    """Views of arrays ``[..., M, n]`` with their leading axes joined, of all of them where the strides allow it.

    The arrays have the same shape, but for the last axis.
    """
    return _joined(arrays, 1, 2)


def rows_together(array: View) -> int:
    """How many rows ``[..., M, n]`` are one product where the result does not keep them apart.

    By these a configuration is chosen, so that the bits of a result do not depend on where it is written.
    """
    return joined_rows(array)[0].shape[-2]


def _joined(arrays: tuple[View, ...], row_axes: int, enough: int) -> tuple[View, ...]:
    """Views with neighbouring axes joined where all strides allow it, but not the last ``row_axes``; no copies.

    Nothing is joined once there are only ``enough`` axes.
    """
    shape, leading = arrays[0].shape, len(arrays[0].shape) - row_axes
    most = len(shape) - enough  # axes that may go
    if most <= 0 or leading < 2:
        return arrays
    # From the front: the lengths so far, and the strides of each array for them.
    lengths, steps = [shape[0]], [[x.strides[0]] for x in arrays]
    for axis in range(1, leading):
        length = shape[axis]
        even = all([step[-1] == x.strides[axis] * length for step, x in zip(steps, arrays, strict=True)])
        if len(lengths) > axis - most and (even or length == 1 or lengths[-1] == 1):
            if length != 1:  # the axis that goes is the other one, or both are one
                for step, x in zip(steps, arrays, strict=True):
                    step[-1] = x.strides[axis]
            lengths[-1] *= length
        else:
            lengths.append(length)
            for step, x in zip(steps, arrays, strict=True):
                step.append(x.strides[axis])
    return tuple(
        [
            x.part(0, (*lengths, *x.shape[leading:]), (*step, *x.strides[leading:]))
            for step, x in zip(steps, arrays, strict=True)
        ]
    )
