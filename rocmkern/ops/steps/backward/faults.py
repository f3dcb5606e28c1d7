"""Faults of the gradients of the steps of attention."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _edited(name: str, description: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("softmax_backward",), edits=(Edit("softmax_backward", old, new),))


FAULTS = (
    _edited("softmax_backward_without_sum", "the sum is a constant", "dot = T.rowdot(d, t)", "dot = T.rowsum(d) * 0.0"),
    _edited(
        "softmax_backward_last_tile",
        "of a longer row the last tile counts in the sum",
        "dot = dot + T.rowdot(d, T.load_tile(cfg, y[a, b], (row,), n0, cfg.block_n, valid))",
        "dot = dot * 0.0 + T.rowdot(d, T.load_tile(cfg, y[a, b], (row,), n0, cfg.block_n, valid))",
    ),
    _edited(
        "softmax_backward_without_scale",
        "the scale is left out",
        "T.store_tile(dx[a, b], (row,), 0, (d - dot) * t * scale, valid)",
        "T.store_tile(dx[a, b], (row,), 0, (d - dot) * t * 1.0, valid)",
    ),
)
