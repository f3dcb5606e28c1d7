"""Faults of the gated activations."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

FAULTS = (
    Fault(
        "gated_other_side",
        "the activation acts on the other array",
        ("swiglu", "geglu"),
        edits=(
            Edit(
                "gated",
                "t = T.load_tile(cfg, gate[a, b], ...)\nu = T.load_tile(cfg, up[a, b], ...)",
                "t = T.load_tile(cfg, up[a, b], ...)\nu = T.load_tile(cfg, gate[a, b], ...)",
            ),
        ),
    ),
    Fault(
        "geglu_always_tanh",
        "gelu is computed by its tanh form",
        ("geglu",),
        edits=(Edit("gated", "t = T.gelu(t)", "t = T.gelu_tanh(t)"),),
    ),
    Fault(
        "silu_is_relu",
        "relu takes the place of silu",
        ("swiglu",),
        edits=(Edit("gated", "t = T.silu(t)", "t = T.relu(t)"),),
    ),
)
