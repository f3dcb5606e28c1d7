"""Everything that must hold of a call is checked: each broken function here is found, by the check that it breaks."""

from __future__ import annotations

import os

import numpy as np
import pytest
from small_operations import double, make_registry, reference_share, row_stats, share

from rocmkern.matrix import CaseFailure, compare, expand, reproduce, run_case
from rocmkern.runtime.errors import ArgumentError

ROW = "{shape: {rows: 3, columns: 4}}"


@pytest.fixture
def run(matrix):
    """Run the cases of one row of an operation, some functions replaced."""

    def run_row(operation, row=ROW, **replaced):
        text = f"  a: {{why: because, operation: {operation}, rows: [{row}]}}\n"
        return [run_case(case, "python") for case in expand(matrix(text, make_registry(**replaced)))]

    return run_row


def failure(run, operation, row=ROW, **replaced):
    with pytest.raises(CaseFailure) as caught:
        run(operation, row, **replaced)
    return caught.value


def test_sound_functions_pass_in_every_layout_and_dtype(run):
    layouts = (
        "[contiguous, strided, offset, broadcast, broadcast_last, negative, negative_last, transposed, {out: strided}]"
    )
    for operation in ("double", "row_stats"):
        results = run(operation, f"{{shape: {{rows: 3, columns: 4}}, dtypes: [f32, f16, bf16], memory: {layouts}}}")
        assert len(results) == 27
        assert all(comparison.ok for result in results for comparison in result.comparisons)


def test_a_result_can_be_recorded(run):
    (result,) = run("row_stats")
    record = result.record()
    assert record["case"] == "row_stats-a-r3c4-f32" and record["target"] == "python"
    assert [output["output"] for output in record["outputs"]] == ["mean", "squares"]
    assert all(0 <= output["share"] <= 1 for output in record["outputs"])


def test_a_wrong_value_fails_parity_and_says_where(run):
    def wrong(x, *, centre=False, out=None):
        results = row_stats(x, centre=centre, out=out)
        results[1][1] *= np.float32(1.001)
        return results

    found = failure(run, "row_stats", row_stats=wrong)
    assert found.check == "parity"
    assert "output squares: WRONG" in str(found) and "worst at (1,)" in str(found)
    assert "output mean" not in str(found)


def test_a_failure_has_every_part(run, matrix):
    made = {}

    def wrong(x):
        out = share(x)
        out[1, 2] += np.float32(0.25)
        made.update(x=x.copy(), out=out)
        return out

    found = failure(run, "share", share=wrong)
    text, out, expected = str(found), made["out"], reference_share(made["x"].astype(np.float64))
    (comparison,) = found.comparisons
    rounding = np.abs(expected.astype(np.float32) - expected)[1].max()
    parts = f"max(2 * {rounding:.4g}, 2 * ulp {np.spacing(np.float32(expected[1].max())):.4g})"
    for part in (
        "output out: WRONG",
        f"worst at (1, 2): got {out[1, 2]:.9g}, expected {expected[1, 2]:.9g}",
        f"error {out[1, 2] - expected[1, 2]:.4g}, bound {comparison.bound:.4g} ({parts}), share of the bound ",
        f"got      min {out.min():.9g} max {out.max():.9g}",
        f"expected min {expected.min():.9g} max {expected.max():.9g}",
        "got      first 10: [" + ", ".join(f"{value:.6g}" for value in out.reshape(-1)[:10]) + "]",
        "expected first 10: [" + ", ".join(f"{value:.6g}" for value in expected.reshape(-1)[:10]) + "]",
    ):
        assert part in text, f"{part!r} is missing in\n{text}"
    assert comparison.index == (1, 2) and comparison.share == pytest.approx(comparison.error / comparison.bound)


def test_nan_where_the_reference_is_finite_fails_parity(run):
    def wrong(x, *, out=None):
        out = double(x, out=out)
        out[0, 0] = np.nan
        return out

    assert "NaN or infinity differ" in str(failure(run, "double", double=wrong))


def test_an_element_that_is_not_written_is_found(run):
    def forgetful(x, *, out=None):
        if out is None:
            return double(x)
        out[:, :-1] = double(x)[:, :-1]
        return out

    found = failure(run, "double", double=forgetful)
    assert found.check == "unwritten" and "3 elements" in str(found) and "first (0, 3)" in str(found)


