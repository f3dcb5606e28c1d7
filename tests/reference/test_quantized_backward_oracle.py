"""The float64 gradients of linear layers with quantized weights against differences."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

import rocmkern
from rocmkern import reference


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_gradients_are_differences(activation):
    rng = np.random.default_rng(0)
    blocks = rocmkern.quantize(rng.standard_normal((3, 32), dtype=np.float32), "q5_1")
    x, bias, dout = rng.standard_normal((2, 32)), rng.standard_normal(3), rng.standard_normal((2, 3))

    def function(x, bias):
        return reference.quantized_linear(x, blocks, "q5_1", bias, activation)

    gradients = reference.quantized_linear_backward(dout, x, blocks, "q5_1", bias, activation)
    finite_differences.agree(gradients, function, (x, bias), dout)
    assert np.array_equal(
        reference.quantized_linear_backward(dout, x, blocks, "q5_1", None), dout @ reference.dequantize(blocks, "q5_1")
    )
