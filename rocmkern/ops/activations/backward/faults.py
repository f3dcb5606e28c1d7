"""Faults of the gradients of gated activations."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

GATED = ("swiglu_backward", "geglu_backward")
FAULTS = (
    Fault(
        "gated_backward_without_up",
        "the gradient of the gate lacks the other factor",
        GATED,
        edits=(Edit("gated_backward", "slope * T.copy(d) * u", "slope * T.copy(d)"),),
    ),
    Fault(
        "gated_backward_without_activation",
        "the gradient of up is that of the result",
        GATED,
        edits=(Edit("gated_backward", "T.map(value, t, f) * d", "d"),),
    ),
    Fault(
        "gated_backward_monotone",
        "the slope lacks the term with the density",
        ("swiglu_backward",),
        edits=(Edit("gated_backward", "s + f * (1.0 - s) * inner", "s"),),
    ),
    Fault(
        "gated_backward_unbounded",
        "infinity is multiplied by 0",
        ("geglu_backward",),
        edits=(Edit("gated_backward", "T.where(size > FAR, FAR, size)", "size"),),
    ),
    Fault(
        "geglu_backward_cancelling",
        "slopes that are nearly 0 come from numbers that are nearly 1",
        ("geglu_backward",),
        edits=(
            Edit(
                "gated_backward",
                "share(a, f) + a * density(a)",
                "0.5 + 0.5 * T.erf(a * 0.7071067811865476) + a * density(a)",
            ),
        ),
    ),
    Fault(
        "geglu_backward_always_tanh",
        "the slope is that of the form with tanh",
        ("geglu_backward",),
        edits=(Edit("gated_backward", "T.map(gelu_slope, ...)", "T.map(gelu_tanh_slope, ...)"),),
    ),
)
