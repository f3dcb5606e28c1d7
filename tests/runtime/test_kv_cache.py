"""Blocks of a key-value cache: counted, shared, copied when written to, given back."""

from __future__ import annotations

import weakref

import ml_dtypes
import numpy as np
import pytest

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, ClosedError, OutOfBlocksError
from rocmkern.runtime.kv_cache import KVCache
from rocmkern.runtime.manager import DeviceTensor


@pytest.fixture
def cache():
    return KVCache(4, 16, num_kv_heads=1, head_dim=2)


def state(cache):
    sequences = {s: (cache.blocks(s), cache.length(s)) for s in cache.sequences}
    return sequences, cache.free_blocks, [cache.reference_count(b) for b in range(cache.num_blocks)]


def test_an_empty_table(cache):
    assert cache.block_table().shape == (0, 0) and cache.context_lens().shape == (0,)
    sequence = cache.add()
    assert cache.block_table().shape == (1, 0) and cache.context_lens().tolist() == [0]
    assert cache.slots(sequence).size == 0 and cache.append(sequence, 0).size == 0
    assert cache.free_blocks == 4


def test_twenty_tokens_in_blocks_of_16_use_2(cache):
    sequence = cache.add()
    slots = cache.append(sequence, 20)
    assert cache.free_blocks == 2 and cache.blocks(sequence) == (0, 1)
    assert slots.dtype == np.int32 and slots.tolist() == list(range(20))
    assert cache.append(sequence, 12).tolist() == list(range(20, 32)) and cache.free_blocks == 2
    assert cache.append(sequence).tolist() == [32] and cache.free_blocks == 1


def test_tables_of_several_sequences_are_filled_up(cache):
    first, second = cache.add(), cache.add()
    cache.append(first, 17)
    cache.append(second, 3)
    np.testing.assert_array_equal(cache.block_table(), [[0, 1], [2, -1]])
    np.testing.assert_array_equal(cache.block_table([second]), [[2]])
    assert cache.context_lens([second, first]).tolist() == [3, 17]
    assert cache.block_table().dtype == cache.context_lens().dtype == np.int32


def test_a_fork_shares_blocks_until_one_is_written_to(cache):
    first = cache.add()
    cache.append(first, 20)
    cache.keys[0, :2] = np.arange(64).reshape(2, 16, 1, 2)
    second = cache.fork(first)
    assert cache.blocks(second) == (0, 1) and cache.free_blocks == 2
    assert [cache.reference_count(b) for b in range(4)] == [2, 2, 0, 0]
    assert cache.append(second).tolist() == [2 * 16 + 4]
    assert cache.blocks(second) == (0, 2) and cache.blocks(first) == (0, 1)
    np.testing.assert_array_equal(cache.keys[0, 2], cache.keys[0, 1])
    assert [cache.reference_count(b) for b in range(4)] == [2, 1, 1, 0]
    # The last block is the first one's own again.
    assert cache.append(first).tolist() == [16 + 4] and cache.blocks(first) == (0, 1)


@pytest.fixture(params=["host", "device"])
def written(request, manager):
    """A cache of two layers with keys and values of different lengths, in which every number is another one."""
    cache = KVCache(
        4, 4, 2, 3, value_dim=5, num_layers=2, dtype=np.float32, manager=manager if request.param == "device" else None
    )
    for start, array in ((0, cache.keys), (10_000, cache.values)):
        numbers = np.arange(start, start + np.prod(array.shape), dtype=np.float32).reshape(array.shape)
        if request.param == "device":
            array.copy_(numbers)
        else:
            array[...] = numbers
    with cache:
        yield cache


def contents(cache):
    return [np.array(x if isinstance(x, np.ndarray) else x.to_numpy()) for x in (cache.keys, cache.values)]


@pytest.mark.parametrize("writer", ["fork", "origin"])
def test_who_writes_to_a_shared_block_gets_a_copy_of_its_keys_and_values_in_every_layer(written, writer):
    first = written.add()
    written.append(first, 6)
    second, before = written.fork(first), contents(written)
    one, other = (second, first) if writer == "fork" else (first, second)
    assert written.append(one).tolist() == [2 * 4 + 2]
    assert written.blocks(one) == (0, 2) and written.blocks(other) == (0, 1)
    for now, then in zip(contents(written), before, strict=True):
        np.testing.assert_array_equal(now[:, 2], then[:, 1])
        np.testing.assert_array_equal(now[:, [0, 1, 3]], then[:, [0, 1, 3]])


