"""Mutation testing chooses changes that a test can notice, and for each the tests that run what is changed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch):
    spec = importlib.util.spec_from_file_location("mutation", ROOT / "tools" / "mutation.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, "mutation", module)
    spec.loader.exec_module(module)
    return module


def written(directory, **tests):
    """A recording: for each test its seconds and what it calls."""
    lines = [
        json.dumps({"test": name.replace("__", "::"), "seconds": seconds, "functions": functions})
        for name, (seconds, functions) in tests.items()
    ]
    (directory / "record-x.jsonl").write_text("\n".join(lines) + "\n")


def mutant(tool, function="ops/a.py:3", file="ops/a.py"):
    return tool.Mutant("ops", file, "NumberReplacer", 0, 4, function)


def test_quick_tests_of_the_function_come_first_and_files_take_turns(tool, tmp_path):
    here = ["ops/a.py:3"]
    written(
        tmp_path,
        x__slow=(9.0, here), x__quick=(0.1, here), y__one=(1.0, here), z__other=(0.1, ["ops/a.py:9"]),
        y__endless=(100.0, here),
    )  # fmt: skip
    assert tool.Tests(tmp_path).of(mutant(tool)) == ["x::quick", "y::one", "x::slow"]


def test_what_is_at_the_level_of_the_module_has_the_tests_of_its_file(tool, tmp_path):
    written(tmp_path, x__a=(1.0, ["ops/a.py:3"]), x__b=(0.5, ["ops/a.py:9"]), x__c=(0.1, ["ops/b.py:1"]))
    assert tool.Tests(tmp_path).of(mutant(tool, "")) == ["x::b", "x::a"]


def test_survivors_count_unless_nothing_can_tell_them_apart(tool, tmp_path, capsys):
    outcomes = ["killed"] * 18 + ["survived", "survived", "survived"]
    entries = [
        {"id": f"m{i}", "part": "ops", "outcome": outcome, "tests": 1, "before": "a", "after": "b"}
        for i, outcome in enumerate(outcomes)
    ]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, entries)))
    assert tool.report(tmp_path) == 1 and "21 mutants, 3 survive (14%)" in capsys.readouterr().out
    (tmp_path / "equivalent.json").write_text(json.dumps({"m20": "it only logs"}))
    assert tool.report(tmp_path) == 0 and "21 mutants, 2 survive (10%)" in capsys.readouterr().out


def test_annotations_and_caches_are_left_alone_and_the_seed_decides(tool, tmp_path, monkeypatch):
    pytest.importorskip("cosmic_ray.operators.provider")
    package = tmp_path / "rocmkern"
    (package / "ops").mkdir(parents=True)
    (package / "ops" / "a.py").write_text(
        "import functools\n\n\n@functools.cache\ndef f(x: int | None) -> int | str:\n    y: int | None = x\n"
        "    return y + 1 if y is not None else 0\n"
    )
    monkeypatch.setattr(tool, "PACKAGE", package)
    drawn = tool.draw(100, 3, ["ops"])
    assert {(each.line, each.function) for each in drawn} == {(7, "ops/a.py:4")}
    assert [each.id for each in drawn] == [each.id for each in tool.draw(100, 3, ["ops"])]
    texts = {tool.mutated(each) for each in drawn}
    assert all(text.count("int | None") == 2 and "@functools.cache" in text for text in texts)
    assert len(texts) == len(drawn) >= 4


def test_a_recording_has_the_functions_of_each_test_and_not_those_of_others(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "from rocmkern.ops import rope_scaling\nfrom rocmkern.runtime.geometry import *\n"
        "from rocmkern.reference import activations\nimport numpy as np\n"
        "def test_first(): activations.silu(np.ones(3))\n"
        "def test_nothing(): pass\n"
        "def test_again(): activations.silu(np.ones(3))\n"
        "def test_failing(): assert activations.silu(np.ones(3)) is None\n"
    )
    record = tmp_path / "record"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "mutation_record"]
        + ["--record", str(record), "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={"PATH": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}", "HOME": str(tmp_path)},
    )  # fmt: skip
    entries = {each["test"]: each for each in map(json.loads, record.read_text().splitlines())}
    assert set(entries) == {f"test_it.py::test_{name}" for name in ("first", "nothing", "again")}, done.stdout
    called = [any(f.startswith("reference/activations.py:") for f in each["functions"]) for each in entries.values()]
    assert called == [True, False, True]
