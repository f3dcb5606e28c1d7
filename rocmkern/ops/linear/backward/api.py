"""Gradients of matrix products and linear layers. How they are computed: `rocmkern.ops.linear.backward.products`."""

from __future__ import annotations

from collections.abc import Sequence

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls.arguments import Argument, accept
from rocmkern.calls.gradients import Wanted
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Activation, Array, ArrayLike, Stream
from rocmkern.ops.linear.products import as_left, as_right, sides_of


@planned
def matmul_backward(
    dout: Array,
    a: ArrayLike,
    b: ArrayLike,
    *,
    transpose_b: bool = False,
    bias: ArrayLike | None = None,
    activation: Activation = None,
    needs: Sequence[str] | None = None,
    accumulate: bool = False,
    out: Array | tuple[Array, ...] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, ...]:
    """Gradients of `rocmkern.matmul` for the gradient of its result.

    With ``dz = dout * activation'(a @ b + bias)`` they are ``dz @ b^T``, ``a^T @ dz`` and the sum of the rows of dz,
    each summed over the axes along which its argument was broadcast.

    Parameters
    ----------
    dout : array, ``[..., M, N]``
        Of the shape of the result, and the dtype of a; with any strides.
    a, b, transpose_b, bias, activation
        As `rocmkern.matmul` was given them. With an activation the product is computed again.
    needs : sequence of str, optional
        Arguments whose gradients are wanted: some of "a", "b" and "bias". All that are given by default.
    accumulate : bool
        Add the gradients to what `out` holds; the sums are rounded once.
    out : array, or tuple of arrays, optional
        Where to write the gradients, apart from the inputs and from each other: one array, or a tuple of as many as
        there are, each of the shape and dtype of its argument.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, or tuple of arrays
        The gradients of a, b and bias that are wanted, in this order, of the kind of dout. Summed in float32 and
        rounded once; dz is rounded to the dtype of a where there is an activation. The same bits every time.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rocmkern.matmul`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> dout, a, b = np.ones((1, 2), np.float32), np.ones((1, 3), np.float32), np.ones((3, 2), np.float32)
    >>> rocmkern.matmul_backward(dout, a, b, needs=("a",))
    array([[2., 2., 2.]], dtype=float32)
    """
    # Checks
    stream, activation = _checks.stream(stream), _checks.activation(activation)
    transpose_b = _checks.flag("transpose_b", transpose_b)
    dout, a, b = accept("dout", dout), accept("a", a), accept("b", b)
    given_bias = None if bias is None else accept("bias", bias)
    inputs = _together(dout, a, b, given_bias)
    sides = sides_of(a, b, transpose_b)
    _checks.same_shape(dout, sides.shape, "the shape of a @ b")
    bias_row = _checks.bias(given_bias, sides.right.shape[-1], "the number of columns of b")
    wanted: Wanted[Array] = Wanted(needs, {"a": a, "b": b, "bias": given_bias})
    accumulate = wanted.place(out, accumulate, inputs)

    # Launch
    if not wanted.empty:
        # deferred: start-up
        from rocmkern.ops.linear.backward.products import Gradients, product_gradients

        da, db = wanted.view("a"), wanted.view("b")
        left, right = None if da is None else as_left(da), None if db is None else as_right(db, transpose_b)
        into = Gradients(left, right, wanted.view("bias"), accumulate)
        product_gradients(sides.matrices(dout.aligned()), sides.left, sides.right, bias_row, activation, into, stream)
    return wanted.sources


@planned
def linear_backward(
    dout: Array,
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    activation: Activation = None,
    *,
    needs: Sequence[str] | None = None,
    accumulate: bool = False,
    out: Array | tuple[Array, ...] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, ...]:
    """Gradients of `rocmkern.linear` for the gradient of its result.

    With ``dz = dout * activation'(x @ weight^T + bias)`` they are ``dz @ weight``, ``dz^T @ x`` and the sum of the rows
    of dz.

    Parameters
    ----------
    dout : array, ``[..., out]``
        Of the shape of the result, and the dtype of x; with any strides.
    x, weight, bias, activation
        As `rocmkern.linear` was given them. With an activation the product is computed again.
    needs : sequence of str, optional
        Arguments whose gradients are wanted: some of "x", "weight" and "bias". All that are given by default.
    accumulate : bool
        Add the gradients to what `out` holds; the sums are rounded once.
    out : array, or tuple of arrays, optional
        As in `matmul_backward`.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, or tuple of arrays
        The gradients of x, weight and bias that are wanted, in this order, as in `matmul_backward`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rocmkern.linear`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x, weight = np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 4.0], [-5.0, 0.0]], np.float32)
    >>> rocmkern.linear_backward(np.ones((1, 2), np.float32), x, weight, activation="relu")
    (array([[3., 4.]], dtype=float32), array([[1., 2.],
           [0., 0.]], dtype=float32))
    """
    # Checks
    stream, activation = _checks.stream(stream), _checks.activation(activation)
    dout, x, weight = accept("dout", dout), accept("x", x), accept("weight", weight)
    given_bias = None if bias is None else accept("bias", bias)
    inputs = _together(dout, x, weight, given_bias)
    _checks.some_axes(x)
    _checks.rank(weight, "out in")
    _checks.extent(weight, 1, x.shape[-1], "the length of the last axis of x")
    shape = (*x.shape[:-1], weight.shape[0])
    _checks.same_shape(dout, shape, "the shape of x @ weight^T")
    bias_row = _checks.bias(given_bias, weight.shape[0], "the number of rows of weight")
    wanted: Wanted[Array] = Wanted(needs, {"x": x, "weight": weight, "bias": given_bias})
    accumulate = wanted.place(out, accumulate, inputs)

    # Launch
    if not wanted.empty:
        # deferred: start-up
        from rocmkern.ops.linear.backward.products import Gradients, product_gradients

        dx, dweight = wanted.view("x"), wanted.view("weight")
        left, right = None if dx is None else as_left(dx), None if dweight is None else dweight.swapaxes(0, 1)
        into = Gradients(left, right, wanted.view("bias"), accumulate)
        matrix = weight.aligned().swapaxes(0, 1)
        product_gradients(as_left(dout.aligned()), as_left(x.aligned()), matrix, bias_row, activation, into, stream)
    return wanted.sources


def _together(dout: Argument, left: Argument, right: Argument, bias: Argument | None) -> list[Argument]:
    """The arguments, of one place and, the bias apart, of one dtype."""
    inputs = [dout, left, right] if bias is None else [dout, left, right, bias]
    _arguments.same_place(dout, inputs[1:])
    _arguments.same_dtype(dout, [left, right])
    return inputs
