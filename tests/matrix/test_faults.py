"""Every seeded fault makes at least one quick row of the committed matrix fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocmkern import tile
from rocmkern import tile as T
from rocmkern.matrix import load_cases
from rocmkern.matrix.faults import Edit, Fault, FaultError, caught_by, inject, runtime
from rocmkern.ops.attention.kernels import flash_attention
from rocmkern.ops.catalog import FAULTS, OPERATIONS
from rocmkern.runtime.pool import Pool
from rocmkern.tile.language.kernel import DEVICE_FUNCTIONS


@pytest.fixture(scope="module")
def quick():
    return [case for case in load_cases(Path(__file__).parents[2] / "matrix.yaml")[1] if case.category == "quick"]


@pytest.fixture(scope="module")
def sound():
    """Whether rows pass without a fault, as far as it was asked: one row catches several faults."""
    return {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(name, quick, sound):
    caught = caught_by(FAULTS[name], quick, at_most=1, sound=sound)
    assert caught, f"no quick row notices: {FAULTS[name].description}"
    if FAULTS[name].patches:
        assert caught[0].startswith("runtime check ") and runtime.failing_checks() == {}, "without the fault"
        return
    assert sound[caught[0]], "the same row passes without the fault"


def test_faults_leave_nothing_behind():
    for fault in FAULTS.values():
        with inject(fault):
            pass  # imports the kernels, which enter their device functions once
    kernel, functions = flash_attention.flash_attention, list(DEVICE_FUNCTIONS)
    pool = dict(vars(Pool))
    operations = {name: getattr(tile, name) for name in T.OPERATIONS if hasattr(tile, name)}
    for fault in FAULTS.values():
        with pytest.raises(ZeroDivisionError), inject(fault):
            raise ZeroDivisionError
    assert flash_attention.flash_attention is kernel and functions == DEVICE_FUNCTIONS
    assert dict(vars(Pool)) == pool
    assert all(getattr(tile, name) is operation for name, operation in operations.items())


def test_a_fault_that_does_not_fit_the_kernel_any_more_is_an_error():
    fault = Fault("old", "text that is gone", ("softmax",), edits=(Edit("softmax", "no such line", ""),))
    with pytest.raises(FaultError, match="'no such line' occurs 0 times in kernel softmax"), inject(fault):
        raise AssertionError("unreachable")


def test_faults_say_what_they_are():
    assert len(FAULTS) >= 10
    for fault in FAULTS.values():
        assert fault.description and set(fault.operations) <= set(OPERATIONS.names)
        assert bool(fault.operations) != bool(fault.patches), "rows look for a fault, or the checks of the runtime do"


def test_every_check_of_the_runtime_notices_something():
    noticed = set()
    for fault in runtime.FAULTS:
        with inject(fault):
            noticed |= set(runtime.failing_checks())
    assert noticed == set(runtime.CHECKS)


def test_the_command_tells_which_checks_catch_a_fault(capsys):
    from rocmkern import cli

    names = [fault.name for fault in runtime.FAULTS]
    matrix = str(Path(__file__).parents[2] / "matrix.yaml")
    assert cli.main(["matrix", "mutate", "--matrix", matrix, "--json", *names]) == 0
    records = json.loads(capsys.readouterr().out)["faults"]
    assert [record["name"] for record in records] == names
    assert all(record["caught"] and record["rows"][0].startswith("runtime check ") for record in records)
