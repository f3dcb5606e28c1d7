"""Case ids say what a case is, and depend on nothing else."""

from __future__ import annotations

import dataclasses
import functools
import re
import time

import pytest

from rocmkern.matrix import MatrixError, Registry, expand, find_case, loads

SMALL = """\
  sums:
    why: rows of odd length
    operation: row_stats
    rows:
      - shapes: [{rows: 2, columns: 3}, {rows: 4}]
        dtypes: [f32, bf16]
        axes: {centre: [false, true]}
"""


def ids(document):
    return [case.id for case in expand(document)]


def test_an_id_is_made_of_what_the_case_is(matrix):
    assert ids(matrix(SMALL)) == [
        "row_stats-sums-r2c3-f32",
        "row_stats-sums-r2c3-f32-centre",
        "row_stats-sums-r2c3-bf16",
        "row_stats-sums-r2c3-bf16-centre",
        "row_stats-sums-r4-f32",
        "row_stats-sums-r4-f32-centre",
        "row_stats-sums-r4-bf16",
        "row_stats-sums-r4-bf16-centre",
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("{shape: {rows: 2}, name: tiny}", "row_stats-sums-tiny-r2-f32"),
        ("{shape: {rows: 0}}", "row_stats-sums-r0-f32"),
        ("{shape: {rows: 2}, features: {cap: 30.0}}", "row_stats-sums-r2-f32-cap30"),
        ("{shape: {rows: 2}, features: {cap: -0.5}}", "row_stats-sums-r2-f32-capm0.5"),
        ("{shape: {rows: 2}, features: {window: [2, null]}}", "row_stats-sums-r2-f32-window_2_none"),
        ("{shape: {rows: 2}, features: {centre: false}}", "row_stats-sums-r2-f32"),
        ("{shape: {rows: 2}, inputs: {all: {kind: normal}}}", "row_stats-sums-r2-f32"),
        ("{shape: {rows: 2}, inputs: {x: {kind: ramp, a: 0.1}}}", "row_stats-sums-r2-f32-x_ramp0.1"),
        ("{shape: {rows: 2}, inputs: {all: {kind: ramp, a: 0.1, b: 2.0}}}", "row_stats-sums-r2-f32-ramp0.1_2"),
        ("{shape: {rows: 2}, inputs: {all: {kind: denormal}}}", "row_stats-sums-r2-f32-denormal"),
        ("{shape: {rows: 2}, memory: [transposed]}", "row_stats-sums-r2-f32-transposed"),
        ("{shape: {rows: 2}, memory: [{x: strided, out: offset}]}", "row_stats-sums-r2-f32-out_offset.x_strided"),
    ],
)
def test_ids_of_single_rows(matrix, row, expected):
    document = matrix(f"  sums: {{why: because, operation: row_stats, rows: [{row}]}}\n")
    assert ids(document) == [expected]
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", expected)


def test_adding_and_moving_rows_renames_nothing(matrix):
    before = ids(matrix(SMALL))
    row = "      - {shape: {rows: 9}}\n"
    first = SMALL.replace("    rows:\n", "    rows:\n" + row)
    group = "  other: {why: because, operation: double, rows: [{shape: {rows: 1}}]}\n"
    assert [name for name in ids(matrix(group + first)) if name in before] == before
    assert set(ids(matrix(SMALL + row))) == {*before, "row_stats-sums-r9-f32"}


def test_the_most_specific_setting_counts(registry):
    from rocmkern.matrix import loads

    text = """\
version: 1
registry: unused
defaults: {category: full, dtypes: [f16], memory: [strided]}
operations:
  row_stats: {dtypes: [bf16], tolerance: {c: 3.0, reason: the operation}}
groups:
  a:
    why: group and row settings
    operation: row_stats
    category: quick
    shape: {rows: 5, columns: 6}
    features: {centre: true}
    rows:
      - {name: plain}
      - {name: own, dtypes: [f32], category: full, tolerance: {u: 4.0, reason: the row}, memory: [contiguous]}
      - {name: shape, shape: {rows: 7}, features: {centre: false}}
  b: {why: other operation, operation: double, rows: [{shape: {rows: 1}}]}
"""
    plain, own, shape, other = expand(loads(text, "t.yaml", registry))
    assert (plain.dtype, plain.category, plain.memory, plain.facts.tolerance.c) == ("bf16", "quick", "strided", 3.0)
    assert (own.dtype, own.category, own.memory, own.facts.tolerance.u) == ("f32", "full", "contiguous", 4.0)
    assert own.facts.tolerance.c is None
    assert plain.dims == {"rows": 5, "columns": 6} and shape.dims == {"rows": 7, "columns": 6}
    assert plain.features["centre"] is True and shape.features["centre"] is False
    assert (other.dtype, other.category, other.facts.tolerance) == ("f16", "full", None)
    assert plain.facts.line == 14 and own.facts.why == "group and row settings"


