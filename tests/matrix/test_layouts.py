"""Memory layouts: what they are, and that rows have every one of every array of every operation."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import rocmkern
from rocmkern.matrix import MatrixError, expand, load_cases, loads
from rocmkern.matrix.device_memory import PlacedArray
from rocmkern.matrix.expand import array_shapes
from rocmkern.matrix.inputs import duplicate, make_call, owner, place, poisoned
from rocmkern.matrix.layouts import each_layout, layouts_of, repeats
from rocmkern.matrix.schema import MemoryVariant
from rocmkern.ops.quantized.reference import BLOCKS, dequantize
from rocmkern.runtime.manager import default_manager

FILE = Path(__file__).parents[2] / "matrix.yaml"
SHAPE = (2, 3, 4)
VALUES = np.arange(24, dtype=np.float32).reshape(SHAPE)

ROWS = """\
version: 1
registry: rocmkern.ops.catalog
groups:
  rows: {{why: every layout, operation: {operation}, memory: each, rows: [{{shape: {shape}}}]}}
"""


@pytest.mark.parametrize(
    ("layout", "strides"),
    [
        ("padded", (60, 20, 4)),
        ("repeated_1", (12, 4, 0)),
        ("repeated_2", (16, 0, 4)),
        ("repeated_3", (0, 16, 4)),
        ("reversed_1", (48, 16, -4)),
        ("reversed_2", (48, -16, 4)),
        ("reversed_3", (-48, 16, 4)),
        ("doubled_1", (96, 32, 8)),
        ("doubled_2", (96, 32, 4)),
        ("doubled_3", (96, 16, 4)),
        ("transposed_1", (48, 4, 12)),
        ("transposed_2", (16, 32, 4)),
    ],
)
def test_a_layout_is_what_its_name_says(layout, strides):
    view = place(VALUES, layout)
    assert view.strides == strides and view.shape == SHAPE
    if repeats(layout):
        axis = 3 - int(layout[-1])
        np.testing.assert_array_equal(view, np.broadcast_to(VALUES.take([0], axis), SHAPE))
    else:
        np.testing.assert_array_equal(view, VALUES)
        assert poisoned(SHAPE, np.dtype(np.float32), layout).strides == strides


def test_an_axis_that_an_array_does_not_have_is_an_error():
    for layout in ("doubled_4", "transposed_3", "repeated_4"):
        with pytest.raises(ValueError, match=rf"an array of shape \(2, 3, 4\) has no layout {layout}"):
            place(VALUES, layout)


def test_layouts_of_an_array_are_those_that_make_a_difference():
    assert layouts_of((1, 5)) == ["offset", "padded", "repeated_1", "reversed_1", "doubled_1"]
    assert layouts_of((2, 1), writable=True) == ["offset", "padded", "reversed_2", "doubled_2"]
    assert layouts_of(()) == layouts_of((3, 0)) == []


def test_arrays_of_six_axes_have_layouts_that_rows_may_name():
    assert set(layouts_of((2,) * 6)) <= set(get_args(MemoryVariant))


def test_each_layout_is_one_array_at_a_time_and_then_all():
    layouts = list(each_layout({"x": (2, 3), "out": (3,)}, ("out",)))
    assert {"x": "repeated_2"} in layouts and {"out": "reversed_1"} in layouts
    assert {"x": "reversed_1", "out": "reversed_1"} in layouts
    assert not any(repeats(layout.get("out", "")) for layout in layouts)
    assert len({str(layout) for layout in layouts}) == len(layouts)


def test_rows_with_each_layout_have_a_case_for_each():
    cases = expand(loads(ROWS.format(operation="scale", shape="{size: [2, 3]}")))
    assert [case.memory for case in cases] == list(each_layout({"x": (2, 3), "out": (2, 3)}, ("out",)))
    assert cases[0].id == "scale-rows-n2x3-f32-x_offset"


def test_a_word_other_than_each_is_refused():
    with pytest.raises(MatrixError, match="memory"):
        loads(ROWS.format(operation="scale", shape="{size: [2, 3]}").replace("each", "all"))


def sizes_seen(cases):
    """``{array: most axes}`` of the arrays that rows have, those without elements apart."""
    most: dict[str, int] = {}
    for case in cases:
        for name, shape in array_shapes(case).items():
            if 0 not in shape:
                most[name] = max(most.get(name, 0), len(shape))
    return most


def test_the_table_has_every_layout_of_every_array():
    """What is wanted comes from the declarations and from as many axes as any quick row has, not from these rows."""
    document, cases = load_cases(FILE)
    missing = []
    for operation in document.registry:
        own = [case for case in cases if case.operation is operation and case.category == "quick"]
        quick = [case for case in own if case.facts.expect_error is None]
        most = sizes_seen(quick)
        apart = (*operation.distinct, "out")
        alone = [case.memory for case in quick if isinstance(case.memory, dict) and len(case.memory) == 1]
        covered = {(name, layout) for memory in alone for name, layout in memory.items()}
        for name in (*operation.arrays, *(["out"] if operation.out else [])):
            if name not in most:
                missing.append(f"{operation.name}: no row has the array {name}")
            for layout in layouts_of((2,) * most.get(name, 0), name in apart):
                if (name, layout) not in covered:
                    missing.append(f"{operation.name}: {name} {layout}")
    assert not missing


def test_every_public_operation_is_in_the_table():
    declared = {operation.name for operation in load_cases(FILE)[0].registry}
    modules = {name: module for name, module in rocmkern._MODULE_OF.items() if module.startswith("rocmkern.ops.")}
    operations = {name for name in modules if inspect.isfunction(getattr(rocmkern, name))}
    assert len(operations) > 25 and operations <= declared


@pytest.mark.parametrize("layout", ["contiguous", "offset", "padded", "repeated_2", "reversed_1", "doubled_3"])
def test_an_array_keeps_its_layout_in_device_memory(layout):
    view = place(VALUES, layout)
    with ExitStack() as alive:
        placed = PlacedArray(view, default_manager("host"), alive)
        assert placed.tensor.strides == view.strides
        assert placed.tensor.data_ptr % 64 == view.__array_interface__["data"][0] % 64
        np.testing.assert_array_equal(placed.to_numpy(), view)
        assert not placed.changed()


def test_what_is_written_beside_an_array_in_device_memory_is_counted():
    view = place(VALUES, "doubled_1")
    with ExitStack() as alive:
        placed = PlacedArray(view, default_manager("host"), alive)
        whole = placed._buffer.numpy_view()
        first = placed._offset
        whole[first : first + 4] = 0xEE
        assert placed.changed() and placed.changed_beside() == 0
        whole[first + 4 : first + 7] = 0  # between the first element and the second one
        assert placed.changed_beside() == 3


def test_a_duplicate_has_the_layout_and_a_buffer_of_its_own():
    view = place(VALUES, "reversed_2")
    other = duplicate(view)
    assert other.strides == view.strides and not np.shares_memory(other, view)
    np.testing.assert_array_equal(other, view)
    assert owner(other).nbytes == owner(view).nbytes


@pytest.mark.parametrize("format", BLOCKS)
def test_blocks_of_one_byte_that_is_repeated_hold_numbers_that_float16_holds(format):
    text = ROWS.format(operation="quantized_linear", shape="{n: 40, blocks: 2}").replace(
        "memory: each", "memory: MEMORY"
    )
    text = text.replace("MEMORY", f"[{{blocks: repeated_1}}], features: {{format: {format}}}")
    (case,) = expand(loads(text))
    blocks = make_call(case).arrays["blocks"]
    numbers = dequantize(blocks, format)
    assert blocks.strides[-1] == 0 and len(np.unique(blocks)) > 1
    assert (np.abs(numbers) < 65504).all() and numbers.any()
