"""Norms over the last axis, and the sum of a block with its residual. What they mean is `reference.py`."""

from __future__ import annotations

from typing import Any, overload

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import Argument, accept, accept_out, accept_outs
from rocmkern.calls.axes import flat_rows_of, rows_of
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Stream
from rocmkern.runtime.errors import ArgumentTypeError


@overload
def rms_norm(
    x: Array,
    weight: ArrayLike,
    eps: float = ...,
    *,
    residual: None = ...,
    weight_offset: float = ...,
    out: Array | None = ...,
    stream: Stream = ...,
) -> Array: ...
@overload
def rms_norm(
    x: Array,
    weight: ArrayLike,
    eps: float = ...,
    *,
    residual: ArrayLike,
    weight_offset: float = ...,
    out: tuple[Array, Array] | None = ...,
    stream: Stream = ...,
) -> tuple[Array, Array]: ...
@overload
def rms_norm(
    x: Array,
    weight: ArrayLike,
    eps: float = ...,
    *,
    residual: ArrayLike | None,
    weight_offset: float = ...,
    out: Array | tuple[Array, Array] | None = ...,
    stream: Stream = ...,
) -> Array | tuple[Array, Array]: ...
@planned
def rms_norm(
    x: Array,
    weight: ArrayLike,
    eps: float = 1e-6,
    *,
    residual: ArrayLike | None = None,
    weight_offset: float = 0.0,
    out: Array | tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, Array]:
    """RMS norm over the last axis: ``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)``.

    With a residual, ``s = x + residual`` is rounded to the dtype of x, and the norm is that of the rounded sum, as in
    vLLM's fused kernel and as in Hugging Face's models, where the sum is a tensor of its own.

    Parameters
    ----------
    x : array, ``[..., n]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    weight : array, ``[n]``
        float32, float16 or bfloat16, whatever x is: files keep norms in float32 beside halves.
    eps : float
        At least 0; it is added inside the root. A row of zeros gives zeros, with an eps of 0 too.
    residual : array, ``[..., n]``, optional
        Of the shape and dtype of x.
    weight_offset : float
        Added to every weight, in float32; 1 for Gemma's checkpoints.
    out : array, or (array, array) with a residual, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., n]``, or (array, array)
        The norm, of the shape, kind and dtype of x; with a residual also s. Squares are summed in float32 in units of
        the largest one, so that neither 1e25 nor 1e-25 in float32 is too much; the result is rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    References
    ----------
    Zhang, Sennrich: Root Mean Square Layer Normalization (2019).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.rms_norm(np.full((1, 4), 2.0, np.float32), np.ones(4, np.float32), 0.0)
    array([[1., 1., 1., 1.]], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    x, weight = accept("x", x), _accept_weight(weight)
    added = None if residual is None else accept("residual", residual)
    inputs = [x, weight] if added is None else [x, weight, added]
    _arguments.same_place(x, inputs[1:])
    if added is not None:
        _arguments.same_dtype(x, [added])
    _checks.some_axes(x)
    _checks.same_shape(weight, x.shape[-1:], "the last axis of x")
    eps, offset = _checks.epsilon(eps), _checks.number("weight_offset", weight_offset)
    if added is not None:
        _checks.same_shape(added, x.shape, "the shape of x")
    given = _given_outputs(out, x, inputs, pair=added is not None)

    # Configuration
    result, sums = (g or _results.allocate("out", x.shape, x.dtype, x) for g in given) if added else (given[0], None)
    result = result or _results.allocate("out", x.shape, x.dtype, x)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.norm.launch import launch_rms_norm

        views = [x.aligned(), result.view]
        if added is not None and sums is not None:
            views += [added.aligned(), sums.view]
        for some_x, some_out, *pair in rows_of(*views):
            some_added, some_sums = pair or (None, None)
            launch_rms_norm(some_x, some_added, some_sums, weight.aligned(), some_out, eps, offset, stream)
    return result.source if sums is None else (result.source, sums.source)


@planned
def layer_norm(
    x: Array,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Layer norm over the last axis: ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``.

    Parameters
    ----------
    x : array, ``[..., n]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    weight, bias : array, ``[n]``, optional
        float32, float16 or bfloat16, each whatever x is; 1 and 0 by default.
    eps : float
        At least 0; it is added inside the root. A row of equal numbers gives `bias`, with an eps of 0 too.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., n]``
        Of the shape, kind and dtype of x. The variance is that of all n numbers (divided by n), the mean of squared
        differences from the mean; computed in float32, rounded once. Squares may leave the range of float32, sums and
        differences of a row may not: numbers of 3e38 give NaN, as in PyTorch. `rms_norm` has no such limit.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rms_norm`.

    References
    ----------
    Ba, Kiros, Hinton: Layer Normalization (2016).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.layer_norm(np.array([[1.0, 3.0]], np.float32), eps=0.0)
    array([[-1.,  1.]], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    x = accept("x", x)
    scale = None if weight is None else _accept_weight(weight)
    shift = None if bias is None else accept("bias", bias)
    parameters = [p for p in (scale, shift) if p is not None]
    _arguments.same_place(x, parameters)
    _checks.some_axes(x)
    for p in parameters:
        _checks.same_shape(p, x.shape[-1:], "the last axis of x")
    eps = _checks.epsilon(eps)
    given = None if out is None else accept_out(out, x.shape, x.dtype, [x, *parameters])

    # Configuration
    result = given or _results.allocate("out", x.shape, x.dtype, x)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.norm.launch import launch_layer_norm

        weights, biases = (None if p is None else p.aligned() for p in (scale, shift))
        for some_x, some_out in rows_of(x.aligned(), result.view):
            launch_layer_norm(some_x, weights, biases, some_out, eps, stream)
    return result.source


@planned
def add_residual(x: Array, residual: ArrayLike, *, out: Array | None = None, stream: Stream = None) -> Array:
    """Sum of two arrays of one shape: ``x + residual``.

    Parameters
    ----------
    x : array, ``[...]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    residual : array
        Of the shape and dtype of x.
    out : array, optional
        Where to write the result; `x` or `residual` itself is allowed.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[...]``
        Of the shape, kind and dtype of x. Added in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rms_norm`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.add_residual(np.ones(2, np.float32), np.array([1.0, 2.0], np.float32))
    array([2., 3.], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    x, added = accept("x", x), accept("residual", residual)
    _arguments.same_place(x, [added])
    _arguments.same_dtype(x, [added])
    _checks.some_axes(x)
    _checks.same_shape(added, x.shape, "the shape of x")
    given = None if out is None else accept_out(out, x.shape, x.dtype, [x, added], elementwise=True)

    # Configuration
    result = given or _results.allocate("out", x.shape, x.dtype, x)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.norm.launch import launch_add_residual

        for some_x, some_added, some_out in flat_rows_of(x.aligned(), added.aligned(), result.view):
            launch_add_residual(some_x, some_added, some_out, stream)
    return result.source


def _accept_weight(weight: Any) -> Argument:
    """The weights of a norm."""
    if isinstance(weight, int) or (isinstance(weight, (tuple, list)) and all(isinstance(n, int) for n in weight)):
        allowed = "the weights: the shape that torch.nn.functional takes here is always that of the last axis of x"
        raise ArgumentTypeError("weight", repr(weight), allowed)
    return accept("weight", weight)


def _given_outputs(
    out: Any, x: Argument, inputs: list[Argument], *, pair: bool
) -> tuple[Argument | None, Argument | None]:
    """The arrays of ``out=``: one, or a pair that do not overlap."""
    if out is None:
        return None, None
    if not pair:
        return accept_out(out, x.shape, x.dtype, inputs), None
    words = "a pair of arrays, for the norm and for x + residual"
    first, second = accept_outs(out, [(x.shape, x.dtype)] * 2, words, inputs)
    return first, second
