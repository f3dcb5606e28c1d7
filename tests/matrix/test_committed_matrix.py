"""The committed matrix: valid, current, and not vacuous."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from rocmkern.matrix import expand, find_case, load, make_call
from rocmkern.matrix.json_schema import SCHEMA_FILE, schema_text
from rocmkern.matrix.schema import Matrix

FILE = Path(__file__).parents[2] / "matrix.yaml"


@pytest.fixture(scope="module")
def document():
    return load(FILE)


@pytest.fixture(scope="module")
def cases(document):
    return expand(document)


def test_the_committed_schema_is_current():
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run python -m rocmkern.matrix.json_schema"
    schema = json.loads(schema_text())
    assert set(schema["properties"]) == set(Matrix.model_fields)
    assert "yaml-language-server: $schema=rocmkern/matrix/matrix.schema.json" in FILE.read_text(encoding="utf-8")


def test_there_are_rows_of_every_category(cases):
    counts = {category: sum(case.category == category for case in cases) for category in ("quick", "full", "benchmark")}
    assert counts["quick"] > 400 and counts["full"] > 200 and counts["benchmark"] > 30


# A model rather than an operation: its arrays are its weights, which it takes as a checkpoint has them.
COMPOSED = {"decoder"}


def test_every_operation_runs_in_every_dtype_and_from_any_memory(document, cases):
    quick = [case for case in cases if case.category == "quick" and case.facts.expect_error is None]
    for operation in document.registry:
        mine = [case for case in quick if case.operation is operation]
        assert {case.dtype for case in mine} == {"f32", "f16", "bf16"}, operation.name
        if operation.name in COMPOSED:
            continue
        if operation.arrays:
            assert {"strided", "offset", "negative", "transposed"} <= set().union(*map(layouts, mine)), operation.name
            assert any(case.facts.expect_error for case in cases if case.operation is operation), operation.name
        assert any(0 in np_shape(case) for case in mine), f"{operation.name} has no empty dimension"


# Layouts of one operand alone are named by what is done to which of its axes.
OF_ONE_OPERAND = {"doubled": "strided", "reversed": "negative"}


def layouts(case):
    if isinstance(case.memory, str):
        return {case.memory}
    kinds = (layout.partition("_")[0] for layout in case.memory.values())
    return {OF_ONE_OPERAND.get(kind, kind) for kind in kinds}


def np_shape(case):
    values = case.dims.values()
    return list(
        itertools.chain.from_iterable(value if isinstance(value, (list, tuple)) else [value] for value in values)
    )


def test_every_feature_and_each_of_its_named_values_is_used(document, cases):
    quick = [case for case in cases if case.category == "quick" and case.facts.expect_error is None]
    for operation in document.registry:
        for feature in operation.features:
            used = [case.features[feature.name] for case in quick if case.operation is operation]
            for value in feature.allowed:
                if isinstance(value, type):
                    assert any(item is not None for item in used), f"{operation.name}.{feature.name}"
                elif (operation.name, feature.name, value) not in ALIASES:
                    assert any(item == value and type(item) is type(value) for item in used), (
                        f"{operation.name}.{feature.name} = {value}"
                    )


# Two names of one thing, where the other one is used.
ALIASES = {
    (name, "causal", "bottom_right")
    for name in (
        "flash_attention_packed", "decode_attention", "paged_attention", "paged_attention_packed",
        "flash_attention_backward", "flash_attention_backward_packed",
    )
}  # fmt: skip


def test_the_values_where_kernels_break_are_there(cases):
    def values(operation, dim):
        return {case.dims[dim] for case in cases if case.operation.name == operation and case.category == "quick"}

    assert {1, 40, 61, 64, 72, 80, 96, 112, 128, 256} <= values("flash_attention", "head_dim")
    ratios = {(case.dims["heads"], case.dims["kv_heads"]) for case in cases if case.operation.name == "flash_attention"}
    assert {(6, 2), (6, 3), (28, 4), (48, 2)} <= ratios
    lengths = {case.dims["size"][-1] for case in cases if case.operation.name == "softmax" and case.category == "quick"}
    assert {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1025} <= lengths


def test_every_row_says_why(cases):
    assert all(len(case.facts.why) > 10 for case in cases)


def test_inputs_of_quick_rows_can_be_made_and_prove_something(cases):
    for case in cases:
        if case.category == "quick":
            make_call(case)


def test_a_case_is_found_by_the_id_that_the_documentation_uses():
    case = find_case(str(FILE), "flash_attention-plain-b1h2s4d8-f32-causal")
    assert case.features["causal"] is True and case.dims["seq_k"] == 4
