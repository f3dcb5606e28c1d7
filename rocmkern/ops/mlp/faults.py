"""Faults of the first half of a gated MLP."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _gated(name: str, description: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("mlp",), edits=(Edit("gated_mlp", old, new),))


FAULTS = (
    _gated(
        "gate_and_up_swapped",
        "the up projection is activated instead of the gate",
        "activate(gate, activation) * up",
        "activate(up, activation) * gate",
    ),
    _gated("gate_not_activated", "the gate is not activated", "activate(gate, activation) * up", "gate * up"),
    _gated(
        "product_activated",
        "the activation is applied to the product of gate and up",
        "activate(gate, activation) * up",
        "activate(gate * up, activation)",
    ),
    _gated(
        "gate_weights_twice",
        "the up projection uses the weights of the gate",
        "T.stage(cfg, w_up, ...)",
        "T.stage(cfg, w_gate, ...)",
    ),
    _gated(
        "up_bias_missing",
        "the bias of the up projection is not added",
        "b_up.shape[0] > 0",
        "b_up.shape[0] > 1",
    ),
    _gated(
        "gated_step_dropped",
        "what K has beyond the last whole step is left out",
        "range(0, x.shape[3], cfg.block_k)",
        "range(0, x.shape[3] - cfg.block_k + 1, cfg.block_k)",
    ),
)
