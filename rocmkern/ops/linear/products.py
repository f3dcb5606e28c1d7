"""Matrix products of views with any leading axes, as launches of products ``[outer, inner, row, column]``."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from rocmkern.calls import checks as _checks
from rocmkern.calls.arguments import Argument
from rocmkern.calls.axes import four_axes, joined_rows, rows_together
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.runtime.errors import ArgumentError


class Sides(NamedTuple):
    """Both sides of a product ``a @ b`` as matrices.

    Attributes
    ----------
    left, right : View
        ``[..., M, K]`` and ``[..., K, N]``; a vector is one row, or one column.
    leading : tuple of int
        What their leading axes broadcast to.
    is_row, is_column : bool
        Whether a, and b, is a vector.
    """

    left: View
    right: View
    leading: tuple[int, ...]
    is_row: bool
    is_column: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the product, without the axes of vectors."""
        rows = () if self.is_row else self.left.shape[-2:-1]
        columns = () if self.is_column else self.right.shape[-1:]
        return (*self.leading, *rows, *columns)

    def matrices(self, product: View) -> View:
        """The product with the axes of vectors."""
        product = product[..., None] if self.is_column else product
        return product[..., None, :] if self.is_row else product

    def broadcast(self) -> tuple[View, View]:
        """Both sides with all leading axes; the right one without any where it has none."""
        left = self.left.broadcast_to((*self.leading, *self.left.shape[-2:]))
        if self.right.ndim == 2:
            return left, self.right
        return left, self.right.broadcast_to((*self.leading, *self.right.shape[-2:]))


def sides_of(a: Argument, b: Argument, transpose_b: bool) -> Sides:
    """The sides of ``a @ b``, checked; with ``transpose_b`` b is ``[..., N, K]``."""
    _checks.some_axes(a)
    _checks.some_axes(b)
    is_row, is_column = len(a.shape) == 1, len(b.shape) == 1
    _checks.extent(b, -1 if is_column or transpose_b else -2, a.shape[-1], "the length of the last axis of a")
    left, right = as_left(a.aligned()), as_right(b.aligned(), transpose_b)
    try:
        leading = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        allowed = f"leading axes that broadcast with those of a, {a.shape[:-2]}"
        raise ArgumentError("b", f"shape {b.shape}", allowed) from None
    return Sides(left, right, leading, is_row, is_column)


def as_left(a: View) -> View:
    """The left side of a product as matrices."""
    return a[None] if a.ndim == 1 else a


def as_right(b: View, transpose_b: bool) -> View:
    """The right side of a product as matrices."""
    if b.ndim == 1:
        return b[:, None]
    return b.swapaxes(-1, -2) if transpose_b else b


def multiply(
    left: View,
    right: View,
    bias: View | None,
    out: View,
    activation: str | None,
    stream: Stream,
    *,
    accumulate: bool = False,
) -> None:
    """``[..., M, K] @ [..., K, N]`` or ``[..., M, K] @ [K, N]``, whose rows then need not be apart.

    With ``accumulate`` the product is added to what ``out`` holds, in place of a bias, before it is rounded.
    """
    # deferred: start-up
    from rocmkern.ops.linear.launch import launch_matmul

    rows = left.shape[-2]
    if right.ndim == 2:
        rows = rows_together(left)
        left, out = joined_rows(left, out)
        right = right.broadcast_to((*left.shape[:-2], *right.shape))
    for some, matrix, into in four_axes(left, right, out, row_axes=2):
        if not accumulate:
            launch_matmul(some, matrix, bias, into, activation, stream, rows)
            continue
        for at in itertools.product(*(range(length) for length in into.shape[:2])):
            each = [x[at][None, None] for x in (some, matrix, into)]
            launch_matmul(each[0], each[1], into[at], each[2], activation, stream, rows)
