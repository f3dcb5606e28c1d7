"""Guard bands and poison: what a kernel does wrong shows."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest
from fake_device import FakeDevice

from rocmkern.runtime.errors import GuardBandError
from rocmkern.runtime.guard import GUARD_BYTES, nan_pattern
from rocmkern.runtime.host import HostDevice
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.settings import MemorySettings


@pytest.fixture(params=[HostDevice, FakeDevice])
def guarded(request):
    """A manager with guard bands."""
    return ResourceManager(request.param(), settings=MemorySettings(guard=True))


@pytest.fixture(params=[HostDevice, FakeDevice])
def poisoned(request):
    return ResourceManager(request.param(), settings=MemorySettings(poison=True))


def overwrite(address, byte=0):
    """Do what a kernel with a wrong index does."""
    ctypes.memset(address, byte, 1)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_the_pattern_is_nan_in_every_float_dtype(dtype):
    pattern = nan_pattern(1 << 12, np.random.default_rng(0))
    assert np.isnan(pattern.view(dtype).astype(np.float64)).all()
    assert len(np.unique(pattern.view(np.uint16))) > 20


def test_kernels_that_stay_inside_pass(guarded):
    tensor = guarded.empty((5, 7), np.float16)
    tensor.copy_(np.ones((5, 7), np.float16))
    guarded.check_guards("well-behaved kernel")
    assert (tensor.to_numpy() == 1).all()


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (-1, "1 bytes before it (the nearest 1 bytes ahead)"),
        (-GUARD_BYTES, f"1 bytes before it (the nearest {GUARD_BYTES} bytes ahead)"),
        (70, "1 bytes behind it (the nearest 0 bytes past its end)"),
        (70 + GUARD_BYTES - 1, f"1 bytes behind it (the nearest {GUARD_BYTES - 1} bytes past its end)"),
    ],
)
def test_an_overrun_is_found_and_the_kernel_named(guarded, offset, message):
    others = guarded.zeros(3), guarded.zeros(0)
    tensor = guarded.empty((5, 7), np.float16)
    overwrite(tensor.data_ptr + offset)
    with pytest.raises(GuardBandError) as caught:
        guarded.check_guards("sloppy_kernel")
    text = str(caught.value)
    assert text.startswith("sloppy_kernel wrote outside")
    assert message in text
    assert "70 bytes, float16[5, 7], made at " + __file__ in text
    # The next kernel is not blamed for it.
    guarded.check_guards("next_kernel")
    assert not any(other.closed for other in others)


def test_an_output_of_no_elements_is_guarded_too(guarded):
    tensor = guarded.empty((0, 4))
    overwrite(tensor.data_ptr)
    with pytest.raises(GuardBandError, match=r"kernel wrote outside.*float32\[0, 4\]"):
        guarded.check_guards("kernel")


def test_dead_buffers_are_no_longer_compared(guarded):
    tensor = guarded.empty(8)
    overwrite(tensor.data_ptr - 1)
    tensor.close()
    guarded.check_guards("kernel")
    guarded.assert_no_leak()


def test_buffers_stay_aligned_and_bands_count_as_reserved(guarded):
    tensor = guarded.empty(1000, np.uint8)
    assert tensor.data_ptr % 256 == 0
    stats = guarded.memory_stats()
    assert stats.held == 1000
    assert stats.reserved >= 1000 + 2 * GUARD_BYTES


def test_the_safe_size_leaves_room_for_the_bands():
    manager = ResourceManager(FakeDevice(), settings=MemorySettings(guard=True))
    safe = manager.safe_alloc_size()
    assert manager.can_allocate(safe)
    assert not manager.can_allocate(safe + 1)
    assert manager.empty(safe, np.uint8, uninitialized=True).nbytes == safe


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_poison_shows_an_element_that_a_kernel_left_out(poisoned, dtype):
    for uninitialized in (False, True):
        assert np.isnan(poisoned.empty(100, dtype, uninitialized).to_numpy().astype(np.float32)).all()
    assert not poisoned.zeros(100, dtype).to_numpy().astype(np.float32).any()


def test_poison_shows_a_read_after_the_end_of_a_buffers_life(poisoned):
    tensor = poisoned.zeros(256)
    address = tensor.data_ptr
    tensor.close()
    poisoned.memory_stats()
    assert ctypes.string_at(address, 1024) == b"\xff" * 1024
