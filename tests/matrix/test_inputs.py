"""Inputs depend on the case id alone, and stand in guarded memory of the layout that the row names."""

from __future__ import annotations

import numpy as np
import pytest

from rocmkern.matrix import MatrixError, expand, make_call
from rocmkern.matrix.draw import numpy_dtype
from rocmkern.matrix.inputs import (
    GUARD,
    entropy_share,
    fill_with_poison,
    is_poison,
    owner,
    place,
    poisoned,
    repeated_axis,
)

VARIANTS = [
    "contiguous", "strided", "offset", "broadcast", "broadcast_last", "negative", "negative_last", "transposed",
]  # fmt: skip


def one_case(matrix, operation, row):
    (case,) = expand(matrix(f"  a: {{why: because, operation: {operation}, rows: [{row}]}}\n"))
    return case


def x_of(case):
    return make_call(case).arrays["x"]


def test_the_same_case_has_the_same_inputs_whatever_ran_before(matrix):
    first = x_of(one_case(matrix, "row_stats", "{shape: {rows: 4, columns: 5}}"))
    np.random.default_rng().standard_normal(7)
    case = one_case(matrix, "row_stats", "{shape: {rows: 4, columns: 5}}")
    assert x_of(case).tobytes() == first.tobytes() == x_of(case).tobytes()
    # Written down, so that a change of the seeding shows: results of different machines are compared by case id.
    assert first[0, :2].tolist() == pytest.approx([0.9809845, -0.5146834], abs=1e-6)
    other = x_of(one_case(matrix, "row_stats", "{shape: {rows: 4, columns: 5}, name: other}"))
    assert (other != first).any()


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("{kind: constant, value: 2.5}", [2.5, 2.5, 2.5, 2.5]),
        ("{kind: ramp, a: 0.5, b: 1.0}", [1.0, 1.5, 2.0, 2.5]),
        ("{kind: sin, factor: 100.0, step: 1.0}", [0.0, 84.147, 90.93, 14.112]),
        ("{kind: cos}", [1.0, 0.995, 0.98007, 0.95534]),
        ("{kind: tan, factor: 10.0, step: 0.5}", [0.0, 5.463, 15.574, 141.014]),
        ("{kind: values, values: [1.0, -2.0, 3.0]}", [1.0, -2.0, 3.0, 1.0]),
    ],
)
def test_generators_with_known_values(matrix, inputs, expected):
    x = x_of(one_case(matrix, "row_stats", f"{{shape: {{rows: 2}}, inputs: {{x: {inputs}}}}}"))
    assert x.reshape(-1) == pytest.approx(expected, rel=1e-4)


def test_random_generators_keep_their_ranges(matrix):
    def values(inputs, dtype="f32"):
        return x_of(
            one_case(matrix, "row_stats", f"{{shape: {{rows: 40}}, dtypes: [{dtype}], inputs: {{x: {inputs}}}}}")
        ).astype(np.float64)

    assert abs(values("{kind: normal}").std() - 1) < 0.1
    assert abs(values("{kind: normal, mean: 5.0, std: 0.1}").mean() - 5) < 0.05
    large = values("{kind: large, amplitude: 50.0}")
    assert -50 <= large.min() < -45 and 45 < large.max() <= 50
    uniform = values("{kind: uniform, low: 1.0, high: 2.0}")
    assert uniform.min() >= 1 and uniform.max() <= 2
    for dtype, smallest_normal in (("f32", 2.0**-126), ("f16", 2.0**-14), ("bf16", 2.0**-126)):
        denormal = values("{kind: denormal}", dtype)
        assert 0 < np.abs(denormal).max() <= smallest_normal and (denormal < 0).any()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4, 5), (1, 1, 4), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_layout_changes_strides_and_no_values(variant, shape, dtype):
    values = np.arange(int(np.prod(shape))).reshape(shape).astype(numpy_dtype(dtype))
    view = place(values, variant)
    assert view.shape == shape and view.dtype == values.dtype
    if variant.startswith("broadcast"):
        axis = len(shape) - 1 if variant == "broadcast_last" else next((i for i, n in enumerate(shape) if n > 1), 0)
        assert view.strides[axis] == 0 or shape[axis] < 2
        assert (view == np.take(view, [0], axis)).all() if shape[axis] else view.size == 0
    else:
        assert (view == values).all()


