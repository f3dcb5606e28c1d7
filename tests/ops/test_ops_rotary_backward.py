"""Gradients of rotary embeddings as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.ops.rotary.backward.api import rope_backward
from rocmkern.runtime.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("launch")
YARN = rocmkern.YarnScaling(4.0, 4096)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"variant": "interleaved", "layout": "hsd"},
        {"rotary_dim": 4, "base": 500.0},
        {"scaling": YARN},
        {"scaling": YARN, "inverse": True},
        {"freq_factors": (1.0, 2.0, 3.0, 4.0)},
        {"block_positions": np.array([7, 0, 3], np.int32)},
    ],
    ids=str,
)
def test_it_turns_the_other_way(normal, close, dtype, options):
    dout = normal(2, 3, 3, 8, dtype=dtype)
    positions = np.array([5, 0, 4095])
    expected = reference.rope_backward(dout, positions, **options)
    close(rope_backward(dout, positions, **options), expected)
    assert rope_backward(dout, positions, **options, out=dout) is dout
    close(dout, expected)


def test_errors_name_the_gradient():
    for dout in (np.ones((3, 8), np.float32), np.ones((3, 2, 7), np.float32)):
        with pytest.raises(ArgumentError) as caught:
            rope_backward(dout, np.arange(3))
        assert caught.value.argument == "dout"
