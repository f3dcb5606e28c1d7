"""A case gives the same bits whatever ran before it: alone, in any order, in memory full of something else."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from projects import ROOT
from small_operations import double, make_registry

from rocmkern.matrix import expand, load_cases
from rocmkern.matrix import isolation as isolation_module
from rocmkern.matrix.isolation import WAYS, dirty_pools, isolate, smallest
from rocmkern.matrix.isolation_log import IsolationLog
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import ArgumentError, MatrixError
from rocmkern.runtime.manager import default_manager
from rocmkern.runtime.probe import suspect

COMMITTED = Path(__file__).parents[2] / "matrix.yaml"


@pytest.fixture(scope="module")
def quick():
    """The quick cases of the committed matrix that do not expect an error, and run with nothing else installed."""
    cases = [case for case in load_cases(COMMITTED)[1] if not case.operation.needs]
    return [case for case in cases if case.category == "quick" and case.facts.expect_error is None]


@pytest.fixture(scope="module")
def representative(quick):
    """A small case of every operation, whose dtypes take turns: a kernel of every dtype would take minutes to build."""
    of_operation = {}
    for case in smallest(quick):
        of_operation.setdefault(case.operation.name, []).append(case)
    return [cases[turn % len(cases)] for turn, cases in enumerate(of_operation.values())]


def test_the_selection_has_every_operation_and_dtype(quick, representative):
    everything = {(case.operation.name, case.dtype) for case in quick}
    assert {(case.operation.name, case.dtype) for case in smallest(quick)} == everything
    assert {case.operation.name for case in representative} == {name for name, _ in everything}
    assert {case.dtype for case in representative} == {dtype for _, dtype in everything}


@pytest.fixture(scope="module")
def isolation(representative):
    return isolate(representative, "cpu", seed=3, ways=("file", "random", "dirty"))


def test_the_same_bits_in_file_order_in_random_order_and_after_a_dirty_pool(isolation, representative):
    assert isolation.failed() == {} and isolation.different() == {}
    assert all(isolation.outcomes["file"].values()) and len(isolation.outcomes["file"]) == len(representative)


def test_the_same_bits_alone(isolation, representative):
    # A process of its own has run nothing before it forks.
    command = [sys.executable, "-m", "rocmkern", "matrix", "isolate", "--matrix", str(COMMITTED)]
    options = [*(case.id for case in representative), "--target", "cpu", "--ways", "alone", "--json"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = {case: tuple(digests) for case, digests in json.loads(done.stdout)["outcomes"]["alone"].items()}
    assert alone == isolation.outcomes["file"]


# What is found


@pytest.fixture
def cases(matrix):
    def make(function):
        text = "  a: {why: because, operation: double, rows: [{axes: {rows: [1, 2, 3]}, shape: {columns: 64}}]}\n"
        return expand(matrix(text, make_registry(double=function)))

    return make


def test_a_result_that_depends_on_the_case_before_is_found(cases):
    seen = []

    def remembering(x, *, out=None):
        seen.append(x.shape[0])
        result = double(x, out=out)
        # The row count of the case before, in the last bit.
        others = [rows for rows in seen if rows != x.shape[0]]
        result.view(np.uint32)[0, 0] ^= others[-1] & 1 if others else 0
        return result

    found = isolate(cases(remembering), "python", ways=("alone", "file", "random"))
    assert found.failed(), "the operation is declared exact"
    assert found.different()


def test_a_result_that_depends_on_memory_of_others_is_found(cases):
    def reading(x, *, out=None):
        with default_manager("host").empty(x.shape, np.float32, uninitialized=True) as temporary:
            used = temporary.numpy_view()
            result = double(x, out=out)
            # What tests fill memory with is taken for nothing, so that it does not show.
            result.view(np.uint32)[0, 0] ^= not (used.view(np.uint32) == 0xFFFFFFFF).all()
            return result

    found = isolate(cases(reading), "python", ways=("file", "dirty"))
    assert set(found.different()) == {case.id for case in cases(reading)}
    assert not any(isinstance(outcome, str) for outcome in found.outcomes["file"].values())


def test_sound_cases_are_the_same_in_every_way(cases):
    found = isolate(cases(double), "python")
    assert found.different() == {} and found.failed() == {}
    assert list(found.outcomes) == list(WAYS) and all(len(results) == 3 for results in found.outcomes.values())


def test_dirty_means_that_every_idle_buffer_holds_something_else():
    manager = default_manager("host")
    manager.trim()  # what other tests left would be handed out first
    with manager.zeros(1000) as tensor:
        address = tensor.data_ptr
    assert dirty_pools("python", np.random.default_rng(0)) >= 1
    with manager.empty(1000, uninitialized=True) as tensor:
        assert tensor.data_ptr == address and tensor.numpy_view().view(np.uint32).any()
    manager.trim()


def crash():
    faulthandler.disable()  # pytest's, which would print where
    os.kill(os.getpid(), signal.SIGSEGV)


DEADLINE_S = 8.0  # of a process that begins on a busy machine, too

ENDINGS = {
    "exits": (lambda: os._exit(3), "the process ended with status 3"),
    "crashes": (crash, "the process was ended by SIGSEGV"),
    "hangs": (lambda: time.sleep(600), "did not finish within 8 s and was killed"),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("ways", [WAYS, ("file", "random", "dirty")], ids=["alone first", "together only"])
def test_a_case_that_ends_its_process_is_named_and_left_out_of_what_comes_after(cases, ending, ways):
    act, text = ENDINGS[ending]

    def ending_at_two(x, *, out=None):
        if x.shape[0] == 2:
            act()
        return double(x, out=out)

    notes = []
    one, two, three = (case.id for case in cases(double))
    found = isolate(cases(ending_at_two), "python", ways=ways, deadline_s=DEADLINE_S, note=notes.append)
    assert found.failed() == {two: text} and found.different() == {}
    first, *others = found.outcomes.values()
    assert list(first) == [one, two, three] and all(list(outcomes) == [one, three] for outcomes in others)
    assert notes == [f"{ways[0]}: 3 cases", *(f"{way}: 2 cases, 1 left out" for way in ways[1:])]


def test_a_case_that_ends_its_process_only_among_others_depends_on_them(cases):
    seen = []

    def crashing_second(x, *, out=None):
        seen.append(x.shape[0])
        if len(set(seen)) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return double(x, out=out)

    found = isolate(cases(crashing_second), "python", ways=("alone", "file"))
    _, two, _ = (case.id for case in cases(double))
    assert found.failed() == {two: "the process was ended by SIGKILL"} and set(found.different()) == {two}
    assert len(found.outcomes["file"]) == 3, "the case behind it goes on in a process that has seen nothing"


def test_what_an_operation_raises_is_its_outcome(cases):
    def exiting(x, *, out=None):
        raise SystemExit(3)

    found = isolate(cases(exiting), "python")
    assert set(found.failed().values()) == {"SystemExit: 3"} and found.different() == {}
    assert all(len(outcomes) == 3 for outcomes in found.outcomes.values())


def test_a_device_that_cannot_be_had_is_the_outcome_of_each_case(cases):
    @contextmanager
    def refusing(target):
        raise RuntimeError("the card is gone")
        yield

    found = isolate(cases(double), "python", ways=("file",), holding=refusing)
    assert set(found.failed().values()) == {"RuntimeError: the card is gone"}


def test_a_gpu_on_which_a_case_hangs_is_marked_as_suspect(cases, monkeypatch):
    card, marked = DeviceInfo("hip", 0, "a card", "0000:03:00.0", False, 1 << 30, "gfx1100"), []
    monkeypatch.setattr(isolation_module, "_device", lambda target: card)
    monkeypatch.setattr(suspect, "mark", lambda device, reason: marked.append((device, reason)))
    found = isolate(cases(lambda x, *, out=None: time.sleep(600)), "python", ways=("file",), deadline_s=0.5)
    assert marked == [(card, "a case did not finish within 0.5 s and was killed")] * 3
    assert all(
        "a card (0000:03:00.0, gfx1100" in text and "reset the whole card" in text for text in found.failed().values()
    )


def test_time_that_a_case_waits_for_its_device_does_not_count(cases):
    @contextmanager
    def waiting(target):
        time.sleep(4.5)
        yield

    assert isolate(cases(double), "python", ways=("file",), holding=waiting, deadline_s=4.0).failed() == {}


OPERATIONS = """
import os
import numpy as np
from rocmkern.matrix import Call, Dim, Operation, Registry