def test_two_rows_that_are_the_same_case_are_refused_until_one_is_named(matrix):
    row = "      - {shape: {rows: 4}}\n"
    with pytest.raises(MatrixError, match="as the row in line 8 does") as caught:
        expand(matrix(SMALL + row))
    assert (caught.value.line, caught.value.path) == (11, "groups.sums.rows[1]")
    assert "row_stats-sums-again-r4-f32" in ids(matrix(SMALL + row.replace("{shape", "{name: again, shape")))


@pytest.mark.parametrize(
    ("row", "path", "words"),
    [
        ("{shape: {columns: 2}}", "", "the dimension rows is missing"),
        ("{shape: {rows: 2}, axes: {rows: [1]}}", "axes.rows", "also given in the same row"),
        ("{shape: {rows: 2}, variants: [{cap: 1.0}], axes: {cap: [2.0]}}", "axes.cap", "also given"),
        ("{shape: {rows: 2}, features: {centr: true}}", "features.centr", "did you mean 'centre'?"),
        ("{shape: {rows: 2}, variants: [{cap: high}]}", "variants[0].cap", "allowed: null, a number"),
        ("{shape: {rows: 2}, features: {window: [a]}}", "features.window", "a list of numbers and nulls"),
        ("{shape: {rows: 2}, arguments: {x: 1}}", "arguments", "expect_error"),
        ("{shape: {rows: 2}, spoil: {x: as_list}}", "spoil", "expect_error"),
        ("{shape: {rows: 2}, expect_error: {type: ValueError, argument: x}}", "", "needs a name"),
        (
            "{name: a, shape: {rows: 2}, expect_error: {type: '.a:b', argument: x}}",
            "expect_error.type",
            "'.a' cannot be imported",
        ),
        (
            "{name: a, shape: {rows: 2}, expect_error: {type: ArgumentErr, argument: x}}",
            "expect_error.type",
            "did you mean 'ArgumentError'?",
        ),
        (
            "{name: a, shape: {rows: 2}, expect_error: {type: 'os:path', argument: x}}",
            "expect_error.type",
            "error type",
        ),
        (
            "{name: a, shape: {rows: 2}, spoil: {x: as_lst}, expect_error: {type: ValueError, argument: x}}",
            "spoil.x",
            "did you mean 'as_list'?",
        ),
        (
            "{name: a, shape: {rows: 2}, spoil: {y: as_list}, expect_error: {type: ValueError, argument: x}}",
            "spoil.y",
            "unknown array",
        ),
        ("{shape: {rows: 2}, peers: [torch]}", "peers", "category benchmark"),
        ("{shape: {rows: 2}, category: benchmark, peers: [torch]}", "peers[0]", "unknown peer"),
        ("{shape: {rows: 2}, category: benchmark, bars: {torch: 1.0}}", "bars.torch", "unknown peer"),
        ("{shape: {rows: 2}, masked: {value: nan}}", "masked", "has no mask"),
        ("{shape: {rows: 2}, one_hot: {reason: none}}", "one_hot", "has no softmax"),
        ("{shape: {rows: 2}, targets: {reason: none}}", "targets", "exactly one of only, skip"),
        ("{shape: {rows: 2}, targets: {only: [cpu]}}", "targets.reason", "is missing"),
        ("{shape: {rows: 2}, targets: {only: [gpu], reason: why}}", "targets.only[0]", "known: cpu, cuda, hip, python"),
        ("{shape: {rows: 2}, tolerance: {c: 4.0}}", "tolerance.reason", "is missing"),
    ],
)
def test_a_row_that_does_not_fit_its_operation(matrix, row, path, words):
    with pytest.raises(MatrixError) as caught:
        expand(matrix(f"  sums:\n    why: because\n    operation: row_stats\n    rows:\n      - {row}\n"))
    assert words in str(caught.value)
    assert caught.value.path == "groups.sums.rows[0]" + ("." + path if path else "")
    assert caught.value.line == 8


def test_an_exact_operation_has_no_tolerance(matrix):
    row = "{shape: {rows: 2}, tolerance: {c: 4.0, reason: slow machine}}"
    with pytest.raises(MatrixError, match="is exact"):
        expand(matrix(f"  a: {{why: because, operation: double, rows: [{row}]}}\n"))


