"""Faults of the gradients of matrix products, which are made of products."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

PRODUCTS = ("matmul_backward", "linear_backward")
FAULTS = (
    Fault(
        "product_gradient_through_nothing",
        "the gradient of the result is taken for that of what the activation is given",
        PRODUCTS,
        edits=(Edit("activation_gradient", "through_activation(t, d, activation)", "d"),),
    ),
    Fault(
        "product_gradient_of_x",
        "the slope is not multiplied by the gradient of the result",
        PRODUCTS,
        edits=(
            Edit(
                "activation_gradient",
                "through_activation(t, d, ...)",
                "through_activation(t, d * 0.0 + 1.0, ...)",
            ),
        ),
    ),
    Fault(
        "relu_passes_below_zero",
        "the gradient of relu passes where it is 0",
        PRODUCTS,
        edits=(Edit("activation_gradient", "T.where(x <= 0.0, 0.0, dout)", "dout"),),
    ),
    Fault(
        "product_gradient_last_step",
        "what a sum over rows has beyond the last whole step is left out",
        PRODUCTS,
        edits=(
            Edit(
                "matmul",
                "steps = (source.shape[1] + cfg.block_k - 1) // cfg.block_k",
                "steps = source.shape[1] // cfg.block_k",
            ),
        ),
    ),
)
