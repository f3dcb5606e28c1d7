"""Faults of the gradients of the norms."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

NORMS = ("rms_norm_backward", "layer_norm_backward")


def _edited(name: str, description: str, kernel: str, old: str, new: str) -> Fault:
    operations = NORMS if kernel == "column_sums" else (kernel,)
    return Fault(name, description, operations, edits=(Edit(kernel, old, new),))


RMS, LAYER = NORMS
FAULTS = (
    _edited("rms_backward_without_mean", "the norm is a constant", RMS, "g - xh * mean", "g"),
    _edited(
        "rms_backward_units",
        "earlier products are not rescaled",
        RMS,
        "dot * (scale / before)",
        "dot * (scale / scale)",
    ),
    _edited(
        "rms_backward_weight_left_out",
        "the gradient of a normalised number is that of the result",
        RMS,
        "g = d * w",
        "g = d * (w * 0.0 + 1.0)",
    ),
    _edited(
        "rms_backward_without_residual",
        "the gradient of the sum is left out",
        RMS,
        "t = t + T.load_tile(cfg, dresidual, (row,), n0, cfg.block_n, valid)",
        "pass",
    ),
    _edited(
        "norm_backward_last_rows_only",
        "of the rows of a block the last ones count in the gradient of the weights",
        RMS,
        "total_dweight = T.multiply_add(T.copy(d), t, total_dweight)",
        "total_dweight = T.copy(d) * T.copy(t)",
    ),
    _edited(
        "norm_backward_parts_begin_anew",
        "of longer rows the last ones of a block count",
        RMS,
        "t = t + T.load_tile(cfg, parts, (place,), n0, cfg.block_n, place >= 0)",
        "pass",
    ),
    _edited("layer_backward_without_mean", "the mean is a constant", LAYER, "g - T.rowsum(g) * inverse_n", "g"),
    _edited(
        "layer_backward_without_variance",
        "the variance is a constant",
        LAYER,
        "g - T.rowsum(g) * inverse_n - t * dot",
        "g - T.rowsum(g) * inverse_n",
    ),
    _edited(
        "layer_backward_bias_is_weighted",
        "the gradient of the biases has the weights in it",
        LAYER,
        "total_dbias = total_dbias + T.copy(d)",
        "total_dbias = total_dbias + T.copy(d) * load_weight(cfg, weight, 0, valid)",
    ),
    _edited(
        "norm_backward_last_parts",
        "the first parts of the gradient of a parameter are left out",
        "column_sums",
        "total = total + T.rowsum(T.load_tile(cfg, parts, ...))",
        "total = total * 0.0 + T.rowsum(T.load_tile(cfg, parts, ...))",
    ),
)