def double(x, *, out=None):
    if x.shape[0] == 2:
        os.abort()
    if x.shape[0] == 3:
        raise RuntimeError("three is broken")
    out = np.empty(x.shape, x.dtype) if out is None else out
    return np.multiply(x, x.dtype.type(2), out=out)

def call(draw):
    shape = (draw.dims["rows"], 4)
    return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))

OPERATIONS = Registry(Operation("double", double, lambda x: 2 * x, call, (Dim("rows", "r"),), ("x",)))
"""
TABLE = """
version: 1
registry: crashing_operations
groups:
  a: {why: because, operation: double, rows: [{axes: {rows: [1, 2, 3]}}]}
"""
KNOWN = "known_failures: [{cases: '*r2-*', issue: aborts, expires: '9999-01-01'}, " \
        "{cases: '*r3-*', issue: three, expires: '9999-01-01'}]"  # fmt: skip


@pytest.mark.parametrize("ways", ["alone,file", "file,dirty"])
def test_the_command_names_the_case_that_crashes_and_ends_with_1(tmp_path, ways):
    (tmp_path / "crashing_operations.py").write_text(OPERATIONS)
    (tmp_path / "matrix.yaml").write_text(TABLE)
    command = [sys.executable, "-m", "rocmkern", "matrix", "isolate", "--target", "python", "--ways", ways]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}

    def run(*words):
        return subprocess.run(
            [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )

    done = run()
    assert done.returncode == 1 and "FAILED   double-a-r2-f32: the process was ended by SIGABRT" in done.stdout
    assert "FAILED   double-a-r3-f32: RuntimeError: three is broken" in done.stdout
    assert "3 cases on python" in done.stdout and "0 depend on what ran before, 2 fail" in done.stdout
    (tmp_path / "matrix.yaml").write_text(TABLE + KNOWN)
    done = run()
    assert done.returncode == 0 and "known    double-a-r2-f32: known failure until 9999-01-01: aborts" in done.stdout
    done = run("--deadline", "nan")
    assert done.returncode == 2 and "deadline: got nan; allowed: a finite number of seconds above 0" in done.stderr


def test_an_unknown_way_is_named():
    with pytest.raises(ArgumentError, match="ways: got upside_down; allowed: alone, file, random, dirty"):
        isolate([], "python", ways=("upside_down",))


def test_a_run_that_was_stopped_goes_on_where_it_stopped(cases, tmp_path):
    path, head = tmp_path / "kept", {"target": "python", "seed": 0}
    ran = []

    def stopping(x, *, out=None):
        return double(x, out=out)

    def tell_two(way, case, outcome):
        log.add(way, case, outcome)
        ran.append((way, case))
        if len(ran) == 2:
            raise KeyboardInterrupt

    chosen, ways = cases(stopping), ("file", "random")
    log = IsolationLog(path, head)
    with pytest.raises(KeyboardInterrupt):
        isolate(chosen, "python", ways=ways, tell=tell_two)
    with path.open("a") as file:
        file.write('["file", "cut of')
    again, notes = IsolationLog(path, head), []
    assert sum(map(len, again.outcomes.values())) == 2
    second = []

    def tell(way, case, outcome):
        again.add(way, case, outcome)
        second.append((way, case))

    found = isolate(chosen, "python", ways=ways, earlier=again.outcomes, tell=tell, note=notes.append)
    assert not set(ran) & set(second) and len(ran) + len(second) == 2 * len(chosen)
    assert found.outcomes == isolate(chosen, "python", ways=ways).outcomes
    assert any("2 known from before" in note for note in notes)
    whole = IsolationLog(path, head)
    assert {way: dict(sorted(found.items())) for way, found in whole.outcomes.items()} == {
        way: dict(sorted(outcomes.items())) for way, outcomes in found.outcomes.items()
    }


def test_outcomes_of_another_run_are_refused(tmp_path):
    path = tmp_path / "kept"
    IsolationLog(path, {"target": "python", "seed": 0}).add("file", "a", ("digest",))
    with pytest.raises(MatrixError, match="line 1 belongs to another run"):
        IsolationLog(path, {"target": "python", "seed": 1})
    path.write_text(path.read_text() + "nonsense\n" + '["file", "b", ["digest"]]\n')
    with pytest.raises(MatrixError, match="line 3 is not an outcome"):
        IsolationLog(path, {"target": "python", "seed": 0})


def test_the_command_keeps_what_it_found(tmp_path, capsys):
    from rocmkern import cli

    path = tmp_path / "kept"
    command = ["matrix", "isolate", "--matrix", str(COMMITTED), "--target", "python", "--ways", "file,random"]
    command += ["--keep", str(path), "scale-scaling-n1*"]
    assert cli.main(command) == 0 and "known" not in capsys.readouterr().err
    before = path.read_text()
    assert cli.main(command) == 0 and path.read_text() == before
