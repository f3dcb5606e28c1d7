"""A case gives the same bits whatever ran before it: alone, in any order, in memory full of something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from projects import ROOT
from small_operations import double, make_registry

from rocmkern.matrix import expand, load
from rocmkern.matrix.isolation import WAYS, dirty_pools, isolate, smallest
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.manager import default_manager

COMMITTED = Path(__file__).parents[2] / "matrix.yaml"


@pytest.fixture(scope="module")
def quick():
    """The quick cases of the committed matrix that do not expect an error."""
    cases = expand(load(COMMITTED))
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


def test_a_case_that_ends_its_process_alone_is_a_failure(cases):
    def ending(x, *, out=None):
        os._exit(3)

    found = isolate(cases(ending), "python", ways=("alone",))
    assert all("the process ended with status" in text for text in found.failed().values())
    assert len(found.failed()) == 3


def test_an_unknown_way_is_named():
    with pytest.raises(ArgumentError, match="ways: got upside_down; allowed: alone, file, random, dirty"):
        isolate([], "python", ways=("upside_down",))
