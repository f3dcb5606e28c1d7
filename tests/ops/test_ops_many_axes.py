"""Leading axes of any number: what is done to rows does not depend on how they are counted or where they lie."""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern import targets

SHAPE = (2, 3, 2, 2, 3)  # five axes before the last one: more than a launch has
ROWS = int(np.prod(SHAPE))


@pytest.fixture(params=["python", "cpu"], autouse=True)
def target(request):
    with targets.using(request.param):
        yield


def drawn(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


BLOCKS = rocmkern.quantize(drawn(ROWS, 64), "q4_0")
PACKED = rocmkern.quantize(drawn(5, 64), "q4_0")
OPERATIONS = {
    "softmax": (drawn(ROWS, 8), rocmkern.softmax),
    "scale": (drawn(ROWS, 8), lambda x: rocmkern.scale(x, 3.0)),
    "rms_norm": (drawn(ROWS, 8), lambda x: rocmkern.rms_norm(x, drawn(8))),
    "layer_norm": (drawn(ROWS, 8), lambda x: rocmkern.layer_norm(x, drawn(8), drawn(8))),
    "add_residual": (drawn(ROWS, 8), lambda x: rocmkern.add_residual(x, x[..., ::-1])),
    "swiglu": (drawn(ROWS, 8), lambda x: rocmkern.swiglu(x, x[..., ::-1])),
    "geglu": (drawn(ROWS, 8), lambda x: rocmkern.geglu(x, x[..., ::-1])),
    "linear": (drawn(ROWS, 8), lambda x: rocmkern.linear(x, drawn(5, 8), drawn(5))),
    "mlp": (drawn(ROWS, 8), lambda x: rocmkern.mlp(x, drawn(5, 8), drawn(5, 8), drawn(8, 5))),
    "quantized_linear": (drawn(ROWS, 64), lambda x: rocmkern.quantized_linear(x, PACKED, "q4_0")),
    "dequantize": (BLOCKS, lambda x: rocmkern.dequantize(x, "q4_0")),
    "dequantize_rms_norm": (BLOCKS, lambda x: rocmkern.dequantize_rms_norm(x, drawn(64), "q4_0")),
    "quantize": (drawn(ROWS, 64), lambda x: rocmkern.quantize(x, "q4_0")),
}
LAYOUTS = {
    "joined": lambda x: x,
    "apart": lambda x: np.repeat(x, 2, 1)[:, ::2],
    # Of leading axes only the last one could be joined, with the row.
    "turned": lambda x: x.transpose(3, 2, 1, 0, 4, 5).copy().transpose(3, 2, 1, 0, 4, 5),
    "backwards": lambda x: np.flip(np.flip(x, (0, 3)).copy(), (0, 3)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_of_five_axes_are_what_they_are_alone(name, layout):
    x, operation = OPERATIONS[name]
    result, expected = operation(LAYOUTS[layout](x.reshape(*SHAPE, x.shape[1]))), operation(x)
    assert result.shape == (*SHAPE, expected.shape[1])
    # Other rows beside a row may be another variant, which adds up in another order.
    np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=1e-5, atol=2e-5)
