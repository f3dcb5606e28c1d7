"""Gradients of the gated activations. What they mean is `rocmkern.ops.activations.backward.reference`."""

from __future__ import annotations

from typing import Any, Literal, overload

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import Argument, accept, accept_out, accept_outs
from rocmkern.calls.axes import flat_rows_of
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Stream
from rocmkern.ops.activations.api import halves
from rocmkern.runtime.errors import ArgumentError


@overload
def swiglu_backward(
    dout: Array,
    gate: ArrayLike,
    up: None = ...,
    *,
    order: Literal["gate_up", "up_gate"] = ...,
    out: Array | None = ...,
    stream: Stream = ...,
) -> Array: ...
@overload
def swiglu_backward(
    dout: Array,
    gate: ArrayLike,
    up: ArrayLike,
    *,
    order: Literal["gate_up", "up_gate"] = ...,
    out: tuple[Array, Array] | None = ...,
    stream: Stream = ...,
) -> tuple[Array, Array]: ...
@overload
def swiglu_backward(
    dout: Array,
    gate: ArrayLike,
    up: ArrayLike | None,
    *,
    order: Literal["gate_up", "up_gate"] = ...,
    out: Array | tuple[Array, Array] | None = ...,
    stream: Stream = ...,
) -> Array | tuple[Array, Array]: ...
@planned
def swiglu_backward(
    dout: Array,
    gate: ArrayLike,
    up: ArrayLike | None = None,
    *,
    order: Literal["gate_up", "up_gate"] = "gate_up",
    out: Array | tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, Array]:
    """Gradients of `swiglu`: ``dgate = dout * silu'(gate) * up`` and ``dup = dout * silu(gate)``.

    With ``s = 1 / (1 + exp(-x))``, ``silu'(x) = s + x s (1 - s)``. Nothing of the forward call is needed but its
    arguments.

    Parameters
    ----------
    dout : array, ``[...]``
        Gradient of the result: float32, float16 or bfloat16, at least one axis, with any strides.
    gate : array, ``[...]``, or ``[..., 2 * n]`` without `up`
        As in `swiglu`; of the dtype of `dout`.
    up : array, ``[...]``, optional
        As in `swiglu`.
    order : {"gate_up", "up_gate"}
        As in `swiglu`.
    out : array, or (array, array) with `up`, optional
        Where to write the results: exact shapes and dtypes; each may be one of the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    (array, array), ``[...]``, or array, ``[..., 2 * n]``, without `up`
        The gradients of `gate` and of `up`, or that of the packed array, of the kind and dtype of `dout`. Computed in
        float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    References
    ----------
    Shazeer: GLU Variants Improve Transformer (2020).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> dout, gate, up = np.array([[1.0], [0.0], [5.0]], np.float32)
    >>> rocmkern.swiglu_backward(dout, gate, up)
    (array([2.5], dtype=float32), array([0.], dtype=float32))
    """
    if not isinstance(order, str) or order not in ("gate_up", "up_gate"):
        raise ArgumentError("order", repr(order), '"gate_up" or "up_gate"')
    return _gated(dout, gate, up, "silu", order == "up_gate", out, stream)


