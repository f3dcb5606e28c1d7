"""Faults of the cross-entropy of a linear layer."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _fault(name: str, description: str, kernel: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("linear_cross_entropy",), edits=(Edit(kernel, old, new),))


FAULTS = (
    _fault(
        "loss_tail_counted",
        "what lies past the last token counts as logits of 0",
        "logit_sums",
        "z = T.pad_columns(z, col0, tokens, T.NEG_INF)",
        "pass",
    ),
    _fault(
        "loss_not_rescaled",
        "earlier sums are not rescaled when a larger logit comes",
        "logit_sums",
        "l * T.exp2((m - base) * LOG2_E)",
        "l",
    ),
    _fault(
        "loss_shares_not_rescaled",
        "sums of shares of the vocabulary are added up whatever their maxima are",
        "row_losses",
        "mine * T.exp2((part - base) * LOG2_E)",
        "mine",
    ),
    _fault(
        "loss_target_off_by_one",
        "the next token is taken for the target",
        "logit_sums",
        "distance == 0.0",
        "distance == -1.0",
    ),
    _fault(
        "loss_next_tokens_first_step",
        "the first step of the next tokens has the weights of these",
        "logit_sums",
        "col0 + (step + cfg.num_stages) // steps * cfg.block_n",
        "col0",
    ),
    _fault(
        "loss_without_smoothing",
        "the target has all of the weight",
        "row_losses",
        "log_sum - picked * (1.0 - smoothing)",
        "log_sum - picked",
    ),
    _fault(
        "loss_smoothing_of_sum",
        "smoothing adds the sum of the logits, not their mean",
        "row_losses",
        "smoothing / tokens",
        "smoothing",
    ),
    _fault(
        "loss_z_of_lse", "the z-loss is not squared", "row_losses", "log_sum * log_sum * z_loss", "log_sum * z_loss"
    ),
    _fault("loss_of_ignored_rows", "ignored rows have a loss", "row_losses", "T.where(counted, value, 0.0)", "value"),
    _fault(
        "loss_mean_over_all_rows",
        "the mean is over ignored rows too",
        "sum_losses",
        "T.where(valid & is_counted(label, ignored, tokens), 1.0, 0.0)",
        "T.where(valid, 1.0, 0.0)",
    ),
    _fault(
        "loss_cap_without_scale",
        "the cap is not multiplied again",
        "rocmkern.ops.loss.kernels.logit_sums:logit_sums",
        "logits_of(cfg, z, bias, col0, cap, valid)",
        "logits_of(cfg, z, bias, col0, 0.0, valid)",
    ),
)