@pytest.mark.parametrize("place", [-1, 12])
def test_a_write_beside_the_output_is_found(run, place):
    def overrunning(x, *, out=None):
        given, out = out, double(x, out=out)
        if given is not None and given.base is not None and given is not x:
            np.lib.stride_tricks.as_strided(given, (30,), (given.itemsize,))[place:][:1] = 1.0 if place > 0 else None
            if place < 0:
                address = given.__array_interface__["data"][0] - given.base.__array_interface__["data"][0]
                given.base[address - 4 : address] = 0
        return out

    assert failure(run, "double", double=overrunning).check == "outside"


def test_a_changed_input_is_found_even_in_its_padding(run):
    def scribbling(x, *, out=None):
        result = double(x, out=out)
        x[0, 0] += 1
        return result

    found = failure(run, "double", double=scribbling)
    assert found.check == "inputs" and "buffer of x" in str(found)

    def padding(x, *, centre=False, out=None):
        x.base[-1] ^= 1
        return row_stats(x, centre=centre, out=out)

    found = failure(run, "row_stats", "{shape: {rows: 3, columns: 4}, memory: [strided]}", row_stats=padding)
    assert found.check == "inputs"


def test_two_calls_that_differ_are_found(run):
    calls = []

    def drifting(x):
        calls.append(1)
        out = share(x)
        out[0] = np.nextafter(out[0], np.float32(len(calls) % 2))
        return out

    found = failure(run, "share", share=drifting)
    assert found.check == "determinism" and "two calls differ" in str(found)


def test_an_out_path_of_its_own_is_found(run):
    def other(x, *, out=None):
        if out is None:
            return double(x)
        double(x, out=out)
        out += np.float32(0)
        out[0, 0] = np.nextafter(out[0, 0], np.float32(9))
        return out

    assert failure(run, "double", double=other).check == "out"


def test_a_call_that_returns_another_array_than_out_is_found(run):
    def copying(x, *, out=None):
        return double(x) if out is None else double(x, out=out).copy()

    assert "must return the arrays that it was given" in str(failure(run, "double", double=copying))


def test_a_function_that_spoils_its_own_results_too_is_found_where_outputs_are_guarded(run):
    seen = []

    def short(x, *, out=None):
        seen.append(out is not None)
        out = np.empty_like(x) if out is None else out
        out[:-1] = double(x)[:-1]
        return out

    def long(x, *, out=None):
        out = np.empty_like(x) if out is None else out
        double(x, out=out)
        if out.base is not None:  # something lies behind it
            np.lib.stride_tricks.as_strided(out.reshape(-1), (out.size + 1,))[-1] = 0
        return out

    assert failure(run, "double", double=short).check == "unwritten" and seen == [True]
    assert failure(run, "double", double=long).check == "outside"


def test_an_output_in_place_that_differs_is_found(run):
    def staged(x, *, out=None):
        if out is x:
            x[0] = 0
        return double(x, out=out)

    assert failure(run, "double", double=staged).check == "in_place"


def test_a_row_that_depends_on_its_batch_is_found_where_a_row_of_the_table_asks(run):
    def batched(x, *, out=None):
        """Right but for the last bit where there is one row."""
        out = double(x, out=out)
        if len(x) == 1:
            np.nextafter(out, np.float32(100), out=out)
        return out

    invariant = "{shape: {rows: 3, columns: 4}, invariant: true}"
    run("double", invariant)
    run("double", ROW, double=batched)
    found = failure(run, "double", invariant, double=batched)
    assert found.check == "invariance" and "row 0 alone of 3: output 0 differs in 4 elements" in str(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y: y.astype(np.float64), "float64[3, 4], expected float32[3, 4]"),
        (lambda y: y[:2], "float32[2, 4], expected float32[3, 4]"),
        (lambda y: y.tolist(), "returned 3 outputs"),
        (lambda y: (y, y), "returned 2 outputs, declared are 1"),
        (lambda y: None, "NoneType[], expected"),
    ],
)
def test_another_type_or_shape_is_found(run, change, words):
    found = failure(run, "double", double=lambda x, *, out=None: change(double(x, out=out)))
    assert found.check == "type" and words in str(found)


def test_a_constant_that_a_manager_keeps_is_no_buffer_that_stays_alive(run):
    from rocmkern import ResourceManager

    with ResourceManager("host") as manager:

        def with_constant(x, *, out=None):
            manager.constant(np.ones(4, np.float32))
            return double(x, out=out)

        run("double", double=with_constant)
        assert manager.live_buffers() == []


