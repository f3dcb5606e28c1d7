"""Page-locked blocks are not lent twice at once, and copies of any size go through them."""

from __future__ import annotations

import numpy as np
import pytest

from rocmkern.runtime import transfer
from rocmkern.runtime.pinned import BLOCK_BYTES, PinnedBuffers


def never():
    raise AssertionError("waited")


def test_a_block_is_lent_again_once_its_copies_are_done(fake):
    buffers, stream = PinnedBuffers(fake), fake.create_stream()
    with buffers.lend(100, stream, never) as first, buffers.lend(100, stream, never) as second:
        assert first != second
        fake.stall(stream)
        fake.submit(stream)
    with buffers.lend(100, stream, never) as third:
        assert third not in (first, second)
    fake.resume(stream)
    with buffers.lend(100, stream, never) as again:
        assert again in (first, second)
    # One event is kept for each idle block that was lent.
    assert fake.live_events == 3


def test_the_number_of_blocks_is_bounded(fake):
    buffers, stream, waits = PinnedBuffers(fake), fake.create_stream(), []

    def wait():
        waits.append(len(lent))
        fake.resume(stream)

    lent = set()
    fake.stall(stream)
    for _ in range(20):
        fake.submit(stream)
        with buffers.lend(BLOCK_BYTES, stream, wait) as block:
            lent.add(block)
    assert waits == [4]
    assert len(lent) == 4


def test_a_failing_copy_gives_its_block_back(fake):
    buffers, stream = PinnedBuffers(fake), fake.create_stream()
    for _ in range(3):
        with pytest.raises(OSError, match="copy"), buffers.lend(100, stream, never) as block:
            raise OSError("copy")
    with buffers.lend(100, stream, never) as again:
        assert again == block


def test_a_block_that_may_still_be_in_use_is_not_lent_again(fake, monkeypatch):
    buffers, stream = PinnedBuffers(fake), fake.create_stream()
    monkeypatch.setattr(fake, "record", lambda stream: 1 // 0)
    with pytest.raises(ZeroDivisionError), buffers.lend(100, stream, never) as lost:
        fake.submit(stream)
    monkeypatch.undo()
    with buffers.lend(100, stream, never) as other:
        assert other != lost


def test_plain_memory_serves_where_the_driver_has_none(fake, monkeypatch):
    def refuse(nbytes):
        raise MemoryError

    monkeypatch.setattr(fake, "allocate_pinned", refuse)
    with PinnedBuffers(fake).lend(100, 0, never) as block:
        assert block


@pytest.mark.parametrize("block_bytes", [1, 7, 24, 1000])
def test_copies_are_divided_into_blocks(fake_manager, monkeypatch, block_bytes):
    monkeypatch.setattr(transfer, "BLOCK_BYTES", block_bytes)
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    tensor = fake_manager.from_numpy(array)
    np.testing.assert_array_equal(tensor.to_numpy(), array)
    np.testing.assert_array_equal(tensor[:, 1:3, ::-1].to_numpy(), array[:, 1:3, ::-1])
    tensor[:, 1:3].copy_(array[:, :2])
    array[:, 1:3] = array[:, :2].copy()
    np.testing.assert_array_equal(tensor.to_numpy(), array)
