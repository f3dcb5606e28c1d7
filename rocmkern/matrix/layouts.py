"""Memory layouts of one array, by name, and every layout that the arrays of a declaration may have.

Layouts with a number change the axis that many places from the end, 1 being the last one:

==================  =================================================================================================
``contiguous``      row after row, the first element at an aligned address
``offset``          the same, one element after an aligned address
``padded``          rows one element further apart than they are long, so that they begin at odd addresses
``repeated_N``      stride 0 in the axis: the values of its first index for all
``reversed_N``      the axis backwards: a negative stride
``doubled_N``       every second element of the axis, as of one of two arrays that lie there by turns
``transposed_N``    the axis and the one before it swapped in memory (``transposed`` is ``transposed_1``)
``strided``         every second element of the first axis, and rows padded by three elements
``negative``        the first axis backwards; ``negative_last``: the last one
``broadcast``       stride 0 in the first axis longer than 1; ``broadcast_last``: in the last one
==================  =================================================================================================

The last four are older names of such layouts, and are drawn as the others are. What lies between the elements of a
layout belongs to the buffer around the array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

CONTIGUOUS = "contiguous"
#: Layouts that every array with an axis may have at once, of which the last one repeats elements.
_TOGETHER = ("offset", "padded", "doubled_1", "reversed_1", "transposed_1", "repeated_1")
_KINDS = ("repeated", "reversed", "doubled")


def repeats(layout: str) -> bool:
    """Whether indices share elements in a layout: such an array cannot be written."""
    return layout.startswith(("broadcast", "repeated"))


def layouts_of(shape: Sequence[int], writable: bool = False) -> list[str]:
    """Every layout but the contiguous one that makes a difference for an array of this shape, by itself.

    Parameters
    ----------
    shape : sequence of int
    writable : bool
        Leave out those that repeat elements.

    Returns
    -------
    list of str
    """
    axes = len(shape)
    if not axes or 0 in shape:
        return []
    numbered = [number for number in range(1, axes + 1) if shape[axes - number] > 1]
    names = ["offset", *(["padded"] if axes > 1 else [])]
    names += [f"{kind}_{number}" for kind in _KINDS for number in numbered]
    names += [f"transposed_{number}" for number in range(1, axes) if {number, number + 1} <= set(numbered)]
    return [name for name in names if not (writable and repeats(name))]


def each_layout(shapes: Mapping[str, Sequence[int]], writable: Sequence[str]) -> Iterator[dict[str, str]]:
    """One array at a time in each of its layouts, then all of them in the same one.

    Parameters
    ----------
    shapes : mapping
        Shape of each array by name, outputs included.
    writable : sequence of str
        Names of those whose elements must be apart: outputs, and inputs whose repeated numbers would mean nothing.

    Yields
    ------
    dict
        Layouts by name; an array that is not named is contiguous.
    """
    allowed = {name: layouts_of(shape, name in writable) for name, shape in shapes.items()}
    for name, layouts in allowed.items():
        for layout in layouts:
            yield {name: layout}
    for layout in _TOGETHER:
        together = {name: layout for name, layouts in allowed.items() if layout in layouts}
        if len(together) > 1:
            yield together


def laid_out(shape: tuple[int, ...], layout: str, fresh: Callable[..., np.ndarray]) -> np.ndarray:
    """A view of a new buffer in a layout; of one that repeats elements, the elements that there are.

    Parameters
    ----------
    shape : tuple of int
        Of the array.
    layout : str
        One with a number, or ``padded``.
    fresh : callable
        ``fresh(shape)`` makes a contiguous array with something around it.

    Raises
    ------
    ValueError
        The array has no such axis.
    """
    if layout == "padded":
        return fresh((*shape[:-1], shape[-1] + 1))[..., : shape[-1]]
    kind, _, number = layout.rpartition("_")
    axis = len(shape) - int(number)
    if axis < (1 if kind == "transposed" else 0):
        raise ValueError(f"an array of shape {shape} has no layout {layout}")
    if kind == "repeated":
        return fresh((*shape[:axis], min(shape[axis], 1), *shape[axis + 1 :]))
    if kind == "reversed":
        return np.flip(fresh(shape), axis)
    if kind == "doubled":
        whole = fresh((*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))
        return whole[(slice(None),) * axis + (slice(None, None, 2),)]
    swapped = list(shape)
    swapped[axis - 1 : axis + 1] = reversed(swapped[axis - 1 : axis + 1])
    return fresh(tuple(swapped)).swapaxes(axis - 1, axis)