def test_layouts_are_what_they_are_called():
    values = np.ones((4, 6, 5), np.float32)
    assert place(values, "contiguous").flags.c_contiguous
    assert place(values, "contiguous").__array_interface__["data"][0] % 64 == 0
    assert place(values, "offset").__array_interface__["data"][0] % 16 == 4
    assert place(values, "strided").strides == (2 * 6 * 8 * 4, 8 * 4, 4)
    assert place(values, "transposed").strides == (120, 4, 24)
    assert place(values, "negative").strides == (-120, 20, 4)
    assert place(values, "negative_last").strides == (120, 20, -4)
    assert place(np.ones(6, np.float32), "strided").strides == (8,)


def test_arrays_are_surrounded_by_nan():
    view = place(np.ones((3, 4), np.float32), "strided")
    around = owner(view)
    start = view.__array_interface__["data"][0] - around.__array_interface__["data"][0]
    elements = around[start % 4 :][: (around.size - start % 4) // 4 * 4].view(np.float32)
    assert np.isnan(elements).sum() >= 2 * GUARD and (~np.isnan(elements)).sum() == 12


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.startswith("broadcast")])
def test_poison_is_nan_that_is_recognised(dtype, variant):
    out = poisoned((3, 4), numpy_dtype(dtype), variant)
    assert np.isnan(out.astype(np.float32)).all() and is_poison(out).all()
    out[1, 2] = np.nan
    out[0, 0] = 1
    assert is_poison(out).sum() == 10


@pytest.mark.parametrize(
    ("probabilities", "share"),
    [([[0.25] * 4], 1.0), ([[1.0, 0, 0, 0]], 0.0), ([[0.5, 0.5, 0, 0], [1.0, 0, 0, 0]], 0.25)],
)
def test_entropy_share(probabilities, share):
    p = np.array(probabilities)
    assert entropy_share(p, np.full(len(p), 4)) == pytest.approx(share)


def test_rows_that_see_one_key_do_not_count():
    assert entropy_share(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 2])) == pytest.approx(1.0)
    assert entropy_share(np.array([[1.0]]), np.array([1])) == 1.0
    assert entropy_share(np.zeros((0, 3)), np.zeros(0)) == 1.0


def test_one_hot_inputs_are_refused_unless_the_row_says_why(matrix):
    ramp = "shape: {rows: 4, columns: 64}, inputs: {x: {kind: ramp, a: 2.0}}"
    with pytest.raises(MatrixError, match=r"one-hot \(mean row entropy 0.1") as caught:
        make_call(one_case(matrix, "share", f"{{{ramp}}}"))
    assert caught.value.line == 4
    make_call(one_case(matrix, "share", f"{{{ramp}, one_hot: {{reason: the ramp of an older test}}}}"))
    make_call(one_case(matrix, "share", "{shape: {rows: 4, columns: 64}}"))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32", "u8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 5)])
def test_an_array_of_any_shape_can_be_filled_with_poison(dtype, shape):
    array = np.zeros(shape, numpy_dtype(dtype))
    fill_with_poison(array)
    assert is_poison(array).all() if dtype.endswith(("32", "16")) and dtype != "i32" else (array != 0).all()


@pytest.mark.parametrize(
    ("shape", "variant", "axis"),
    [
        ((1, 3, 4), "broadcast", 1), ((2, 3), "broadcast", 0), ((1, 1), "broadcast", 0), ((1,), "broadcast", 0),
        ((2, 3, 4), "broadcast_last", 2), ((2, 3, 4), "repeated_1", 2), ((2, 3, 4), "repeated_3", 0),
    ],
)  # fmt: skip
def test_which_axis_a_layout_repeats(shape, variant, axis):
    assert repeated_axis(shape, variant) == axis