def test_of_three_that_share_a_block_the_last_one_keeps_it(written):
    first = written.add()
    written.append(first, 6)
    others = [written.fork(first), written.fork(first)]
    assert [written.reference_count(b) for b in range(4)] == [3, 3, 0, 0]
    taken = []
    for sequence, counts in zip([*others, first], ([3, 2, 1, 0], [3, 1, 1, 1], [3, 1, 1, 1]), strict=True):
        written.append(sequence)
        taken.append(written.blocks(sequence)[1])
        assert [written.reference_count(b) for b in range(4)] == counts
    assert taken == [2, 3, 1] and written.free_blocks == 0
    written.free(others[0])
    assert written.free_blocks == 1 and [written.reference_count(b) for b in range(4)] == [2, 1, 0, 1]


def test_an_append_of_nothing_copies_and_takes_nothing(written):
    first = written.add()
    written.append(first, 6)
    second = written.fork(first)
    before, numbers = state(written), contents(written)
    assert written.append(second, 0).size == 0
    assert state(written) == before
    for now, then in zip(contents(written), numbers, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_copy_that_fails_leaves_the_sequences_as_they_were(written, monkeypatch):
    first = written.add()
    written.append(first, 6)
    second = written.fork(first)
    before, numbers = state(written), contents(written)
    monkeypatch.setattr(written, "_values", object())
    with pytest.raises(AttributeError):
        written.append(second, 3)
    monkeypatch.undo()
    assert state(written) == before
    for now, then in zip(contents(written), numbers, strict=True):
        np.testing.assert_array_equal(now[:, :2], then[:, :2])


def test_a_full_shared_block_is_not_copied(cache):
    first = cache.add()
    cache.append(first, 16)
    second = cache.fork(first)
    cache.append(second)
    assert cache.blocks(first) == (0,) and cache.blocks(second) == (0, 1) and cache.free_blocks == 2


def test_a_block_returns_when_the_last_sequence_goes(cache):
    first = cache.add()
    cache.append(first, 20)
    second = cache.fork(first)
    cache.free(first)
    assert cache.free_blocks == 2 and cache.sequences == (second,)
    cache.free(second)
    assert cache.free_blocks == 4
    with pytest.raises(ArgumentError, match="sequence: got 0"):
        cache.free(first)


@pytest.mark.parametrize("tokens", [13, 45, 1000])
def test_out_of_blocks_leaves_all_unchanged(cache, tokens):
    first = cache.add()
    cache.append(first, 20)
    second = cache.fork(first)
    cache.append(cache.add(), 17)
    cache.keys[...] = 7
    before = state(cache)
    with pytest.raises(OutOfBlocksError, match=r"blocks are needed and 0 of 4 are free") as error:
        cache.append(second, tokens)
    assert state(cache) == before and (cache.keys == 7).all()
    assert (error.value.free, error.value.total) == (0, 4) and isinstance(error.value, MemoryError)


def test_copy_on_write_counts_as_a_block():
    cache = KVCache(2, 4, num_kv_heads=1, head_dim=2)
    first = cache.add()
    cache.append(first, 6)
    second = cache.fork(first)
    with pytest.raises(OutOfBlocksError, match="1 blocks are needed"):
        cache.append(second)
    cache.free(first)
    assert cache.append(second).tolist() == [6]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, ml_dtypes.float8_e4m3fn])
def test_blocks_on_a_device(manager, dtype):
    with KVCache(3, 4, 2, 8, value_dim=6, num_layers=2, dtype=dtype, manager=manager) as cache:
        assert isinstance(cache.keys, DeviceTensor) and cache.keys.shape == (2, 3, 4, 2, 8)
        assert cache.values.shape == (2, 3, 4, 2, 6) and cache.values.dtype == dtype
        first = cache.add()
        cache.append(first, 2)
        numbers = np.arange(64).reshape(4, 2, 8).astype(dtype)
        cache.keys[1, 0].copy_(numbers)
        second = cache.fork(first)
        cache.append(second)
        assert cache.blocks(second) == (1,)
        np.testing.assert_array_equal(cache.keys[1, 1].to_numpy(), numbers)
        assert manager.live_buffers()
    assert not manager.live_buffers()


