"""Matrix products with bias and activation. How they are computed: `rocmkern.ops.linear.kernels.matmul`."""

from __future__ import annotations

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import accept, accept_out
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Activation, Array, ArrayLike, Stream
from rocmkern.ops.linear.products import multiply, sides_of


@planned
def matmul(
    a: Array,
    b: ArrayLike,
    *,
    transpose_b: bool = False,
    bias: ArrayLike | None = None,
    activation: Activation = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Matrix product: ``activation(a @ b + bias)``.

    As `numpy.matmul`: leading axes broadcast, a vector counts as one row (`a`) or one column (`b`), and its axis of
    length 1 is left out of the result.

    Parameters
    ----------
    a : array, ``[..., M, K]`` or ``[K]``
        float32, float16 or bfloat16, with any strides. M, N and K may be 0; without K the product is 0.
    b : array, ``[..., K, N]`` or ``[K]``
        Of the dtype of a; with `transpose_b` it is ``[..., N, K]``. A view that transposes works as well.
    transpose_b : bool
        Whether the last two axes of b are swapped.
    bias : array, ``[N]``, optional
        Added to every row in float32; float32, float16 or bfloat16, whatever a is.
    activation : {None, "silu", "gelu", "gelu_tanh", "relu"}
        Applied to the sum: ``x / (1 + exp(-x))``, ``x / 2 * (1 + erf(x / sqrt(2)))``, its approximation by tanh, or
        ``max(x, 0)``.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., M, N]``
        Of the kind and the dtype of a; summed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))
    array([[3., 3.],
           [3., 3.]], dtype=float32)
    """
    # Checks
    stream, activation = _checks.stream(stream), _checks.activation(activation)
    transpose_b = _checks.flag("transpose_b", transpose_b)
    a, b = accept("a", a), accept("b", b)
    given_bias = None if bias is None else accept("bias", bias)
    others = [b] if given_bias is None else [b, given_bias]
    _arguments.same_place(a, others)
    _arguments.same_dtype(a, [b])
    sides = sides_of(a, b, transpose_b)
    bias_row = _checks.bias(given_bias, sides.right.shape[-1], "the number of columns of b")
    given = None if out is None else accept_out(out, sides.shape, a.dtype, [a, *others])

    # Configuration
    result = given or _results.allocate("out", sides.shape, a.dtype, a)
    into = sides.matrices(result.view)

    # Launch
    if into.size:
        multiply(*sides.broadcast(), bias_row, into, activation, stream)
    return result.source


@planned
def linear(
    x: Array,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    activation: Activation = None,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Linear layer: ``activation(x @ weight^T + bias)``.

    Parameters
    ----------
    x : array, ``[..., in]``
        float32, float16 or bfloat16, with any strides.
    weight : array, ``[out, in]``
        Of the dtype of x.
    bias : array, ``[out]``, optional
        float32, float16 or bfloat16, whatever x is.
    activation : {None, "silu", "gelu", "gelu_tanh", "relu"}
        As in `matmul`.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., out]``
        Of the kind and the dtype of x; summed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `matmul`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x, weight = np.array([1.0, 2.0], np.float32), np.array([[3.0, 4.0], [-5.0, 0.0]], np.float32)
    >>> rocmkern.linear(x, weight, activation="relu")
    array([11.,  0.], dtype=float32)
    """
    # Checks
    stream, activation = _checks.stream(stream), _checks.activation(activation)
    x, weight = accept("x", x), accept("weight", weight)
    given_bias = None if bias is None else accept("bias", bias)
    others = [weight] if given_bias is None else [weight, given_bias]
    _arguments.same_place(x, others)
    _arguments.same_dtype(x, [weight])
    _checks.some_axes(x)
    _checks.rank(weight, "out in")
    _checks.extent(weight, 1, x.shape[-1], "the length of the last axis of x")
    bias_row = _checks.bias(given_bias, weight.shape[0], "the number of rows of weight")
    shape = (*x.shape[:-1], weight.shape[0])
    given = None if out is None else accept_out(out, shape, x.dtype, [x, *others])

    # Configuration
    result = given or _results.allocate("out", shape, x.dtype, x)
    rows, into = _checks.at_least_2d(x.aligned()), _checks.at_least_2d(result.view)

    # Launch
    if into.size:
        multiply(rows, weight.aligned().swapaxes(0, 1), bias_row, into, activation, stream)
    return result.source
