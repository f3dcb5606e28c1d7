"""The device interface on a GPU."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rocmkern.runtime.devices import device_of, gpu_devices, open_device
from rocmkern.runtime.errors import ArgumentError, TargetError

MIB = 1 << 20


@pytest.fixture
def memory(device):
    """64 KiB of raw device memory."""
    address = device.allocate(1 << 16)
    yield address
    device.free(address)


@pytest.fixture(scope="module")
def stream(device):
    return device.create_stream()


def wait(device, stream):
    event = device.record(stream)
    while not device.query(event):
        pass
    device.release_event(event)


def read(device, address, nbytes, stream):
    out = np.empty(nbytes, np.uint8)
    device.copy_to_host(out.ctypes.data, address, nbytes, stream)
    wait(device, stream)
    return out


def test_there_is_one_object_per_card(device):
    info = device.info
    assert info.kind in ("hip", "cuda")
    assert info.total > 0
    assert info.arch.startswith({"hip": "gfx", "cuda": "sm_"}[info.kind])
    for name in (device, info, info.kind, info.index, info.pci_id, info.name):
        assert open_device(name) is device
    assert device_of(info.kind, info.index) is device
    assert info in gpu_devices(info.kind)


def test_a_name_that_no_card_has_lists_the_cards(device):
    with pytest.raises(ArgumentError, match=r"no device.*" + device.info.pci_id):
        open_device("no such card")
    with pytest.raises(TargetError, match="does not know"):
        device_of(device.kind, 99)


def test_free_and_total_say_where_they_come_from(device):
    memory = device.memory_info()
    assert 0 < memory.free.value <= memory.total.value
    assert memory.free.source
    assert memory.total.source


def test_memory_is_aligned_and_a_huge_request_is_a_memory_error(device, memory):
    assert memory % 256 == 0
    with pytest.raises(MemoryError):
        device.allocate(1 << 50)
    address = device.allocate(1000)
    device.free(address)


def test_fills_and_copies(device, memory, stream):
    data = np.random.default_rng(0).integers(0, 256, 1 << 15, np.uint8)
    device.fill(memory, 1 << 16, 0xA5, stream)
    assert (read(device, memory, 1 << 16, stream) == 0xA5).all()
    device.copy_to_device(memory, data.ctypes.data, data.nbytes, stream)
    device.copy_device(memory + data.nbytes, memory, data.nbytes, stream)
    np.testing.assert_array_equal(read(device, memory, 1 << 16, stream), np.tile(data, 2))


def test_page_locked_memory_is_ordinary_host_memory(device, memory, stream):
    import ctypes

    address = device.allocate_pinned(4096)
    assert address
    ctypes.memset(address, 7, 4096)
    device.copy_to_device(memory, address, 4096, stream)
    assert (read(device, memory, 4096, stream) == 7).all()


def test_events_are_used_again(device, stream):
    wait(device, stream)
    before = len(device._idle_events)
    for _ in range(20):
        wait(device, stream)
    assert len(device._idle_events) == before


def test_one_stream_waits_for_another(device, memory, stream):
    other = device.create_stream()
    for value in range(1, 20):
        device.fill(memory, 1 << 16, value, stream)
        event = device.record(stream)
        device.stream_wait(other, event)
        device.release_event(event)
        assert (read(device, memory, 1 << 16, other) == value).all()


def test_default_streams_have_names(device, memory):
    for stream in (0, 1, 2):
        device.fill(memory, 256, stream + 3, stream)
        assert (read(device, memory, 256, stream) == stream + 3).all()
        assert not device.is_capturing(stream)


def test_the_driver_knows_its_addresses(device, memory):
    assert device_of(None, None, memory) is device
    with pytest.raises(TargetError, match="does not know address"):
        device_of(device.kind, None, np.zeros(1).ctypes.data)


def test_threads_need_no_preparation(device, stream):
    results = []

    def work():
        address = device.allocate(4096)
        device.fill(address, 4096, 9, stream)
        results.append(int(read(device, address, 4096, stream).sum()))
        device.free(address)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [9 * 4096] * 4


TWO_CARDS = """
    import sys
    from rocm.bindings import hip
    from rocmkern.runtime.devices import gpu_devices, open_device
    from rocmkern.runtime.manager import ResourceManager
    first, second = (open_device(info) for info in gpu_devices("hip"))
    assert first is not second
    for current in (0, 1):
        hip.hipSetDevice(current)
        for device in (first, second):
            manager = ResourceManager(device)
            before = manager.memory_stats().free
            tensor = manager.zeros(1 << 20)
            assert manager.memory_stats().free == before - (4 << 20), device
            assert not tensor.to_numpy().any()
            tensor.close()
            manager.assert_no_leak()
            assert hip.hipGetDevice()[1] == current
            with device.current():
                assert hip.hipGetDevice()[1] == device.info.index
            assert hip.hipGetDevice()[1] == current
"""


def test_the_current_device_is_left_as_it_was(vgpu, fresh_process):
    fresh_process(TWO_CARDS, VGPU_DEVICES="gfx1100:1GiB,gfx1100:1GiB")


CHOICE = """
    from rocmkern.runtime.devices import open_device
    print(open_device("hip").info.arch, open_device("7900").info.arch, open_device("780M").info.integrated)
"""


@pytest.mark.parametrize("cards", ["gfx1100:20GiB,gfx1103:64GiB", "gfx1103:64GiB,gfx1100:20GiB"])
def test_the_card_is_chosen_by_what_it_is(vgpu, fresh_process, cards):
    assert fresh_process(CHOICE, VGPU_DEVICES=cards).split() == ["gfx1100", "gfx1100", "True"]


def test_a_variable_overrides_the_choice(vgpu, fresh_process):
    code = """
        from rocmkern.runtime.devices import open_device
        from rocmkern.runtime.errors import ArgumentError
        import os
        print(open_device("hip").info.arch)
        os.environ["ROCMKERN_DEVICE"] = "no such card"
        try:
            open_device("hip")
        except ArgumentError as error:
            print(error.argument)
    """
    out = fresh_process(code, VGPU_DEVICES="gfx1100:20GiB,gfx1103:64GiB", ROCMKERN_DEVICE="0000:04:00.0")
    assert out.split() == ["gfx1103", "ROCMKERN_DEVICE"]


def test_no_gpu_means_no_driver(device, monkeypatch):
    monkeypatch.setenv("ROCMKERN_NO_GPU", "1")
    gpu_devices.cache_clear()
    with pytest.raises(TargetError, match="ROCMKERN_NO_GPU=1"):
        open_device(device.kind)
    monkeypatch.delenv("ROCMKERN_NO_GPU")
    assert open_device(device.kind) is device
