"""Gradients of the norms over the last axis. What they mean is `rocmkern.ops.norm.backward.reference`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import Argument, accept, accept_outs
from rocmkern.calls.axes import rows_of
from rocmkern.calls.gradients import accumulates
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Stream


@planned
def rms_norm_backward(
    dout: Array,
    x: ArrayLike,
    weight: ArrayLike,
    eps: float = 1e-6,
    *,
    dresidual: ArrayLike | None = None,
    weight_offset: float = 0.0,
    accumulate: bool = False,
    out: tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """Gradients of `rms_norm` for x and for the weights.

    With ``r = 1 / sqrt(mean(x^2) + eps)``, ``n = x r`` and ``g = dout * (weight + weight_offset)``::

        dx      = r * (g - n * mean(g * n)) + dresidual
        dweight = sum over rows of dout * n

    Of a norm with a residual, x is the sum that the forward call returned beside the norm, and `dresidual` the gradient
    of that sum: then dx is the gradient of both that were added.

    Parameters
    ----------
    dout : array, ``[..., n]``
        Gradient of the norm: float32, float16 or bfloat16, at least one axis, with any strides.
    x : array, ``[..., n]``
        Of the shape and dtype of `dout`.
    weight : array, ``[n]``
        float32, float16 or bfloat16, whatever x is.
    eps : float
        As in `rms_norm`. A row of zeros has a gradient of zeros with an eps of 0.
    dresidual : array, ``[..., n]``, optional
        Gradient of x as a result of its own; of the shape and dtype of x.
    weight_offset : float
        As in `rms_norm`.
    accumulate : bool
        Add the gradient of the weights to what is in its `out`, instead of writing over it; it is rounded once.
    out : (array, array), optional
        Where to write the results: exact shapes and dtypes, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    (array, array), ``[..., n]`` and ``[n]``
        The gradients of x and of the weights, of the kind of `dout` and of the dtype of what they are gradients of.
        Computed in float32, rounded once. Rows are added up in an order that depends on shapes, strides and the
        architecture alone, so that the bits are the same every time.

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
    >>> dout, x = np.array([[[1.0, 0.0]], [[2.0, 2.0]]], np.float32)
    >>> rocmkern.rms_norm_backward(dout, x, np.ones(2, np.float32), 0.0)
    (array([[ 0.25, -0.25]], dtype=float32), array([1., 0.], dtype=float32))
    """
    # Checks
    stream = _checks.stream(stream)
    dout, x, scale = accept("dout", dout), accept("x", x), accept("weight", weight)
    added = None if dresidual is None else accept("dresidual", dresidual)
    inputs = [each for each in (dout, x, scale, added) if each is not None]
    _check_rows(dout, x, [scale], added)
    eps, offset = _checks.epsilon(eps), _checks.number("weight_offset", weight_offset)
    accumulate = accumulates(accumulate, out)
    given = _given_outputs(out, [x, scale], inputs)

    # Configuration
    dx, dweight = given or [_results.allocate("out", each.shape, each.dtype, dout) for each in (x, scale)]

    # Launch
    if dx.view.size:
        # deferred: start-up
        from rocmkern.ops.norm.backward.launch import launch_rms_norm_backward

        views = [dout.aligned(), x.aligned(), dx.view] + ([] if added is None else [added.aligned()])
        pieces = [list(some) for some in rows_of(*views)]
        launch_rms_norm_backward(pieces, scale.aligned(), dweight.view, eps, offset, accumulate, stream)
    elif not accumulate:
        _results.assign(dweight.view, 0, stream)
    return dx.source, dweight.source


@planned
def layer_norm_backward(
    dout: Array,
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    accumulate: bool = False,
    out: Array | tuple[Array, ...] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, ...]:
    """Gradients of `layer_norm` for x, and for weights and biases where they are given.

    With ``r = 1 / sqrt(var(x) + eps)``, ``n = (x - mean(x)) r`` and ``g = dout * weight``::

        dx      = r * (g - mean(g) - n * mean(g * n))
        dweight = sum over rows of dout * n
        dbias   = sum over rows of dout

    Parameters
    ----------
    dout : array, ``[..., n]``
        Gradient of the result: float32, float16 or bfloat16, at least one axis, with any strides.
    x : array, ``[..., n]``
        Of the shape and dtype of `dout`.
    weight, bias : array, ``[n]``, optional
        As in `layer_norm`; float32, float16 or bfloat16, each whatever x is. The numbers of `bias` do not matter.
    eps : float
        As in `layer_norm`. A row of equal numbers has a gradient of zeros with an eps of 0.
    accumulate : bool
        Add the gradients of weights and biases to what is in their `out`, instead of writing over it; each is rounded
        once.
    out : array or tuple of array, optional
        Where to write the results, as they are returned: exact shapes and dtypes, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array ``[..., n]``, or tuple of it and arrays ``[n]``
        The gradients of x, of the weights and of the biases; of those of the three that are given. Each is of the kind
        of `dout` and of the dtype of what it is the gradient of. Computed in float32, rounded once; the bits are the
        same every time, as of `rms_norm_backward`. Rows that are too large for `layer_norm` have gradients of NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rms_norm_backward`.

    References
    ----------
    Ba, Kiros, Hinton: Layer Normalization (2016).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> dout, x = np.array([[[1.0, 0.0]], [[1.0, 3.0]]], np.float32)
    >>> rocmkern.layer_norm_backward(dout, x, bias=np.zeros(2, np.float32), eps=0.0)
    (array([[0., 0.]], dtype=float32), array([1., 0.], dtype=float32))
    """
    # Checks
    stream = _checks.stream(stream)
    dout, x = accept("dout", dout), accept("x", x)
    scale = None if weight is None else accept("weight", weight)
    shift = None if bias is None else accept("bias", bias)
    parameters = [each for each in (scale, shift) if each is not None]
    _check_rows(dout, x, parameters, None)
    eps, accumulate = _checks.epsilon(eps), accumulates(accumulate, out)
    given = _given_outputs(out, [x, *parameters], [dout, x, *parameters])

    # Configuration
    results = given or [_results.allocate("out", each.shape, each.dtype, dout) for each in (x, *parameters)]
    dx, sums = results[0], [each.view for each in results[1:]]

    # Launch
    if dx.view.size:
        # deferred: start-up
        from rocmkern.ops.norm.backward.launch import launch_layer_norm_backward

        pieces = [list(some) for some in rows_of(dout.aligned(), x.aligned(), dx.view)]
        dweight, dbias = None if scale is None else sums[0], None if shift is None else sums[-1]
        weights = None if scale is None else scale.aligned()
        launch_layer_norm_backward(pieces, weights, dweight, dbias, eps, accumulate, stream)
    elif not accumulate:
        for empty in sums:
            _results.assign(empty, 0, stream)
    return tuple([each.source for each in results]) if parameters else dx.source


def _check_rows(dout: Argument, x: Argument, parameters: Sequence[Argument], added: Argument | None) -> None:
    """Arrays of the shape and dtype of `dout`, and parameters of its last axis."""
    rows = [x] if added is None else [x, added]
    _arguments.same_place(dout, [*rows, *parameters])
    _arguments.same_dtype(dout, rows)
    _checks.some_axes(dout)
    for each in rows:
        _checks.same_shape(each, dout.shape, "the shape of dout")
    for each in parameters:
        _checks.same_shape(each, dout.shape[-1:], "the last axis of x")


def _given_outputs(out: Any, wanted: Sequence[Argument], inputs: Sequence[Argument]) -> list[Argument]:
    """The arrays of ``out=``, like those that are wanted, apart from each other; none where it is not given."""
    if out is None:
        return []
    words = f"{len(wanted)} arrays, for the gradients of {', '.join(each.name for each in wanted)}"
    likes = [(each.shape, each.dtype) for each in wanted]
    return accept_outs(out if len(wanted) > 1 else [out], likes, words, inputs)