def test_a_refused_allocation_leaves_nothing(fake_manager):
    with pytest.raises(MemoryError):
        KVCache(10, 16, 8, 128 * 1024, value_dim=1 << 20, manager=fake_manager)
    assert not fake_manager.live_buffers()


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("num_blocks", -1, ArgumentError),
        ("block_size", 0, ArgumentError),
        ("num_kv_heads", 1.5, ArgumentTypeError),
        ("head_dim", True, ArgumentTypeError),
        ("num_layers", 0, ArgumentError),
        ("dtype", "nope", ArgumentTypeError),
        ("dtype", object, ArgumentTypeError),
        ("dtype", np.int32, ArgumentTypeError),
    ],
)
def test_bad_sizes_are_refused_by_name(argument, value, error):
    sizes = {"num_blocks": 2, "block_size": 4, "num_kv_heads": 1, "head_dim": 2} | {argument: value}
    with pytest.raises(error) as caught:
        KVCache(**sizes)
    assert caught.value.argument == argument


def test_an_unknown_sequence_is_told_which_there_are(cache):
    with pytest.raises(ArgumentError, match=r"sequence: got 0; allowed: a number that add\(\) or fork\(\) returned"):
        cache.append(0)
    first, _, third = cache.add(), cache.add(), cache.add()
    cache.free(1)
    with pytest.raises(ArgumentError, match=rf"sequence: got 1; allowed: one of \[{first}, {third}\]"):
        cache.append(1)


def test_bad_arguments_of_methods(cache):
    sequence = cache.add()
    for call, argument in (
        (lambda: cache.append(sequence, -1), "tokens"),
        (lambda: cache.append(99), "sequence"),
        (lambda: cache.fork(99), "sequence"),
        (lambda: cache.block_table([sequence, 99]), "sequences"),
        (lambda: cache.reference_count(4), "block"),
        (lambda: cache.slots(sequence, 0, 1), "stop"),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert caught.value.argument == argument
    for call, argument in (
        (lambda: cache.append([1]), "sequence"),
        (lambda: cache.block_table(5), "sequences"),
        (lambda: cache.context_lens([[0]]), "sequences"),
        (lambda: cache.reference_count("a"), "block"),
        (lambda: cache.slots(sequence, 0.0, 2), "start"),
    ):
        with pytest.raises(ArgumentTypeError) as caught:
            call()
        assert caught.value.argument == argument


def said(call):
    with pytest.raises(ArgumentError) as caught:
        call()
    return str(caught.value)


def test_messages_name_what_is_allowed(cache):
    sequence = cache.add()
    cache.append(sequence, 5)
    assert said(lambda: cache.reference_count(4)) == "block: got 4; allowed: a block from 0 to 3"
    assert said(lambda: cache.reference_count(-1)) == "block: got -1; allowed: an integer of at least 0"
    assert said(lambda: cache.slots(sequence, 2, 6)) == "stop: got tokens 2 to 6; allowed: tokens within 0 to 5"
    assert said(lambda: cache.slots(sequence, 3, 2)) == "stop: got tokens 3 to 2; allowed: tokens within 0 to 5"
    assert said(lambda: cache.slots(sequence, 6)) == "stop: got tokens 6 to 5; allowed: tokens within 0 to 5"
    assert said(lambda: cache.append(sequence, -1)) == "tokens: got -1; allowed: an integer of at least 0"
    assert said(lambda: cache.append([1])) == "sequence: got [1]; allowed: an integer of at least 0"
    assert said(lambda: cache.block_table(5)) == "sequences: got 5; allowed: numbers of sequences, or None for all"
    assert [cache.reference_count(block) for block in range(4)].count(1) == 1
    assert len(cache.slots(sequence, 5, 5)) == 0 and len(cache.slots(sequence, 0, 5)) == 5


def test_slots_are_those_of_the_blocks(cache):
    first, second = cache.add(), cache.add()
    for tokens in (10, 7, 20):
        cache.append(first, tokens)
        cache.append(second, 1)
    places = [16 * block + row for block in cache.blocks(first) for row in range(16)][:37]
    assert cache.slots(first).tolist() == places and cache.slots(first).dtype == np.int32
    for start, stop in ((0, 1), (15, 17), (16, 32), (36, 37), (31, 37)):
        assert cache.slots(first, start, stop).tolist() == places[start:stop]
    assert cache.slots(first, 33).tolist() == places[33:]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 0, 1, 1), "block_size: got 0; allowed: an integer of at least 1"),
        ((-1, 1, 1, 1), "num_blocks: got -1; allowed: an integer of at least 0"),
        ((2**31 + 1, 1, 1, 1),
         f"num_blocks: got {2**31 + 1}; allowed: at most {2**31} blocks of 1 tokens: slots are int32"),
        ((2**23 + 1, 256, 1, 1),
         f"num_blocks: got {2**23 + 1}; allowed: at most {2**23} blocks of 256 tokens: slots are int32"),
        ((2, 1, 2**30, 2**30),
         f"head_dim: got {2**61} elements in all; allowed: less than 2 ** 63 bytes: smaller arguments"),
        ((1, 1, 1, 0), "head_dim: got 0; allowed: an integer of at least 1"),
        ((1, 1, 0, 1), "num_kv_heads: got 0; allowed: an integer of at least 1"),
    ],
)  # fmt: skip
def test_sizes_beyond_a_limit_are_told_it(sizes, message, monkeypatch):
    monkeypatch.setattr(np, "zeros", lambda *_: pytest.fail("memory was taken"))
    assert said(lambda: KVCache(*sizes, dtype=np.float32)) == message


