"""Faults of the gradients of a gated MLP."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _fault(name: str, description: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("mlp_backward",), edits=(Edit("hidden_gradient", old, new),))


FAULTS = (
    _fault("mlp_gradient_without_up", "the gradient of the gate lacks the other factor", "d * u", "d"),
    _fault("mlp_gradient_of_up", "the gradient of up is that of the product", "acted * T.copy(d)", "T.copy(d)"),
    _fault("mlp_gradient_not_activated", "the slope is forgotten", "through_activation(t, d * u, activation)", "d * u"),
    _fault(
        "mlp_hidden_without_up", "what w_down multiplies lacks a factor", "T.copy(acted) * T.copy(u)", "T.copy(acted)"
    ),
)
