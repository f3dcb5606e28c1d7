"""The MLP of a transformer layer. How it is computed: `kernels/gated_mlp.py`, and the kernels of `linear`."""

from __future__ import annotations

from typing import Any, NamedTuple

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import axes as _axes
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import Argument, accept, accept_out
from rocmkern.calls.axes import joined_rows, rows_together
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Activation, Array, ArrayLike, Stream
from rocmkern.calls.view import View
from rocmkern.runtime.errors import ArgumentError


@planned
def mlp(
    x: Array,
    w_gate: ArrayLike | None,
    w_up: ArrayLike,
    w_down: ArrayLike,
    *,
    activation: Activation = "silu",
    b_gate: ArrayLike | None = None,
    b_up: ArrayLike | None = None,
    b_down: ArrayLike | None = None,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """MLP, gated or not: ``h @ w_down^T + b_down``.

    With a gate ``h = activation(x @ w_gate^T + b_gate) * (x @ w_up^T + b_up)``, which for "silu" is SwiGLU and for
    "gelu" GEGLU; without one (``w_gate=None``) ``h = activation(x @ w_up^T + b_up)``.

    Parameters
    ----------
    x : array, ``[..., in]``
        float32, float16 or bfloat16, with any strides.
    w_gate : array, ``[hidden, in]``, or None
        Of the dtype of x, as `w_up` and `w_down`.
    w_up : array, ``[hidden, in]``
    w_down : array, ``[out, hidden]``
    activation : {"silu", None, "gelu", "gelu_tanh", "relu"}
        As in `matmul`; of the gate where there is one.
    b_gate, b_up : array, ``[hidden]``, optional
        float32, float16 or bfloat16, each whatever x is; `b_down` too.
    b_down : array, ``[out]``, optional
    out : array, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., out]``
        Of the kind and the dtype of x. All sums are float32; h is rounded to the dtype of x, as the result.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `matmul`.

    References
    ----------
    Shazeer: GLU Variants Improve Transformer (2020).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x, w = np.ones((1, 2), np.float32), np.ones((2, 2), np.float32)
    >>> rocmkern.mlp(x, w, w, w, activation="relu")
    array([[8., 8.]], dtype=float32)
    """
    # Checks
    stream, activation = _checks.stream(stream), _checks.activation(activation)
    x = accept("x", x)
    weights = accept_weights(x, w_gate, w_up, w_down, b_gate, b_up, b_down)
    shape = (*x.shape[:-1], weights.columns)
    given = None if out is None else accept_out(out, shape, x.dtype, [x, *weights.arrays.values()])

    # Configuration
    result = given or _results.allocate("out", shape, x.dtype, x)
    rows, into = _checks.at_least_2d(x.aligned()), _checks.at_least_2d(result.view)
    together = rows_together(rows)
    rows, into = joined_rows(rows, into)

    # Launch
    if into.size:
        # deferred: start-up
        from rocmkern.ops.mlp.launch import launch_mlp

        gate, up, down, gate_row, up_row, down_row = weights.views
        assert up is not None and down is not None
        for some, some_out in _axes.four_axes(rows, into, row_axes=2):
            launch_mlp(some, gate, up, down, gate_row, up_row, down_row, some_out, activation, stream, together)
    return result.source


class GivenWeights(NamedTuple):
    """The checked weights and biases of an MLP: w_gate, w_up, w_down, b_gate, b_up, b_down.

    Attributes
    ----------
    arrays : dict of str to Argument or None
    views : list of View or None
        Weights ``[out, in]`` and biases ``[1, out]``.
    columns : int
        Of the result.
    """

    arrays: dict[str, Argument | None]
    views: list[View | None]
    columns: int


def accept_weights(
    x: Argument, w_gate: Any, w_up: Any, w_down: Any, b_gate: Any, b_up: Any, b_down: Any
) -> GivenWeights:
    """Check the weights and biases of an MLP of rows x."""
    up, down = accept("w_up", w_up), accept("w_down", w_down)
    gate, gate_bias, up_bias, down_bias = (
        None if array is None else accept(name, array)
        for name, array in (("w_gate", w_gate), ("b_gate", b_gate), ("b_up", b_up), ("b_down", b_down))
    )
    weights = [array for array in (gate, up, down) if array is not None]
    _arguments.same_place(x, [*weights, gate_bias, up_bias, down_bias])
    _arguments.same_dtype(x, weights)
    _checks.some_axes(x)
    _checks.rank(up, "hidden in")
    _checks.rank(down, "out hidden")
    _checks.extent(up, 1, x.shape[-1], "the length of the last axis of x")
    hidden = up.shape[0]
    if gate is not None:
        _checks.rank(gate, "hidden in")
        _checks.extent(gate, 1, x.shape[-1], "the length of the last axis of x")
        _checks.extent(gate, 0, hidden, "the number of rows of w_up")
    elif gate_bias is not None:
        raise ArgumentError("b_gate", "an array", "None where w_gate is None")
    _checks.extent(down, 1, hidden, "the number of rows of w_up")
    names = ("w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down")
    arrays = dict(zip(names, (gate, up, down, gate_bias, up_bias, down_bias), strict=True))
    rows = [
        _checks.bias(gate_bias, hidden, "the number of rows of w_gate"),
        _checks.bias(up_bias, hidden, "the number of rows of w_up"),
        _checks.bias(down_bias, down.shape[0], "the number of rows of w_down"),
    ]
    views = [None if gate is None else gate.aligned(), up.aligned(), down.aligned(), *rows]
    return GivenWeights(arrays, views, down.shape[0])
