"""What rows are about is in their inputs: every code, many scales, special values, zeros, numbers between codes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.matrix import MatrixError, expand, load_cases, loads, make_call
from rocmkern.matrix.inputs import check_sizes
from rocmkern.ops.catalog import OPERATIONS
from rocmkern.ops.quantized import cases as quantized
from rocmkern.ops.quantized.reference import BLOCKS
from rocmkern.ops.sampling import cases as sampling

MATRIX = Path(__file__).parents[2] / "matrix.yaml"


@pytest.fixture(scope="module")
def rows():
    """Rows of an operation with a feature of that value, at most 40 of those whose layout repeats nothing."""

    def found(operation, **features):
        cases = (
            case for case in load_cases(MATRIX)[1] if case.operation.name == operation and case.category == "quick"
        )
        fitting = [c for c in cases if all(c.features[n] == v for n, v in features.items()) and "broadcast" not in c.id]
        return fitting[:: max(1, len(fitting) // 40)]

    return found


def numbers(case):
    """What the blocks of a row stand for, one row of blocks a row."""
    blocks = make_call(case).arrays["blocks"]
    order = {"order": "ocp"} if case.features["order"] == "ocp" else {}
    with np.errstate(all="ignore"):
        values = reference.dequantize(blocks, case.features["format"], **order)
    return blocks, values.reshape(int(np.prod(values.shape[:-1])), values.shape[-1])


def test_ordinary_blocks_are_numbers_that_float16_holds(rows):
    found = rows("dequantize", content="ordinary")
    assert len({case.features["format"] for case in found}) >= 3
    for case in found:
        _, values = numbers(case)
        assert np.isfinite(values).all() and (not values.size or np.abs(values).max() < 65504), case.id


@pytest.mark.parametrize("format", BLOCKS)
def test_ordinary_blocks_of_any_format_are_finite(rows, format):
    """More of them than rows have: what a format can hold that is no number would be drawn."""
    rng = np.random.default_rng(1)
    case = SimpleNamespace(memory_of=lambda name: "contiguous")
    draw = SimpleNamespace(
        features={"format": format, "content": "ordinary"}, rng=lambda name: rng, made=lambda s, d, f: f(), case=case
    )
    blocks = quantized._blocks(draw, (64,), 8)
    with np.errstate(all="ignore"):
        values = reference.dequantize(blocks, format)
    assert blocks.shape == (64, 8 * BLOCKS[format][1]) and np.isfinite(values).all()
    # All bytes but those of scales take every value that stands for a number.
    assert len(np.unique(blocks)) >= 240


def test_rows_of_codes_have_all_of_them(rows):
    codes = [
        case for case in rows("dequantize", content="codes") if np.prod(make_call(case).arrays["blocks"].shape) > 256
    ]
    assert codes
    for case in codes:
        assert len(np.unique(numbers(case)[0])) == 256, case.id


def test_rows_of_scales_have_many_of_them(rows):
    scales = rows("dequantize", content="scales")
    assert scales
    for case in scales:
        blocks, _ = numbers(case)
        nbytes = BLOCKS[case.features["format"]][1]
        count = blocks.size // nbytes
        found = len(np.unique(blocks.reshape(-1, nbytes), axis=0))
        assert found == count or found >= 256, case.id


def test_a_special_scale_is_in_the_first_row_alone(rows):
    special = rows("dequantize", content="special")
    assert special
    for case in special:
        _, values = numbers(case)
        nan = np.isnan(values)
        assert nan[0, 0] and (not nan[0].all() or values.shape[1] == BLOCKS[case.features["format"]][0]), case.id
        assert not nan[2:].any(), case.id
        assert nan[1:2].any() == case.features["format"].startswith("mxfp8") or len(values) < 2, case.id


@pytest.mark.parametrize("zeros", [True, False])
def test_rows_of_zeros_begin_with_a_block_of_zeros_and_others_do_not(rows, zeros):
    found = [case for case in rows("quantize", zeros=zeros) if make_call(case).arrays["x"].size]
    assert found
    for case in found:
        x = make_call(case).arrays["x"].astype(np.float32)
        elements = BLOCKS[case.features["format"]][0]
        assert (not x[..., :elements].any()) == zeros and (x[..., elements:].any() or x.shape[-1] == elements), case.id


def test_appended_numbers_lie_on_codes_and_in_the_middle_of_two(rows):
    found = rows("rope_append_kv_codes", contents="between_codes")
    assert {case.features["scales"] for case in found} == {"powers", "none"}
    for case in found:
        call, kind = make_call(case), case.features["cache"]
        every = np.arange(256, dtype=np.uint8).view(np.dtype(getattr(ml_dtypes, kind, kind))).astype(np.float32)
        codes = np.unique(every[np.isfinite(every)])
        allowed = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2])
        for name, scale in (("k", "key_scale"), ("v", "value_scale")):
            x = call.arrays[name].astype(np.float32)
            if call.arrays[scale] is not None:
                x = x / call.arrays[scale][:, None]
            inside = x[np.isfinite(x) & (np.abs(x) <= codes[-1])]
            near = np.abs(inside[:, None] - allowed).min(1) <= 1e-6 * np.abs(inside)
            assert near.all() and len(np.unique(inside)) > min(20, x.size // 4), (case.id, name)


LARGE = """\
version: 1
registry: rocmkern.ops.catalog
groups:
  a: {why: as large as a file may ask for, operation: causal_mask, rows: [{shape: {seq_q: 1048576, seq_k: COLUMNS}}]}
"""


def test_a_result_of_more_elements_than_a_file_may_ask_for_is_refused_before_it_is_made():
    """Each extent is allowed, and there is no array that the row names."""
    (case,) = expand(loads(LARGE.replace("COLUMNS", "1048576")))
    assert case.dims == {"seq_q": 1048576, "seq_k": 1048576}
    check_sizes(case)
    words = r"needs an array of 1099512676352 elements; at most 1099511627776 are allowed"
    with pytest.raises(MatrixError, match=words) as caught:
        for case in expand(loads(LARGE.replace("COLUMNS", "1048577"))):
            check_sizes(case)
    assert ":4:" in str(caught.value)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_feature_can_be_asked_for_and_left_out(operation):
    assert len({feature.name for feature in operation.features}) == len(operation.features)
    for feature in operation.features:
        assert len(set(map(repr, feature.allowed))) == len(feature.allowed), feature.name
        assert any(each != feature.default for each in feature.allowed), feature.name
        if isinstance(feature.default, bool):
            assert not any(each is feature.default for each in feature.allowed), feature.name


@pytest.mark.parametrize(
    ("order", "format", "fits"),
    [("ggml", "q4_0", True), ("ggml", "mxfp4", True), ("ocp", "mxfp4", True), ("ocp", "q4_0", False)],
)
def test_only_a_format_of_both_has_another_order(order, format, fits):
    assert quantized._order_fits({}, {"order": order, "format": format}) is fits


def test_seeds_and_offsets_of_rows_differ_in_their_low_and_in_their_high_words():
    draw = SimpleNamespace(features={"per_row": "counters", "seed": 5, "offset": 9})
    numbers = sampling._numbers_of_rows(draw, 6)
    assert numbers["seed"].tolist() == [5, 5 + 2**32, 6 + 2**33, 6, 7 + 2**32, 7 + 2**33]
    assert numbers["offset"].tolist() == [9, 10, 9 + 2**32, 10 + 2**32, 9 + 2**33, 10 + 2**33]
