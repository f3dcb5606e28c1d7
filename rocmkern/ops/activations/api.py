"""Gated activations of an MLP. What they mean is `rocmkern.ops.activations.reference`."""

from __future__ import annotations

from typing import Literal

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import Argument, accept, accept_out
from rocmkern.calls.axes import flat_rows_of
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Stream
from rocmkern.runtime.errors import ArgumentError


@planned
def swiglu(
    gate: Array,
    up: ArrayLike | None = None,
    *,
    order: Literal["gate_up", "up_gate"] = "gate_up",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """SwiGLU: ``silu(gate) * up``, with ``silu(x) = x / (1 + exp(-x))``.

    Parameters
    ----------
    gate : array, ``[...]``, or ``[..., 2 * n]`` without `up`
        float32, float16 or bfloat16, at least one axis, with any strides. Without `up` it holds both, side by side in
        the last axis.
    up : array, ``[...]``, optional
        Of the shape and dtype of `gate`.
    order : {"gate_up", "up_gate"}
        Which of the two comes first. With "up_gate" the first argument (or the first half) is the one that is
        multiplied, and the second one goes through silu: ``silu(up) * gate``.
    out : array, optional
        Where to write the result; `gate` or `up` itself is allowed, or one of the halves of a packed array.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[...]`` or ``[..., n]``
        Of the kind and dtype of `gate`. Computed in float32, rounded once.

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
    >>> rocmkern.swiglu(np.array([0.0, 100.0], np.float32), np.array([5.0, 2.0], np.float32))
    array([  0., 200.], dtype=float32)
    """
    if not isinstance(order, str) or order not in ("gate_up", "up_gate"):
        raise ArgumentError("order", repr(order), '"gate_up" or "up_gate"')
    return _gated(gate, up, "silu", order == "up_gate", out, stream)


@planned
def geglu(
    gate: Array,
    up: ArrayLike | None = None,
    *,
    approximate: Literal["none", "tanh"] = "none",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """GEGLU: ``gelu(gate) * up``, with ``gelu(x) = x / 2 * (1 + erf(x / sqrt(2)))``.

    Parameters
    ----------
    gate : array, ``[...]``, or ``[..., 2 * n]`` without `up`
        float32, float16 or bfloat16, at least one axis, with any strides. Without `up` it holds both, the gate in the
        first half of the last axis.
    up : array, ``[...]``, optional
        Of the shape and dtype of `gate`.
    approximate : {"none", "tanh"}
        With "tanh", ``gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``, as Gemma's.
    out : array, optional
        Where to write the result; `gate` or `up` itself is allowed, or one of the halves of a packed array.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[...]`` or ``[..., n]``
        Of the kind and dtype of `gate`. Computed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `swiglu`.

    References
    ----------
    Shazeer: GLU Variants Improve Transformer (2020). Hendrycks, Gimpel: Gaussian Error Linear Units (2016).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.geglu(np.array([0.0, 100.0], np.float32), np.array([5.0, 2.0], np.float32))
    array([  0., 200.], dtype=float32)
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ArgumentError("approximate", repr(approximate), '"none" or "tanh"')
    return _gated(gate, up, "gelu_tanh" if approximate == "tanh" else "gelu", False, out, stream)


def _gated(
    gate: Array, up: ArrayLike | None, activation: str, up_first: bool, out: Array | None, stream: Stream
) -> Array:
    # Checks
    stream = _checks.stream(stream)
    first = accept("gate", gate)
    _checks.some_axes(first)
    if up is None:
        first, second = halves(first)
    else:
        second = accept("up", up)
        _arguments.same_place(first, [second])
        _arguments.same_dtype(first, [second])
        _checks.same_shape(second, first.shape, "the shape of gate")
    given = None if out is None else accept_out(out, first.shape, first.dtype, [first, second], elementwise=True)

    # Configuration
    result = given or _results.allocate("out", first.shape, first.dtype, first)
    acted, factor = (second, first) if up_first else (first, second)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.activations.launch import launch_gated

        for some_acted, some_factor, some_out in flat_rows_of(acted.aligned(), factor.aligned(), result.view):
            launch_gated(some_acted, some_factor, some_out, activation, stream)
    return result.source


def halves(packed: Argument) -> tuple[Argument, Argument]:
    """The two halves of the last axis, as views."""
    width = packed.shape[-1]
    if width % 2:
        raise ArgumentError("gate", f"shape {packed.shape}", "an even last axis where up is not given")
    views = packed.view[..., : width // 2], packed.view[..., width // 2 :]
    first, second = (Argument(packed.name, view, packed.source) for view in views)
    return first, second
