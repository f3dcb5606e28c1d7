"""Watchers hear of launches before and after them, on the targets that every machine has."""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern.targets import gpu, launches
from rocmkern.targets.launches import Watcher, launching, watching


@pytest.mark.parametrize("target", ["python", "cpu"])
def test_a_launch_is_announced_and_reported(target):
    heard = []
    watcher = Watcher(
        before=lambda name: heard.append(("before", name)), after=lambda name: heard.append(("after", name))
    )
    with rocmkern.use(target):
        with watching(watcher):
            rocmkern.scale(np.ones((2, 3), np.float32), 2.0)
        rocmkern.scale(np.ones((2, 3), np.float32), 2.0)
    assert heard == [("before", "scale"), ("after", "scale")]
    assert not launches.watchers


def test_a_launch_that_fails_is_not_reported_as_submitted():
    heard = []
    watcher = Watcher(before=heard.append, after=lambda name: pytest.fail("it failed"))
    with pytest.raises(ZeroDivisionError), watching(watcher), launching("softmax"):
        raise ZeroDivisionError
    assert heard == ["softmax"]


class Loaded(gpu.LoadedVariant):
    """A kernel that counts its launches."""

    started = 0

    def _call(self, grid, stream, parameters):
        def start():
            self.started += 1
            return (0,)

        return start

    def _fail(self, status):
        raise AssertionError(status)


def test_prepared_launches_of_a_gpu_are_announced_each_time():
    loaded, heard = Loaded("mangled_name", 1, 0), []
    loaded.kernel_name = "softmax"
    unwatched = loaded.prepare((1, 1, 1), [0], 0)
    with watching(Watcher(before=heard.append)):
        prepared = loaded.prepare((1, 1, 1), [0], 0)
        prepared()
        prepared()
        unwatched()
    assert heard == ["softmax", "softmax"] and loaded.started == 3


def test_the_hash_of_the_code_is_told_where_a_driver_was_given_some():
    loaded, heard = Loaded("mangled_name", 1, 0), []
    with watching(Watcher(code=heard.append)):
        loaded.launch((1, 1, 1), [0])
        assert heard == []
        loaded.code_sha256 = "ab" * 32
        loaded.launch((1, 1, 1), [0])
    assert heard == ["ab" * 32] and loaded.started == 2
