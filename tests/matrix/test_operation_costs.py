"""What a call is said to move is what its arrays hold: speeds in bytes a second come from it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rocmkern.matrix import load_cases, make_call
from rocmkern.ops.attention import cases as attention

SIZES = {"input": None, "f32": 4, "i32": 4, "u8": 1}
#: Vectors, masks and tables beside the arrays that count make up the rest; fewer rows of a table are read than it has,
#: and fewer pages of a cache.
AT_LEAST = {
    "apply_mask": 0.6,
    "layer_norm": 0.7,
    "dequantize_rms_norm": 0.75,
    "rms_norm": 0.9,
    "layer_norm_backward": 0.7,
    "rms_norm_backward": 0.9,
}
OTHERWISE = ("embedding", "embedding_backward", "paged_attention", "paged_attention_packed")


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
        if name not in ("matmul", "matmul_backward", *AT_LEAST):  # a factor of a product may serve a whole batch
            assert max(found) <= 1.0 + 1e-9, f"{name}: {max(found)}"
            assert sum(share > 0.9 for share in found) >= 0.8 * len(found), name


@pytest.fixture(scope="module")
def calls():
    """Some quick calls of each operation that says what it costs, with their cases."""
    found = defaultdict(list)
    for case in load_cases(Path(__file__).parents[2] / "matrix.yaml")[1]:
        if case.category == "quick" and not case.facts.expect_error and case.memory == "contiguous":
            found[case.operation.name].append(case)
    return {name: [(c, make_call(c)) for c in cases[:: -(-len(cases) // 25)]] for name, cases in found.items()}


def rows_of(array):
    return array.size // array.shape[-1] if array.size else 0


def visible(case):
    """Pairs of a query and a key that it sees, counted one by one."""
    rows, columns = case.dims["seq_q"], case.dims["seq_k"]
    left, right = case.features["window"] or (None, None)
    count = 0
    for query in range(rows):
        at = query if case.features["causal"] == "top_left" else query + columns - rows
        for key in range(columns):
            before, behind = at - key, key - at
            seen = not (case.features["causal"] and behind > 0)
            seen = seen and (left is None or before <= left) and (right is None or behind <= right)
            count += seen
    return count


#: Multiplications and additions of a call, from its arrays.
ARITHMETIC = {
    "matmul": lambda case, a, shape: 2 * np.prod(shape) * a["a"].shape[-1],
    "linear": lambda case, a, shape: 2 * rows_of(a["x"]) * a["weight"].size,
    "mlp": lambda case, a, shape: 2 * rows_of(a["x"]) * sum(w.size for n, w in a.items() if n.startswith("w_")),
    "quantized_linear": lambda case, a, shape: 2 * np.prod(shape) * a["x"].shape[-1],
    "qk_scores": lambda case, a, shape: 2 * np.prod(shape) * a["q"].shape[-1],
    "weighted_values": lambda case, a, shape: 2 * a["p"].size * a["v"].shape[-1],
    "flash_attention": lambda case, a, shape: (
        2 * case.dims["batch"] * case.dims["heads"] * visible(case) * (a["q"].shape[-1] + a["v"].shape[-1])
    ),
    "paged_attention": lambda case, a, shape: (
        2
        * case.dims["heads"]
        * case.dims["seq_q"]
        * a["context_lens"].sum()
        * (a["key_cache"].shape[-1] + a["value_cache"].shape[-1])
    ),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_the_arithmetic_of_a_call_is_that_of_its_arrays(calls, name):
    assert len(calls[name]) > 5
    for case, call in calls[name]:
        arrays = {key: array for key, array in call.arguments.items() if isinstance(array, np.ndarray)}
        # A vector is counted as a matrix of as many rows.
        if all(array.size for array in arrays.values()) and not case.features.get("vector"):
            expected = ARITHMETIC[name](case, arrays, call.out_shapes[0])
            assert case.operation.flops(case) == expected, case.id


@pytest.mark.parametrize("name", ["paged_attention", "embedding"])
def test_of_a_table_the_rows_count_that_are_read(calls, name):
    for case, call in calls[name]:
        arrays = call.arguments
        if name == "embedding":
            read = np.prod(arrays["indices"].shape) * arrays["table"].shape[-1] * arrays["table"].itemsize
            expected = 2 * read  # and written
        else:
            row = sum(arrays[f"{each}_cache"][0, 0].nbytes for each in ("key", "value"))
            expected = arrays["context_lens"].sum() * row
        assert case.operation.nbytes(case) == expected, case.id


@pytest.mark.parametrize("causal", [False, "top_left", "bottom_right"])
@pytest.mark.parametrize("window", [None, [0, 0], [2, None], [None, 1], [None, 0], [3, 2], [0, 9]])
def test_visible_pairs_are_counted_whatever_the_shape(causal, window):
    """Rows that see nothing too: they are no less than none."""
    for rows, columns in ((1, 1), (1, 7), (5, 5), (6, 3), (3, 8), (9, 1)):
        features = {"causal": causal, "window": window}
        case = SimpleNamespace(dims={"seq_q": rows, "seq_k": columns}, features=features)
        assert attention.pairs(case.dims, features) == visible(case), (rows, columns)