def test_a_buffer_that_stays_alive_is_found(run):
    from rocmkern import ResourceManager

    kept = []
    with ResourceManager("host") as manager:

        def leaking(x, *, out=None):
            kept.append(manager.zeros((4,)))
            return double(x, out=out)

        found = failure(run, "double", double=leaking)
        assert found.check == "ledger" and "3 buffers are alive" in str(found)
        for tensor in kept:
            tensor.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: np.seterr(over="ignore"), "np.seterr: over is ignore, was raise"),
        (lambda folder: os.chdir(folder), "the working directory is {folder}, was {here}"),
        (lambda folder: os.environ.update(NEW="1"), "os.environ: NEW is 1, was not set"),
        (lambda folder: os.environ.update(OLD="2"), "os.environ: OLD is 2, was 1"),
        (lambda folder: os.environ.pop("OLD", None), "os.environ: OLD is not set, was 1"),
    ],
    ids=["np.seterr", "chdir", "new variable", "other value", "no variable"],
)
def test_a_call_that_changes_its_process_is_found_and_the_change_undone(run, monkeypatch, tmp_path, change, words):
    folder, here = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("NEW", raising=False)
    monkeypatch.setenv("OLD", "1")

    def changing(x, *, out=None):
        change(folder)
        return double(x, out=out)

    with np.errstate(over="raise"):
        for row in (ROW, LIST):
            found = failure(run, "double", row, double=changing)
            assert found.check == "process" and words.format(folder=folder, here=here) in str(found)
            assert np.geterr()["over"] == "raise" and os.getcwd() == str(here)
            assert "NEW" not in os.environ and os.environ["OLD"] == "1"


def test_what_a_library_sets_when_it_is_loaded_may_stay(run, monkeypatch):
    monkeypatch.setenv("NEW", "0")
    loaded = []

    def loading(x, *, out=None):
        if not loaded:
            loaded.append(os.environ.update(NEW="1"))
        return double(x, out=out)

    assert run("double", double=loading)[0].comparisons[0].ok
    assert os.environ["NEW"] == "1"


def test_a_change_of_the_process_is_undone_behind_another_failure_too(run, monkeypatch):
    monkeypatch.delenv("NEW", raising=False)

    def broken(x, *, out=None):
        os.environ["NEW"] = "1"
        raise RuntimeError("the compiler gave up")

    with pytest.raises(RuntimeError, match="gave up"):
        run("double", double=broken)
    assert "NEW" not in os.environ


def test_an_error_inside_the_function_comes_through(run):
    def broken(x, *, out=None):
        raise RuntimeError("the compiler gave up")

    with pytest.raises(RuntimeError, match="gave up"):
        run("double", double=broken)


LIST = "{name: list, shape: {rows: 2}, spoil: {x: as_list}, expect_error: {type: ArgumentError, argument: x}}"


def test_a_row_with_an_expected_error(run):
    assert run("double", LIST)[0].comparisons == ()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, *, out=None: out, "nothing was raised"),
        (lambda x, *, out=None: [][0], "got IndexError"),
        (lambda x, *, out=None: _raise(ArgumentError("y", "a list", "an array")), "names the argument 'y'"),
        (lambda x, *, out=None: _raise(ValueError("x is wrong")), "expected ArgumentError for 'x', got ValueError"),
        (lambda x, *, out=None: (out.fill(0), _raise(ArgumentError("x", "a list", "an array"))), "buffer of out"),
    ],
)
def test_another_error_than_the_expected_one_is_found(run, function, words):
    assert words in str(failure(run, "double", LIST, double=function))


def _raise(error):
    raise error


def test_a_refused_call_that_writes_its_input_is_found(run):
    def writing(x, *, mode=None, out=None):
        x[0, 0] = 7
        raise ArgumentError("mode", repr(mode), "fast")

    row = "{name: bad, shape: {rows: 2}, arguments: {mode: 3}, expect_error: {type: ArgumentError, argument: mode}}"
    found = failure(run, "double", row, double=writing)
    assert found.check == "inputs" and "buffer of x" in str(found)


def test_nan_around_the_inputs_reaches_a_function_that_reads_beside_them(run):
    def reading(x):
        wide = np.lib.stride_tricks.as_strided(x, (x.shape[0], x.shape[1] + 1), x.strides)
        return (reference_share(wide.astype(np.float64))[:, :-1]).astype(x.dtype)

    assert failure(run, "share", share=reading).check == "parity"


def test_five_lines_reproduce_a_case(matrix):
    (case,) = expand(matrix(f"  a: {{why: because, operation: double, rows: [{ROW}]}}\n"))
    lines = reproduce(case, "cpu").splitlines()
    assert len(lines) == 5
    compile("\n".join(lines), "<recipe>", "exec")
    assert "find_case('test.yaml', 'double-a-r3c4-f32')" in lines[2] and "'cpu'" in lines[4]


def test_compare_is_public():
    assert compare(np.ones(3, np.float32), np.ones(3)).ok
