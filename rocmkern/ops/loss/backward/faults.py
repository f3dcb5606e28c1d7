"""Faults of the gradient of the cross-entropy of a linear layer."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _fault(name: str, description: str, kernel: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("linear_cross_entropy_backward",), edits=(Edit(kernel, old, new),))


FAULTS = (
    _fault("loss_gradient_of_target", "the target is not subtracted", "logit_gradients", "gradient - kept", "gradient"),
    _fault(
        "loss_gradient_of_first_tokens",
        "targets are looked for among the first tokens of each part",
        "logit_gradients",
        "T.load_integers(target, (row,), valid) - first",
        "T.load_integers(target, (row,), valid)",
    ),
    _fault(
        "loss_gradient_without_smoothing",
        "the share of all tokens is not subtracted",
        "logit_gradients",
        "T.exp2((logit - lse) * LOG2_E) * scale - share",
        "T.exp2((logit - lse) * LOG2_E) * scale + share * 0.0",
    ),
    _fault(
        "loss_gradient_without_z",
        "the z-loss has no gradient",
        "logit_gradients",
        "log_sum * (2.0 * z_loss) + 1.0",
        "log_sum * 0.0 + 1.0",
    ),
    _fault(
        "loss_gradient_through_cap",
        "the cap has a slope of 1",
        "logit_gradients",
        "1.0 - ratio * ratio",
        "1.0 - ratio * 0.0",
    ),
    _fault("loss_gradient_of_sum", "the mean is taken for a sum", "row_factors", "mean == 1", "mean == 2"),
    _fault(
        "loss_gradient_of_ignored",
        "ignored rows have a gradient",
        "row_factors",
        "T.where(counted, factor, 0.0)",
        "factor",
    ),
)
