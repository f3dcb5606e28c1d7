"""What reading, expanding and collecting a table costs, counted in work rather than in seconds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from projects import PLUGIN
from test_loader import GOOD

from rocmkern.matrix import draw, expand, inputs, load, load_cases, loader, loads, yaml_nodes, yaml_source
from rocmkern.runtime.errors import MatrixError

COMMITTED = Path(__file__).parents[2] / "matrix.yaml"


def calls_of(function) -> Counter[str]:
    """How often each function, of Python and of C, is called during a call."""
    counts: Counter[str] = Counter()

    def count(frame, event, argument):
        if event == "call":
            counts[frame.f_code.co_qualname if hasattr(frame.f_code, "co_qualname") else frame.f_code.co_name] += 1
        elif event == "c_call":
            counts[argument.__name__] += 1

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counts


def table(rows: int) -> str:
    """A table of so many rows, each of six cases."""
    row = "      - {{name: r{}, shape: {{rows: 2}}, axes: {{columns: [1, 31, 64]}}, dtypes: [f32, f16]}}\n"
    head = GOOD.partition("groups:\n")[0]
    return (
        head
        + "groups:\n  a:\n    why: as many as are asked for\n    operation: row_stats\n    rows:\n"
        + "".join(row.format(index) for index in range(rows))
    )


def test_the_work_grows_as_the_number_of_cases_does(registry):
    def work(rows: int) -> int:
        text = table(rows)
        return sum(calls_of(lambda: expand(loads(text, "test.yaml", registry))).values())

    work(10)  # what is imported and cached once
    small, large = work(100), work(400)
    assert large < 4.1 * small
    assert large < 400 * 6 * 160, "calls for a case, its part of reading and checking included"


def test_nothing_is_drawn_and_the_models_are_checked_once(monkeypatch):
    validated = []
    check = loader.Matrix.model_validate
    monkeypatch.setattr(loader.Matrix, "model_validate", lambda data: validated.append(1) or check(data))
    document = load(COMMITTED)
    counts = calls_of(lambda: expand(document))
    assert len(validated) == 1
    drawing = {function.__name__ for function in (draw.generate, inputs.make_call, inputs.place)}
    assert not drawing & set(counts)
    # Rows of each layout are asked for the shapes of their arrays, once for all of their cases.
    rows = sum(
        row.memory == "each" or group.memory == "each"
        for group in document.matrix.groups.values()
        for row in group.rows
    )
    assert 30 < rows < counts["array_shapes"] < 4 * rows


def test_a_file_is_read_once_for_as_long_as_it_does_not_change(tmp_path):
    path = tmp_path / "matrix.yaml"
    text = "version: 1\nregistry: rocmkern.ops.catalog\ngroups:\n  a:\n    why: of one row\n    operation: scale\n"
    path.write_text(text + "    rows: [{shape: {size: [3]}}]\n")
    document, cases = load_cases(path)
    assert load_cases(path)[1] is cases and load_cases(str(path))[0] is document
    path.write_text(text + "    rows: [{shape: {size: [3]}}, {shape: {size: [44]}}]\n")
    assert len(load_cases(path)[1]) == 2


def test_positions_are_the_same_with_and_without_libyaml(monkeypatch):
    fast = load(COMMITTED).source
    monkeypatch.delattr(yaml_nodes.yaml, "CSafeLoader", raising=False)
    slow = load(COMMITTED).source
    assert fast.data == slow.data
    assert fast.positions == slow.positions and fast.key_positions == slow.key_positions


def test_a_text_beyond_a_limit_is_read_no_further_and_once(monkeypatch, tmp_path):
    def works(text: str) -> int:
        with pytest.raises(MatrixError) as caught:
            loads(text)
        assert limit in str(caught.value)
        return sum(calls_of(lambda: refused(text)).values())

    def refused(text: str) -> None:
        with contextlib.suppress(MatrixError):
            loads(text)

    limit = f"more than {yaml_source.MAX_BYTES} bytes"
    assert works("x:\n" + "- 1\n" * 300_000) < 100
    path = tmp_path / "matrix.yaml"
    path.write_text("x:\n" + "- 1\n" * 300_000)
    with pytest.raises(MatrixError, match=limit):
        load(path)
    monkeypatch.setattr(yaml_nodes, "MAX_VALUES", 5000)  # so that the slow parser takes no minute
    limit = "more than 5000 values"
    text = "x:\n" + "- 1\n" * 5001
    once = works(text)
    monkeypatch.delattr(yaml_nodes.yaml, "CSafeLoader", raising=False)
    assert once < works(text) / 2, "the slow parser is not asked as well"


def test_a_long_text_that_is_no_yaml_is_read_once(monkeypatch):
    if not hasattr(yaml_nodes.yaml, "CSafeLoader"):
        pytest.skip("PyYAML has no libyaml here")
    monkeypatch.setattr(yaml_nodes.yaml, "SafeLoader", None)
    with pytest.raises(MatrixError, match=r"<matrix>:[0-9]+:[0-9]+: while") as caught:
        loads("x:\n" + "- 1\n" * 50_000 + "{")
    assert caught.value.line > 50_000


COUNTING = """
import importlib
expand, draw = (importlib.import_module(f"rocmkern.matrix.{name}") for name in ("expand", "draw"))
readings, draws, load, generate = [], [], expand.load, draw.generate
expand.load = lambda path: readings.append(path) or load(path)
draw.generate = lambda *given: draws.append(given) or generate(*given)

def pytest_collection_finish(session):
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    terminal.write_line(f"{len(session.items)} items, {len(readings)} reading, {len(draws)} draws")
"""


def test_collecting_reads_the_file_once_and_draws_nothing(tmp_path):
    (tmp_path / "counting.py").write_text(COUNTING)
    root, options = (
        COMMITTED.parent,
        ["--collect-only", "-q", "-p", "no:cacheprovider", "--rocmkern-target", "python,cpu"],
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "counting", *PLUGIN, *options, "matrix.yaml"],
        cwd=root, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}", "ROCMKERN_NO_GPU": "1"},
    )  # fmt: skip
    quick = sum(case.category == "quick" for case in load_cases(COMMITTED)[1])
    assert f"{2 * quick} items, 1 reading, 0 draws" in done.stdout, done.stdout[-500:]
