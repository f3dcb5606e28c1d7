"""Faults of the gradients of linear layers with quantized weights."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

FAULTS = (
    Fault(
        "quantized_gradient_windows_mirrored",
        "rows and columns of the windows of the weights are confused",
        ("quantized_linear_backward",),
        edits=(Edit("matmul", "right = T.fetch(right, k0, col0)", "right = T.fetch(right, col0, k0)"),),
    ),
    Fault(
        "quantized_gradient_last_step",
        "what the rows of the weights have beyond the last whole step is left out",
        ("quantized_linear_backward",),
        edits=(
            Edit(
                "matmul",
                "steps = (source.shape[1] + cfg.block_k - 1) // cfg.block_k",
                "steps = source.shape[1] // cfg.block_k",
            ),
        ),
    ),
    Fault(
        "quantized_gradient_through_nothing",
        "the gradient of the result is taken for that of what the activation is given",
        ("quantized_linear_backward",),
        edits=(Edit("activation_gradient", "through_activation(t, d, activation)", "d"),),
    ),
)