@pytest.mark.parametrize("sizes", [(0, 1, 1, 1), (1, 256, 1, 1), (1, 1, 2**30, 2**31 - 1)])
def test_sizes_at_their_limits(sizes, monkeypatch):
    made, none = [], np.zeros(0, np.float32)
    monkeypatch.setattr(np, "zeros", lambda shape, dtype: made.append((shape, dtype)) or none)
    KVCache(*sizes, dtype=np.float32)
    assert made == [((1, *sizes), np.float32)] * 2


@pytest.mark.parametrize("given", [3, np, "host"])
def test_a_manager_that_is_none_is_refused(given):
    with pytest.raises(
        ArgumentTypeError, match=r"manager: got .*; allowed: None, for host memory, or a ResourceManager"
    ):
        KVCache(1, 1, 1, 1, manager=given)


@pytest.mark.parametrize(("argument", "sizes"), [
    ("num_blocks", (2**31 + 1, 1, 1, 1)),
    ("num_blocks", (2**23 + 1, 256, 1, 1)),
    ("num_blocks", (2**70, 1, 1, 1)),
    ("head_dim", (2, 1, 2**30, 2**31)),
    ("head_dim", (1, 1, 1, 2**70)),
])  # fmt: skip
def test_more_than_slots_or_addresses_can_count_is_refused_before_memory_is_taken(argument, sizes, monkeypatch):
    monkeypatch.setattr(np, "zeros", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(ArgumentError) as refusal:
        KVCache(*sizes)
    assert refusal.value.argument == argument


@pytest.mark.parametrize("where", ["host", "device"])
def test_nothing_is_possible_after_close(where, fake_manager):
    cache = KVCache(4, 16, 1, 2, manager=fake_manager if where == "device" else None)
    keys = cache.keys
    sequence = cache.add()
    cache.append(sequence, 20)
    cache.close()
    cache.close()
    calls = (
        cache.add, cache.block_table, cache.context_lens, cache.__enter__, lambda: cache.keys, lambda: cache.values,
        lambda: cache.append(sequence), lambda: cache.fork(sequence), lambda: cache.free(sequence),
        lambda: cache.slots(sequence), lambda: cache.length(sequence), lambda: cache.blocks(sequence),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ClosedError, match="KVCache was closed"):
            call()
    assert cache.sequences == () and cache.free_blocks == 4
    assert where == "host" or keys.closed


def test_close_lets_go_of_host_memory():
    cache = KVCache(4, 16, 1, 2)
    held = weakref.ref(cache.keys), weakref.ref(cache.values)
    cache.close()
    assert [array() for array in held] == [None, None]
