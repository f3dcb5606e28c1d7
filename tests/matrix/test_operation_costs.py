"""What a call is said to move is what its arrays hold: speeds in bytes a second come from it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from rocmkern.matrix import load_cases, make_call

SIZES = {"input": None, "f32": 4, "i32": 4, "u8": 1}
#: Vectors, masks and tables beside the arrays that count make up the rest; fewer rows of a table are read than it has,
#: and fewer pages of a cache.
AT_LEAST = {"apply_mask": 0.6, "layer_norm": 0.7, "dequantize_rms_norm": 0.75, "rms_norm": 0.9}
OTHERWISE = ("embedding", "paged_attention", "paged_attention_packed")


@pytest.fixture(scope="module")
def shares():
    """By operation the bytes that it declares for each quick call, by those of the call's arrays."""
    found = defaultdict(list)
    for case in load_cases(Path(__file__).parents[2] / "matrix.yaml")[1]:
        if case.category != "quick" or case.facts.expect_error or case.operation.nbytes is None:
            continue
        if isinstance(case.memory, dict):
            continue  # one of many layouts of the same arrays
        call = make_call(case)
        held = sum(array.nbytes for array in call.arguments.values() if isinstance(array, np.ndarray))
        outputs = [each for each in case.operation.outputs if not each.feature or case.features.get(each.feature)]
        for output, shape in zip(outputs, call.out_shapes, strict=False):
            size = SIZES.get(output.dtype, 4) or (4 if case.dtype == "f32" else 2)
            held += int(np.prod(shape)) * size
        if held > 500:
            found[case.operation.name].append(case.operation.nbytes(case) / held)
    return found


def test_the_bytes_of_a_call_are_those_of_its_arrays(shares):
    assert len(shares) > 15
    for name, found in shares.items():
        if name in OTHERWISE:
            continue
        middle = float(np.median(found))
        assert AT_LEAST.get(name, 0.95) <= middle <= 1.0 + 1e-9, f"{name}: {middle}"
        if name not in ("matmul", *AT_LEAST):  # a factor of a product may serve a whole batch
            assert max(found) <= 1.0 + 1e-9, f"{name}: {max(found)}"
            assert sum(share > 0.9 for share in found) >= 0.8 * len(found), name
