"""The float64 gradients of the MLP against differences."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

from rocmkern import reference


@pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("gated", [True, False])
def test_gradients_are_differences(activation, gated):
    rng = np.random.default_rng(0)
    shapes = ((2, 3, 4), (5, 4), (5, 4), (2, 5), (5,), (5,), (2,))
    x, w_gate, w_up, w_down, b_gate, b_up, b_down = (rng.standard_normal(shape) for shape in shapes)
    inputs = (x, w_gate, w_up, w_down, b_gate, b_up, b_down) if gated else (x, w_up, w_down, b_up, b_down)
    dout = rng.standard_normal((2, 3, 2))

    def call(function, first, inputs):
        x, *rest = inputs
        gate = rest.pop(0) if gated else None
        up, down, *biases = rest
        options = {"b_gate": biases.pop(0)} if gated else {}
        return function(*first, x, gate, up, down, activation=activation, **options, b_up=biases[0], b_down=biases[1])

    gradients = call(reference.mlp_backward, (dout,), inputs)
    finite_differences.agree(gradients, lambda *inputs: call(reference.mlp, (), inputs), inputs, dout)