def test_conditions_on_targets_carry_their_reason(matrix):
    row = "{shape: {rows: 2}, targets: {skip: [python], reason: too slow there}}"
    (case,) = expand(matrix(f"  a: {{why: because, operation: double, rows: [{row}]}}\n"))
    assert case.skip_reason("python") == "too slow there" and case.skip_reason("cpu") is None


def test_five_thousand_cases_expand_at_once(matrix):
    columns = ", ".join(str(n) for n in range(1, 418))
    text = (
        "  a:\n    why: many\n    operation: row_stats\n    rows:\n"
        f"      - {{shape: {{rows: 2}}, axes: {{columns: [{columns}], centre: [false, true]}},\n"
        "         dtypes: [f32, f16, bf16], memory: [contiguous, strided]}\n"
    )
    document = matrix(text)
    start = time.process_time()
    cases = expand(document)
    seconds = time.process_time() - start
    assert len({case.id for case in cases}) == len(cases) == 5004
    assert seconds < 30


def test_a_case_is_found_by_its_id(tmp_path, monkeypatch):
    (tmp_path / "mine_declared.py").write_text(
        "from rocmkern.matrix import Call, Dim, Operation, Registry\n"
        "OPERATIONS = Registry(Operation('double', function=lambda x: 2 * x, reference=lambda x: 2 * x, out=False,\n"
        "    call=lambda draw: Call({'x': draw.array('x', (draw.dims['n'],))}, out_shapes=((draw.dims['n'],),)),\n"
        "    dims=(Dim('n', 'n'),), arrays=('x',)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "m.yaml"
    file.write_text(
        "version: 1\nregistry: mine_declared\ngroups:\n"
        "  a: {why: because, operation: double, rows: [{axes: {n: [1, 2]}}]}\n"
    )
    assert find_case(str(file), "double-a-n2-f32").dims == {"n": 2}
    with pytest.raises(MatrixError, match="did you mean 'double-a-n2-f32'"):
        find_case(str(file), "double-a-n2-f23")


@pytest.fixture
def with_gradient(matrix, registry):
    """A matrix whose `row_stats` has a gradient, which takes one array more."""
    stats = registry["row_stats"]
    gradient = dataclasses.replace(
        stats, name="row_stats_backward", arrays=("dout", "x"), features=(), gradient_of="row_stats"
    )
    return functools.partial(matrix, registry=Registry(*registry, gradient))


def group(row, head=""):
    return f"  sums: {{why: because, operation: row_stats, {head}rows: [{row}]}}\n"


def test_a_row_says_which_direction_it_runs(with_gradient):
    forward, backward = "row_stats-sums-r2-f32", "row_stats_backward-sums-r2-f32"
    assert ids(with_gradient(group("{shape: {rows: 2}}"))) == [forward]
    for direction, expected in (("forward", [forward]), ("backward", [backward]), ("both", [forward, backward])):
        assert ids(with_gradient(group(f"{{shape: {{rows: 2}}, direction: {direction}}}"))) == expected
        assert ids(with_gradient(group("{shape: {rows: 2}}", f"direction: {direction}, "))) == expected
    assert ids(with_gradient(group("{shape: {rows: 2}, direction: forward}", "direction: both, "))) == [forward]


def test_arrays_of_both_directions_have_names(with_gradient):
    row = "{{shape: {{rows: 2}}, direction: {}, inputs: {{dout: {{kind: constant, value: 2.0}}}}}}"
    assert ids(with_gradient(group(row.format("both")))) == [
        "row_stats-sums-r2-f32",
        "row_stats_backward-sums-r2-f32-dout_constant2",
    ]
    with pytest.raises(MatrixError, match="unknown array 'dout'"):
        ids(with_gradient(group(row.format("forward"))))


def test_settings_of_a_gradient_are_under_its_own_name(with_gradient):
    settings = "version: 1\nregistry: unused\noperations: {row_stats_backward: {dtypes: [bf16]}}\ngroups:\n"
    text = settings + group("{shape: {rows: 2}, direction: both}")
    found = ids(loads(text, "test.yaml", with_gradient.keywords["registry"]))
    assert found == ["row_stats-sums-r2-f32", "row_stats_backward-sums-r2-bf16"]


def test_what_has_no_gradient_says_so(with_gradient):
    text = group("{shape: {rows: 2}, direction: both}").replace("row_stats", "share")
    with pytest.raises(MatrixError, match=r"share has no gradient"):
        ids(with_gradient(text))
    with pytest.raises(MatrixError, match="window"):
        ids(with_gradient(group("{shape: {rows: 2}, features: {window: [1, 2]}, direction: both}")))


def test_a_gradient_of_nothing_is_refused(registry):
    with pytest.raises(ValueError, match="which is not declared"):
        Registry(dataclasses.replace(registry["share"], gradient_of="shares"))