@overload
def geglu_backward(
    dout: Array,
    gate: ArrayLike,
    up: None = ...,
    *,
    approximate: Literal["none", "tanh"] = ...,
    out: Array | None = ...,
    stream: Stream = ...,
) -> Array: ...
@overload
def geglu_backward(
    dout: Array,
    gate: ArrayLike,
    up: ArrayLike,
    *,
    approximate: Literal["none", "tanh"] = ...,
    out: tuple[Array, Array] | None = ...,
    stream: Stream = ...,
) -> tuple[Array, Array]: ...
@overload
def geglu_backward(
    dout: Array,
    gate: ArrayLike,
    up: ArrayLike | None,
    *,
    approximate: Literal["none", "tanh"] = ...,
    out: Array | tuple[Array, Array] | None = ...,
    stream: Stream = ...,
) -> Array | tuple[Array, Array]: ...
@planned
def geglu_backward(
    dout: Array,
    gate: ArrayLike,
    up: ArrayLike | None = None,
    *,
    approximate: Literal["none", "tanh"] = "none",
    out: Array | tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, Array]:
    """Gradients of `geglu`: ``dgate = dout * gelu'(gate) * up`` and ``dup = dout * gelu(gate)``.

    With the normal distribution Phi and its density phi, ``gelu'(x) = Phi(x) + x phi(x)``.

    Parameters
    ----------
    dout : array, ``[...]``
        Gradient of the result: float32, float16 or bfloat16, at least one axis, with any strides.
    gate : array, ``[...]``, or ``[..., 2 * n]`` without `up`
        As in `geglu`; of the dtype of `dout`.
    up : array, ``[...]``, optional
        As in `geglu`.
    approximate : {"none", "tanh"}
        As in `geglu`; with "tanh" it is the gradient of that form.
    out : array, or (array, array) with `up`, optional
        Where to write the results: exact shapes and dtypes; each may be one of the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    (array, array), ``[...]``, or array, ``[..., 2 * n]``, without `up`
        The gradients of `gate` and of `up`, or that of the packed array, of the kind and dtype of `dout`. Computed in
        float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `swiglu_backward`.

    References
    ----------
    Shazeer: GLU Variants Improve Transformer (2020). Hendrycks, Gimpel: Gaussian Error Linear Units (2016).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> dout, gate, up = np.array([[1.0], [100.0], [5.0]], np.float32)
    >>> rocmkern.geglu_backward(dout, gate, up)
    (array([5.], dtype=float32), array([100.], dtype=float32))
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ArgumentError("approximate", repr(approximate), '"none" or "tanh"')
    return _gated(dout, gate, up, "gelu_tanh" if approximate == "tanh" else "gelu", False, out, stream)


def _gated(
    dout: Array,
    gate: ArrayLike,
    up: ArrayLike | None,
    activation: str,
    up_first: bool,
    out: Array | tuple[Array, Array] | None,
    stream: Stream,
) -> Array | tuple[Array, Array]:
    # Checks
    stream = _checks.stream(stream)
    dout, whole = accept("dout", dout), accept("gate", gate)
    inputs = [dout, whole] if up is None else [dout, whole, accept("up", up)]
    _arguments.same_place(dout, inputs[1:])
    _arguments.same_dtype(dout, inputs[1:])
    _checks.some_axes(whole)
    pair = halves(whole) if up is None else (whole, inputs[2])
    if up is not None:
        _checks.same_shape(inputs[2], whole.shape, "the shape of gate")
    _checks.same_shape(dout, pair[0].shape, "the shape of gate" if up is not None else "that of half of gate")
    given = _given_outputs(out, inputs)

    # Configuration
    results = given or [_results.allocate("out", x.shape, x.dtype, dout) for x in inputs[1:]]
    acted, factor = pair[::-1] if up_first else pair
    into = halves(results[0]) if up is None else tuple(results)
    dacted, dfactor = into[::-1] if up_first else into

    # Launch
    if dout.view.size:
        # deferred: start-up
        from rocmkern.ops.activations.backward.launch import launch_gated_backward

        views = (dout.aligned(), acted.aligned(), factor.aligned(), dacted.view, dfactor.view)
        for some_dout, some_acted, some_factor, dfirst, dsecond in flat_rows_of(*views):
            launch_gated_backward(some_dout, some_acted, some_factor, dfirst, dsecond, activation, stream)
    return results[0].source if up is None else (results[0].source, results[1].source)


def _given_outputs(out: Any, inputs: list[Argument]) -> list[Argument]:
    """The arrays of ``out=``: one, or a pair that do not overlap; none where it is not given."""
    if out is None:
        return []
    if len(inputs) == 2:
        return [accept_out(out, inputs[1].shape, inputs[1].dtype, inputs, elementwise=True)]
    words = "a pair of arrays, for the gradients of gate and up"
    return accept_outs(out, [(inputs[1].shape, inputs[1].dtype)] * 2, words, inputs, elementwise=True)
