"""A matrix file with a mistake gives a position and the nearest valid name, never a traceback from the loader."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocmkern.matrix import MatrixError, expand, load, loads

GOOD = """\
version: 1
registry: unused
defaults: {dtypes: [f32]}
operations:
  row_stats: {tolerance: {c: 3.0, reason: sums in another order}}
groups:
  sums:
    why: rows of odd length
    operation: row_stats
    shape: {rows: 2}
    rows:
      - &first
        axes: {columns: [1, 31], centre: [false, true]}
      - name: wide
        <<: *first
        inputs: {all: {kind: large, amplitude: 5.0}}
        memory: [strided, {x: negative}]
budgets:
  few_registers: {kernel: row_*, vgpr: 96}
"""


def cases_of(text, registry):
    return expand(loads(text, "test.yaml", registry))


def test_the_good_file_is_good(registry):
    assert len(cases_of(GOOD, registry)) == 4 + 8


# What is replaced by what; line, column and path of the error; words of its message.
MISTAKES = [
    ("version: 1", "version: 2", 1, 10, "version", "known: 1"),
    ("version: 1\n", "", 1, 1, "version", "is missing"),
    ("groups:", "group:", 6, 1, "group", "did you mean 'groups'?"),
    ("why: rows of odd length", "wy: rows", 8, 5, "groups.sums.wy", "did you mean 'why'?"),
    ("why: rows of odd length", 'why: ""', 8, 10, "groups.sums.why", "at least 3 characters"),
    ("operation: row_stats", "operation: row_stat", 9, 16, "groups.sums.operation", "did you mean 'row_stats'?"),
    ("  row_stats:", "  rowstats:", 5, 3, "operations.rowstats", "did you mean 'row_stats'?"),
    ("{rows: 2}", "{row: 2}", 10, 13, "groups.sums.shape.row", "did you mean 'rows'?"),
    ("{rows: 2}", "{rows: -2}", 10, 19, "groups.sums.shape.rows", "greater than or equal to 0"),
    ("{rows: 2}", "{rows: 2.0}", 10, 19, "groups.sums.shape.rows", "integer"),
    ("{rows: 2}", "{rows: [2]}", 10, 19, "groups.sums.shape.rows", "must be an integer"),
    ("{rows: 2}", "{rows: '2'}", 10, 19, "groups.sums.shape.rows", "integer"),
    ("{rows: 2}", "{rows: 2, rows: 3}", 10, 22, "groups.sums.shape.rows", "duplicate key 'rows'"),
    ("{rows: 2}", "{rows: 010}", 10, 19, "groups.sums.shape.rows", "octal"),
    ("{rows: 2}", "{rows: 1:30}", 10, 19, "groups.sums.shape.rows", "base 60"),
    ("{rows: 2}", "{rows: 1_000}", 10, 19, "groups.sums.shape.rows", "separators"),
    ("{rows: 2}", "{rows: 2001-01-01}", 10, 19, "groups.sums.shape.rows", "timestamp"),
    ("{rows: 2}", "{no: 2}", 10, 13, "groups.sums.shape", "is a bool in YAML 1.1"),
    ("{rows: 2}", "{2: 2}", 10, 13, "groups.sums.shape", "is a int in YAML 1.1"),
    ("{rows: 2}", "{? [a] : 2}", 10, 15, "groups.sums.shape", "not a list"),
    ("{rows: 2}", "{rows: 2", 11, 9, "", "flow mapping"),
    ("{rows: 2}", "{rows: *none}", 10, 19, "", "undefined alias"),
    ("{rows: 2}", "!!set {rows}", 10, 12, "groups.sums.shape", "not allowed"),
    ("{rows: 2}", "{rows: !!python/object:os.system 2}", 10, 19, "groups.sums.shape.rows", "python"),
    ("shape: {rows: 2}", "<<: 5", 10, 9, "groups.sums", "merge key"),
    ("amplitude: 5.0", "amplitude: 5e-1", 16, 48, "groups.sums.rows[1].inputs.all.amplitude", "write 5.0e-1"),
    ("amplitude: 5.0", "amplitude: 1e3", 16, 48, "groups.sums.rows[1].inputs.all.amplitude", "write 1.0e+3"),
    ("amplitude: 5.0", "amplitude: 1.0e+999", 16, 48, "groups.sums.rows[1].inputs.all.amplitude", "overflows"),
    ("amplitude: 5.0", "amplitude: .nan", 16, 48, "groups.sums.rows[1].inputs.all.amplitude", "got nan"),
    ("amplitude: 5.0", "amplitud: 5.0", 16, 37, "groups.sums.rows[1].inputs.all.amplitud", "mean 'amplitude'?"),
    ("kind: large", "kind: larg", 16, 23, "groups.sums.rows[1].inputs.all", "did you mean 'large'?"),
    ("kind: large, ", "", 16, 23, "groups.sums.rows[1].inputs.all", "needs a kind"),
    ("{all: {kind", "{y2: {kind", 16, 18, "groups.sums.rows[1].inputs.y2", "unknown array 'y2'"),
    ("[strided,", "[stride,", 17, 18, "groups.sums.rows[1].memory[0]", "did you mean 'strided'?"),
    ("{x: negative}", "{y2: negative}", 17, 28, "groups.sums.rows[1].memory[1].y2", "unknown array 'y2'"),
    ("{x: negative}", "{out: broadcast}", 17, 33, "groups.sums.rows[1].memory[1].out", "cannot be written"),
    ("[f32]", "[f23]", 3, 21, "defaults.dtypes[0]", "did you mean 'f32'?"),
    ("[f32]", "f32", 3, 20, "defaults.dtypes", "valid list"),
    ("[f32]", "[]", 3, 20, "defaults.dtypes", "at least 1 item"),
    ("[1, 31]", "[]", 13, 25, "groups.sums.rows[0].axes.columns", "at least 1 item"),
    ("[1, 31]", "[1, 1]", 12, 9, "groups.sums.rows[0]", "twice"),
    ("[1, 31]", "[1, x]", 13, 29, "groups.sums.rows[0].axes.columns[1]", "must be an integer"),
    ("columns: [1", "column: [1", 13, 16, "groups.sums.rows[0].axes.column", "did you mean 'columns'?"),
    ("columns: [1", "dtype: [1", 13, 16, "groups.sums.rows[0].axes.dtype", "dtypes: [...]"),
    ("[false, true]", "[no, yes]", 13, 43, "groups.sums.rows[0].axes.centre[0]", "no is a boolean"),
    ("[false, true]", "[false, 1]", 13, 50, "groups.sums.rows[0].axes.centre[1]", "allowed: false, true"),
    ("- name: wide", "- name: Wide", 14, 15, "groups.sums.rows[1].name", "lower-case"),
    (
        "- name: wide\n        <<: *first",
        "- <<: *first\n        shape: {columns: 3}",
        13,
        16,
        "axes.columns",
        "is also given",
    ),
    ("    rows:\n", "\trows:\n", 11, 1, "", "tab"),
    ("{c: 3.0, reason", "{c: 3.0, absolute: 1.0, reason", 5, 26, "operations.row_stats.tolerance", "either absolute"),
    (
        "{c: 3.0, reason: sums in another order}",
        "{c: 3.0}",
        5,
        26,
        "operations.row_stats.tolerance.reason",
        "is missing",
    ),
    ("{c: 3.0, reason", "{reason", 5, 26, "operations.row_stats.tolerance", "at least one of"),
    ("vgpr: 96", "vgprs: 96", 19, 34, "budgets.few_registers.vgprs", "did you mean 'vgpr'?"),
    ("vgpr: 96", "vgpr: 0", 19, 40, "budgets.few_registers.vgpr", "greater than or equal to 1"),
    ("vgpr: 96", "fma_share: 1.5", 19, 45, "budgets.few_registers.fma_share", "less than or equal to 1"),
    ("vgpr: 96", "dtypes: [f32]", 19, 18, "budgets.few_registers", "give at least one of vgpr"),
    ("vgpr: 96", "scratch: 16", 19, 18, "budgets.few_registers", "scratch above 0 must have a reason"),
    ("vgpr: 96", "spills: 1", 19, 18, "budgets.few_registers", "spills above 0 must have a reason"),
]


@pytest.mark.parametrize(("old", "new", "line", "column", "path", "words"), MISTAKES, ids=lambda value: str(value)[:30])
def test_a_mistake_is_named_with_its_position(registry, old, new, line, column, path, words):
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    with pytest.raises(MatrixError) as caught:
        cases_of(text, registry)
    error = caught.value
    assert words in str(error)
    assert path in error.path
    assert (error.line, error.column) == (line, column)
    assert str(error).startswith(f"test.yaml:{line}:{column}: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("- a\n- b\n", "a list"),
        ("word", "a string"),
        ("~", "nothing"),
        ("12", "a scalar"),
        ("a: 1\n---\nb: 2\n", "document"),
        (b"version: \xff\n", "UTF-8"),
        ("version: \x07\n", "not allowed in YAML"),
        ('version: "\\UFFFFFFFF"\n', "not YAML"),
        ("&a [*a]", "contains it"),
        ("a: &a {<<: *a}", ""),
        ("[" * 5000, "nested deeper"),
        ("{a: " * 300, ""),
        ("x: " + "9" * 5000, "not a plain decimal"),
        ("%YAML 9.9\n---\na: 1\n", ""),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_text_that_is_no_matrix(registry, text, words):
    with pytest.raises(MatrixError, match=words or ".") as caught:
        cases_of(text, registry)
    assert caught.value.line >= 1 and caught.value.column >= 1


def test_aliases_cannot_expand_to_a_billion_values(registry):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(MatrixError, match="expand to too much"):
        cases_of("\n".join(lines), registry)


def test_several_mistakes_are_listed_in_the_order_of_the_file_what_is_missing_last(registry):
    text = (
        GOOD.replace("[f32]", "[f31]").replace("why: rows of odd length", "y: rows").replace("kind: large", "kind: x")
    )
    with pytest.raises(MatrixError) as caught:
        cases_of(text, registry)
    lines = [int(line.split(":")[1]) for line in str(caught.value).splitlines()]
    assert lines == [3, 8, 16, 8]
    assert caught.value.line == 3


def test_a_file_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(MatrixError, match="cannot be read"):
            load(path)


def test_a_registry_that_cannot_be_imported():
    with pytest.raises(MatrixError, match="cannot be imported") as caught:
        loads(GOOD)
    assert caught.value.path == "registry" and caught.value.line == 2
    with pytest.raises(MatrixError, match="has no OPERATIONS"):
        loads(GOOD.replace("registry: unused", "registry: json"))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rows", "why", "shape", "axes", "version", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.integers(0, 12), tree=trees)
def test_any_value_anywhere_gives_a_position_or_is_valid(registry, where, tree):
    import yaml

    data = yaml.safe_load(GOOD)
    places = [
        (data, "version"), (data, "registry"), (data, "defaults"), (data, "operations"), (data, "groups"),
        (data["groups"], "sums"), (data["groups"]["sums"], "why"), (data["groups"]["sums"], "operation"),
        (data["groups"]["sums"], "shape"), (data["groups"]["sums"], "rows"), (data["groups"]["sums"]["rows"], 0),
        (data["groups"]["sums"]["rows"][1], "inputs"), (data["groups"]["sums"]["rows"][1], "memory"),
    ]  # fmt: skip
    parent, key = places[where]
    parent[key] = tree
    try:
        cases_of(yaml.safe_dump(data), registry)
    except MatrixError as error:
        assert error.line >= 1 and error.column >= 1


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.text(max_size=60), st.binary(max_size=60), st.text(alphabet="{}[]:,-&*!|>'\"\n\t #?ab1", max_size=60))
)
def test_any_text_gives_a_position(registry, text):
    with pytest.raises(MatrixError) as caught:
        cases_of(text, registry)
    assert caught.value.line >= 1 and caught.value.column >= 1
