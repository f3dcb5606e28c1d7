"""Faults of the gradients of rotary embeddings."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

FAULTS = (
    Fault(
        "rope_backward_forwards",
        "gradients turn as the numbers did",
        ("rope_backward",),
        edits=(Edit("rope", "sin * (factor * direction)", "sin * factor"),),
    ),
    Fault(
        "rope_backward_without_factor",
        "cosine is not multiplied by the attention factor",
        ("rope_backward",),
        edits=(
            Edit(
                "rope",
                "return cos * factor, sin * (factor * direction)",
                "return cos * 1.0, sin * (factor * direction)",
            ),
        ),
    ),
)
