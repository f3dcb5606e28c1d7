"""Error words: what a kernel reports is raised by the next wait, once."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from fake_device import FakeDevice

from rocmkern.runtime.errors import IndexOutOfRangeError
from rocmkern.runtime.manager import ResourceManager


@pytest.fixture
def manager():
    with ResourceManager(FakeDevice()) as manager:
        yield manager


def word_of(manager, kind="gather: indices"):
    return manager.error_word(kind, lambda: IndexOutOfRangeError(f"{kind} out of range"))


def report(word):
    """What a kernel does."""
    ctypes.c_float.from_address(word.address).value = 1.0


def test_a_wait_raises_what_a_kernel_reported_once(manager):
    word = word_of(manager)
    manager.wait()
    report(word)
    with pytest.raises(IndexOutOfRangeError, match="gather: indices"):
        manager.wait()
    manager.wait()


def test_a_copy_to_the_host_is_a_wait(manager):
    x = manager.from_numpy(np.ones(3, np.float32))
    report(word_of(manager))
    with pytest.raises(IndexOutOfRangeError):
        x.to_numpy()
    assert x.to_numpy().tolist() == [1, 1, 1]


def test_a_kind_has_one_word_and_managers_of_a_device_share_it(manager):
    word = word_of(manager)
    with ResourceManager(manager.device) as other:
        assert word_of(manager) is word and word_of(other) is word and word_of(manager, "other") is not word
        report(word)
        with pytest.raises(IndexOutOfRangeError):
            other.wait()
    manager.wait()


def test_each_of_several_reports_is_raised(manager):
    for kind in ("first", "second"):
        report(word_of(manager, kind))
    for kind in ("first", "second"):
        with pytest.raises(IndexOutOfRangeError, match=kind):
            manager.wait()
    manager.wait()


def test_a_report_does_not_keep_a_manager_from_closing():
    manager = ResourceManager(FakeDevice())
    report(word_of(manager))
    manager.close()
    assert manager.closed
