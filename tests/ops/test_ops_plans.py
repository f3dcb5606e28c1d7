"""Plans: a call that is like an earlier one does what the ordinary way does, and nothing else goes by a plan."""

from __future__ import annotations

import gc
import inspect
import os
import threading
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.calls import launch as _launch
from rocmkern.calls import plan as _plan
from rocmkern.calls.arguments import FLOATS
from rocmkern.calls.replay import HostPlan
from rocmkern.matrix import load_cases, make_call
from rocmkern.matrix.inputs import output_dtype
from rocmkern.matrix.registry import resolve
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, ClosedError, IndexOutOfRangeError, TargetError
from rocmkern.runtime.manager import DeviceTensor, ResourceManager, default_manager
from rocmkern.runtime.settings import MemorySettings

CASES = [
    case
    for case in load_cases(Path(__file__).parents[2] / "matrix.yaml")[1]
    if case.category == "quick" and case.facts.expect_error is None and case.operation.out
]


pytestmark = pytest.mark.usefixtures("no_plans")


@pytest.fixture
def planned(gpu):
    """Call an operation and say whether it went by a plan: ``planned(operation, *args, **kwargs)``."""

    def call(operation, *args, **kwargs):
        ordinary, ran = gpu.ordinary, len(gpu.ran)
        call.result = operation(*args, **kwargs)
        assert len(gpu.ran) > ran, "nothing was launched"
        return gpu.ordinary == ordinary

    yield call
    call.result = None


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# What is planned


def test_the_second_call_with_other_arrays_gives_what_the_ordinary_way_gives(manager, planned):
    for seed in range(3):
        q, k, v = (normal(1, 4, 20, 8, seed=seed + i) for i in (0, 10, 20))
        tensors = [manager.from_numpy(x) for x in (q, k, v)]
        out, other = manager.zeros(q.shape), manager.zeros(q.shape)
        assert planned(rocmkern.flash_attention, *tensors, causal=True, out=out) is (seed > 0)
        assert planned.result is out
        rocmkern.flash_attention.__wrapped__(*tensors, causal=True, out=other)
        np.testing.assert_array_equal(out.to_numpy(), other.to_numpy())
        exact = reference.flash_attention(q, k, v, causal=True)
        np.testing.assert_allclose(out.to_numpy(), exact, atol=1e-5)


def test_an_error_of_a_first_call_stands_alone(gpu, manager):
    """Nothing of how plans are looked up is shown before it."""
    with manager.from_numpy(normal(3, 40)) as x:
        try:
            rocmkern.rms_norm(x, x, eps=1e-6)
        except ArgumentError as error:
            assert error.__context__ is None and error.__cause__ is None
        else:
            pytest.fail("a weight of two axes was accepted")


def test_new_results_are_the_callers_own(manager, planned):
    x = manager.from_numpy(normal(3, 40))
    first = rocmkern.softmax(x)
    assert planned(rocmkern.softmax, x)
    second = planned.result
    assert isinstance(second, DeviceTensor) and second is not first and second.data_ptr != first.data_ptr
    np.testing.assert_array_equal(second.to_numpy(), first.to_numpy())
    first.close()


def test_a_tuple_of_results_and_outputs(manager, planned):
    q = manager.from_numpy(normal(1, 2, 9, 8))
    out, lse = rocmkern.flash_attention(q, q, q, return_lse=True)
    assert planned(rocmkern.flash_attention, q, q, q, return_lse=True)
    again, again_lse = planned.result
    np.testing.assert_array_equal(again.to_numpy(), out.to_numpy())
    np.testing.assert_array_equal(again_lse.to_numpy(), lse.to_numpy())
    given = manager.zeros(out.shape), manager.zeros(lse.shape)
    for expected in (False, True):
        assert planned(rocmkern.flash_attention, q, q, q, return_lse=True, out=given) is expected
        assert planned.result[0] is given[0] and planned.result[1] is given[1]
        np.testing.assert_array_equal(given[1].to_numpy(), lse.to_numpy())


def test_several_launches_and_inner_results(device, manager, planned):
    q, k = manager.from_numpy(normal(1, 2, 1, 8)), manager.from_numpy(normal(1, 2, 40, 8, seed=1))
    sinks = manager.from_numpy(normal(2, dtype=np.float16))
    out = manager.zeros(q.shape)
    options = dict(num_splits=3, sinks=sinks, out=out)
    rocmkern.decode_attention(q, k, k, **options)
    exact, live = out.to_numpy(), len(manager.live_buffers())
    for _ in range(3):
        out.copy_(np.zeros(out.shape, np.float32))
        allocations, reserved = device.allocations, manager.memory_stats().reserved
        assert planned(rocmkern.decode_attention, q, k, k, **options)
        np.testing.assert_array_equal(out.to_numpy(), exact)
        assert len(manager.live_buffers()) == live
    assert (device.allocations, manager.memory_stats().reserved) == (allocations, reserved)
    device.stall(manager.stream)  # nor is the memory handed to others before the work on it is done
    rocmkern.decode_attention(q, k, k, **options)
    other = manager.empty(500, uninitialized=True, stream=0x99)
    device.resume(manager.stream)
    rocmkern.decode_attention(q, k, k, **options)
    np.testing.assert_array_equal(out.to_numpy(), exact)
    other.close()


def test_views_at_any_offset(manager, planned):
    x = manager.from_numpy(normal(8, 4, 64))
    out = manager.zeros((8, 4, 64))
    assert not planned(rocmkern.scale, x[1, :, ::-2], 2.0, out=out[0, :, ::2])
    assert planned(rocmkern.scale, x[5, :, ::-2], 2.0, out=out[7, :, ::2])
    np.testing.assert_array_equal(out.to_numpy()[7, :, ::2], 2 * x.to_numpy()[5, :, ::-2])


# What is another call


@pytest.mark.parametrize(
    "change",
    [
        dict(shape=(3, 32)),
        dict(dtype=np.float16),
        dict(dtype=ml_dtypes.bfloat16),
        dict(view=lambda x: x[:, ::2], shape=(2, 64)),
        dict(view=lambda x: x[:, 1:], shape=(2, 33)),
        dict(factor=3.0),
        dict(factor=-0.0),
        dict(stream=0x55),
        dict(in_place=True),
    ],
)
def test_whatever_changes_the_work_is_no_hit(manager, planned, change):
    def call(shape=(2, 32), dtype=np.float32, view=lambda x: x, factor=0.0, stream=None, in_place=False):
        values = normal(*shape, dtype=dtype)
        x = view(manager.from_numpy(values))
        out = x if in_place else manager.zeros(x.shape, dtype)
        hit = planned(rocmkern.scale, x, factor, out=out, stream=stream)
        expected = (view(values).astype(np.float32) * np.float32(factor)).astype(dtype)
        np.testing.assert_array_equal(out.to_numpy().view(np.uint8), expected.view(np.uint8))
        return hit

    assert [call(), call(), call(**change), call(**change), call()] == [False, True, False, True, True]


def test_equal_values_of_other_types_are_not_the_same(manager, planned):
    q = manager.from_numpy(normal(1, 2, 9, 8))
    rocmkern.flash_attention(q, q, q, causal=True)
    assert planned(rocmkern.flash_attention, q, q, q, causal=True)
    with pytest.raises(ArgumentError, match="causal"):
        rocmkern.flash_attention(q, q, q, causal=1)
    assert not planned(rocmkern.flash_attention, q, q, q, causal=np.True_)
    assert planned(rocmkern.flash_attention, q, q, q, causal=np.True_)


def test_alignment_is_part_of_the_key(manager, planned):
    x, out = manager.from_numpy(normal(100)), manager.zeros(32)
    assert not planned(rocmkern.scale, x[:32], 2.0, out=out)
    assert planned(rocmkern.scale, x[4:36], 2.0, out=out)
    assert not planned(rocmkern.scale, x[1:33], 2.0, out=out)


def test_which_arguments_are_one_array_is_part_of_the_key(manager, planned):
    q, k, v = (manager.from_numpy(normal(1, 2, 9, 8, seed=i)) for i in range(3))
    out = manager.zeros(q.shape)
    assert not planned(rocmkern.flash_attention, q, k, k, out=out)
    assert not planned(rocmkern.flash_attention, q, k, v, out=out)
    exact = reference.flash_attention(q.to_numpy(), k.to_numpy(), v.to_numpy())
    for _ in range(2):
        np.testing.assert_allclose(out.to_numpy(), exact, atol=1e-5)
        assert planned(rocmkern.flash_attention, q, k, v, out=out)


# What has no plan


def test_overlap_is_refused_whatever_was_planned(manager, planned):
    x = manager.from_numpy(normal(4, 32))
    rocmkern.softmax(x[:2], out=x[2:])
    assert planned(rocmkern.softmax, x[:2], out=x[2:])
    before = x.to_numpy()
    for out in (x[1:3], x[:2]):
        with pytest.raises(ArgumentError, match="overlaps with x"):
            rocmkern.softmax(x[:2], out=out)
    np.testing.assert_array_equal(x.to_numpy(), before)
    rocmkern.scale(x[:2], 2.0, out=x[:2])
    with pytest.raises(ArgumentError, match="overlaps with x"):
        rocmkern.scale(x[:2], 2.0, out=x[1:3])


def test_interleaved_arrays_go_the_ordinary_way(manager, planned):
    x = manager.from_numpy(normal(4, 64))
    for _ in range(3):
        assert not planned(rocmkern.softmax, x[:, ::2], out=x[:, 1::2])
    np.testing.assert_allclose(x.to_numpy()[:, 1::2], reference.softmax(x.to_numpy()[:, ::2]), rtol=1e-5)


def test_lengths_on_the_host_have_no_plan_and_on_the_device_they_have(manager, planned):
    q = manager.from_numpy(normal(9, 2, 8))
    for lengths in ([0, 4, 9], [0, 2, 9], [0, 9, 9]):
        cu = np.int32(lengths)
        assert not planned(rocmkern.flash_attention, q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
        exact = reference.flash_attention(*[q.to_numpy()] * 3, cu_seqlens_q=cu, cu_seqlens_k=cu)
        np.testing.assert_allclose(planned.result.to_numpy(), exact, atol=1e-5)
    for index, lengths in enumerate(([0, 4, 9], [0, 2, 9])):
        cu = manager.from_numpy(np.int32(lengths))
        assert planned(rocmkern.flash_attention, q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu) is (index > 0)
        exact = reference.flash_attention(
            *[q.to_numpy()] * 3, cu_seqlens_q=np.int32(lengths), cu_seqlens_k=np.int32(lengths)
        )
        np.testing.assert_allclose(planned.result.to_numpy(), exact, atol=1e-5)


def test_copies_have_no_plan(manager, gpu):
    q, k = manager.from_numpy(normal(1, 2, 3, 8)), manager.zeros((1, 2, 0, 8))
    for _ in range(3):
        out = manager.from_numpy(normal(1, 2, 3, 8))
        rocmkern.flash_attention(q, k, k, out=out)
        assert not out.to_numpy().any()
    assert list(rocmkern.flash_attention.plans._young.values()) == [None]


def test_an_index_outside_is_found_by_a_plan_too(device, manager, planned):
    table, good = manager.from_numpy(normal(5, 8)), manager.from_numpy(np.int32([0, 4]))
    bad, out = manager.from_numpy(np.int32([0, 5])), manager.zeros((2, 8))
    for index, expected in enumerate((False, True)):
        assert planned(rocmkern.embedding, table, (good, bad)[index], out=out) is expected
    with pytest.raises(IndexOutOfRangeError, match="embedding: indices"):
        default_manager(device).wait()
    for _ in range(2):  # a call that waits does so each time
        with pytest.raises(IndexOutOfRangeError, match="embedding: indices"):
            rocmkern.embedding(table, bad, check=True, out=out)
        assert not planned(rocmkern.embedding, table, good, check=True, out=out)


def test_host_arrays_have_a_plan_on_the_cpu(no_plans):
    with rocmkern.use("cpu"):
        for _ in range(3):
            x = normal(3, 8)
            np.testing.assert_array_equal(rocmkern.scale(x, 2.0), 2 * x)
            out = np.empty_like(x)
            assert rocmkern.scale(x, 2.0, out=out) is out
            np.testing.assert_array_equal(out, 2 * x)
        for view in (x[:, ::-1], x.T, x[1:]) * 2:
            np.testing.assert_array_equal(rocmkern.scale(view, 2.0), 2 * view)
        x = normal(12)
        rocmkern.scale(x[:6], 2.0, out=x[6:])
        with pytest.raises(ArgumentError, match="overlaps with x"):
            rocmkern.scale(x[:6], 2.0, out=x[5:11])
        x.flags.writeable = False
        with pytest.raises(ArgumentError, match="read-only"):
            rocmkern.scale(x[:6], 2.0, out=x[6:])
    assert all(isinstance(plan, HostPlan) for plan in rocmkern.scale.plans._young.values())


@pytest.mark.parametrize(
    ("operation", "option"),
    [
        (rocmkern.repeat_kv, lambda n: {"n_rep": np.array(n)}),
        (rocmkern.transpose, lambda n: {"axes": np.roll(np.arange(4), n)}),
        (rocmkern.transpose, lambda n: {"axes": tuple(map(np.array, np.roll(np.arange(4), n)))}),
        (
            lambda x, **window: rocmkern.flash_attention(x, x, x, causal=True, **window),
            lambda n: {"window": (np.array(n), 0)},
        ),
    ],
    ids=["n_rep", "axes", "tuple", "window"],
)
def test_arrays_that_are_taken_for_numbers_have_no_plan(no_plans, operation, option):
    x = normal(3, 3, 3, 3)
    with rocmkern.use("cpu"):
        results = [[operation(x, **option(n)) for n in (1, 2, 1)] for _ in range(2)]
        _plan.forget_all()
        other = operation(x, **option(2))
    for first, second, third in results:
        np.testing.assert_array_equal(second, other)
        np.testing.assert_array_equal(third, first)
        assert first.shape != second.shape or (first != second).any()


def test_the_result_is_the_object_that_was_given(no_plans):
    x, up = normal(3, 8), normal(3, 8)
    with rocmkern.use("cpu"):
        for out in (x, x[:], x, x[:]):
            assert rocmkern.swiglu(x, up, out=out) is out
            assert rocmkern.clamp(x, min=0.5, out=out) is out


def test_inner_results_of_a_plan_on_the_cpu(no_plans):
    q, k, v = normal(1, 2, 1, 16), normal(1, 1, 512, 16), normal(1, 1, 512, 16)
    with rocmkern.use("cpu"):
        first = rocmkern.decode_attention(q, k, v, num_splits=4)
        for _ in range(2):
            np.testing.assert_array_equal(rocmkern.decode_attention(q.copy(), k.copy(), v.copy(), num_splits=4), first)
    (plan,) = rocmkern.decode_attention.plans._young.values()
    assert isinstance(plan, HostPlan)


def test_host_arrays_have_no_plan_in_the_interpreter(no_plans):
    with rocmkern.use("python"):
        for factor in (2.0, 3.0):
            np.testing.assert_array_equal(rocmkern.scale(np.ones(5, np.float32), factor), np.full(5, factor))
        with default_manager("host").from_numpy(np.ones(5, np.float32)) as x:
            assert (rocmkern.scale(x, 2.0).to_numpy() == 2).all()
    assert not any(rocmkern.scale.plans._young.values())


def test_a_closed_tensor_is_an_error(manager, planned):
    x, out = manager.from_numpy(normal(2, 8)), manager.zeros((2, 8))
    rocmkern.softmax(x, out=out)
    assert planned(rocmkern.softmax, x, out=out)
    for tensor in (x, out):
        tensor.close()
        with pytest.raises(ClosedError):
            rocmkern.softmax(x, out=out)


def test_errors_are_those_of_the_ordinary_way(manager, gpu):
    x = manager.from_numpy(normal(2, 8))
    for _ in range(3):
        with pytest.raises(ArgumentTypeError, match="out"):
            rocmkern.softmax(x, out=manager.zeros((2, 8), np.float16))
    rocmkern.softmax(x).close()
    gpu.fail = True
    live = len(manager.live_buffers())
    for _ in range(2):
        with pytest.raises(TargetError, match="kernel softmax"):
            rocmkern.softmax(x)
    gc.collect()
    assert len(manager.live_buffers()) == live


def test_after_a_launch_that_failed_the_next_call_has_its_own_addresses(gpu, manager):
    q, other = (manager.from_numpy(normal(1, 2, 20, 8, seed=i)) for i in range(2))
    k, out, other_out = manager.from_numpy(normal(1, 2, 40, 8, seed=2)), manager.zeros(q.shape), manager.zeros(q.shape)
    for _ in range(2):
        rocmkern.decode_attention(q, k, k, num_splits=3, out=out)
    gpu.fail = True  # from the first of two launches on
    with pytest.raises(TargetError, match="kernel flash_attention"):
        rocmkern.decode_attention(other, k, k, num_splits=3, out=other_out)
    gpu.fail = False
    rocmkern.decode_attention(other, k, k, num_splits=3, out=other_out)
    exact = reference.decode_attention(*(x.to_numpy().astype(np.float64) for x in (other, k, k)))
    np.testing.assert_allclose(other_out.to_numpy(), exact, rtol=1e-4, atol=1e-6)
    assert gpu.ordinary == 2


# Memory and streams


def test_plans_keep_no_arrays_alive(manager, planned):
    x, out = manager.from_numpy(normal(2, 8)), manager.zeros((2, 8))
    rocmkern.softmax(x, out=out)
    assert planned(rocmkern.softmax, x, out=out)
    watched = [weakref.ref(x), weakref.ref(out)]
    planned.result = None
    del x, out
    assert [reference() for reference in watched] == [None, None]
    assert manager.live_buffers() == []


def test_new_memory_is_poisoned_and_guarded_under_test(device, gpu, planned):
    with ResourceManager(device, settings=MemorySettings(poison=True, guard=True)) as manager:
        x = manager.from_numpy(normal(2, 8))
        rocmkern.softmax(x).close()
        fills = []
        device.fill, before = lambda *args: fills.append(args) or before(*args), device.fill
        assert planned(rocmkern.softmax, x)
        assert any(address == planned.result.data_ptr for address, *_ in fills)
        manager.check_guards("softmax")
        np.testing.assert_allclose(planned.result.to_numpy(), reference.softmax(x.to_numpy()), rtol=1e-5)
        planned.result = None


def test_a_closed_manager_ends_its_plans_and_others_are_made(device, gpu, planned):
    first = ResourceManager(device, settings=MemorySettings())
    default_manager(device).close()
    x = first.from_numpy(normal(2, 8))
    for expected in (False, True):
        assert planned(rocmkern.softmax, x) is expected
    default_manager(device).close()
    for expected in (False, True):
        assert planned(rocmkern.softmax, x) is expected
        np.testing.assert_allclose(planned.result.to_numpy(), reference.softmax(x.to_numpy()), rtol=1e-5)
    planned.result = None
    first.close()


def test_streams_are_ordered_as_on_the_ordinary_way(device, gpu, manager, planned):
    side, x, out = device.create_stream(), manager.from_numpy(normal(2, 8)), manager.zeros((2, 8))

    def waits(**options):
        device.calls.clear()
        hit = planned(rocmkern.softmax, x, out=out, **options)
        return hit, [call for call in device.calls if "waits" in call]

    wait = f"stream {side:#x} waits for {manager.stream:#x}"
    back = f"stream {manager.stream:#x} waits for {side:#x}"
    assert waits() == (False, [])
    assert waits() == (True, [])
    assert waits(stream=side) == (False, [wait])
    assert waits(stream=side) == (True, [wait])
    assert waits() == (True, [back])
    assert [stream for _, stream in gpu.ran] == [manager.stream] * 2 + [side] * 2 + [manager.stream]


def test_a_stream_that_records_a_graph_is_not_waited_for(device, gpu, manager, planned, monkeypatch):
    graphs, side, x, out = {}, device.create_stream(), manager.from_numpy(normal(2, 8)), manager.zeros((2, 8))
    monkeypatch.setattr(device, "capture", graphs.get)
    record = device.record

    def recorded(stream):
        assert stream not in graphs, "an event of a graph"
        return record(stream)

    monkeypatch.setattr(device, "record", recorded)
    rocmkern.softmax(x, out=out, stream=side)
    graphs[side] = 1
    for expected in (False, True):  # another thread's work on what the graph uses
        assert planned(rocmkern.softmax, x, out=out) is expected
    graphs.clear()
    device.calls.clear()
    assert planned(rocmkern.softmax, x, out=out)
    assert f"stream {manager.stream:#x} waits for {side:#x}" in device.calls


@pytest.fixture
def decode(device, gpu, manager, planned):
    """Decode with split keys in one launch, and say whether that went by a plan: ``decode(stream)``."""

    def call(stream):
        # Other numbers each time: the parts of the last call may lie there still.
        q, k = (manager.from_numpy(normal(1, 2, n, 8, seed=len(gpu.ran) + n)) for n in (1, 40))
        out = manager.zeros(q.shape)
        out.copy_(np.full(q.shape, np.nan, np.float32))
        launches = len(gpu.ran)
        hit = planned(rocmkern.decode_attention, q, k, k, num_splits=3, out=out, stream=stream)
        assert gpu.ran[launches:] == [("flash_attention", stream)]
        exact = reference.decode_attention(*(x.to_numpy().astype(np.float64) for x in (q, k, k)))
        np.testing.assert_allclose(out.to_numpy(), exact, rtol=1e-4, atol=1e-6)
        return hit

    return call


def test_what_counts_goes_the_ordinary_way_while_its_stream_records_a_graph(device, manager, decode, monkeypatch):
    graphs, side, other = {}, device.create_stream(), device.create_stream()
    monkeypatch.setattr(device, "capture", graphs.get)
    plans = rocmkern.decode_attention.plans
    assert [decode(side), decode(side)] == [False, True]
    made = dict(plans._young)
    graphs[side] = 1
    assert [decode(side), decode(side)] == [False, False]
    assert plans._young == made
    graphs[side], graphs[other] = 2, 3
    assert [decode(side), decode(other), decode(other)] == [False, False, False]
    assert [plan for plan in plans._young.values() if plan] == list(made.values())
    graphs.clear()
    assert decode(side)
    # What never records a graph need not be asked.
    assert [decode(manager.stream), decode(manager.stream)] == [False, True]
    monkeypatch.setattr(device, "capture", lambda stream: pytest.fail("asked"))
    assert decode(manager.stream)


def test_the_first_call_outside_a_graph_makes_the_plan(device, decode, monkeypatch):
    graphs, side = {}, device.create_stream()
    monkeypatch.setattr(device, "capture", graphs.get)
    graphs[side] = 1
    assert [decode(side), decode(side)] == [False, False]
    assert len(rocmkern.decode_attention.plans) == 0
    graphs.clear()
    assert [decode(side), decode(side)] == [False, True]
    graphs[side] = 2
    assert not decode(side)
    graphs.clear()
    assert decode(side)


def test_a_plan_keeps_what_it_counts_with(device, manager, decode):
    side = device.create_stream()
    assert [decode(side), decode(side)] == [False, True]
    default_manager(device)._counters.clear()
    for _ in range(2):
        with manager.empty(256, np.int32, stream=side) as tensor:
            device.fill(tensor.data_ptr, tensor.nbytes, 1, side)
            assert decode(side)


def test_what_is_stuck_is_named(device, gpu):
    now = [0.0]
    manager = ResourceManager(
        device, settings=MemorySettings(), clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + 1)
    )
    x, out = manager.from_numpy(normal(2, 8)), manager.zeros((2, 8))
    rocmkern.softmax(x, out=out)
    plan = next(iter(rocmkern.softmax.plans._young.values()))
    plan._manager = manager
    manager.wait()
    device.stall(manager.stream)
    for _ in range(20):
        rocmkern.softmax(x, out=out)
    with pytest.raises(TimeoutError, match="softmax"):
        manager.wait()
    device.resume(manager.stream)
    manager.wait()


def test_many_launches_need_few_events(device, gpu, manager):
    x, out = manager.from_numpy(normal(2, 8)), manager.zeros((2, 8))
    rocmkern.softmax(x, out=out)
    manager.wait()
    kept, made = device.live_events, []
    device.record, before = lambda stream: made.append(stream) or before(stream), device.record
    for _ in range(160):
        rocmkern.softmax(x, out=out)
    assert len(made) <= 10
    default_manager(device).wait()
    del device.record
    assert device.live_events == kept


def test_threads_share_plans(device, gpu, manager):
    x = [manager.from_numpy(normal(4, 33, seed=i)) for i in range(8)]
    out = [manager.zeros((4, 33)) for _ in x]
    rocmkern.softmax(x[0], out=out[0])

    def work(i):
        for _ in range(20):
            rocmkern.softmax(x[i], out=out[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(x, out, strict=True):
        np.testing.assert_allclose(b.to_numpy(), reference.softmax(a.to_numpy()), rtol=1e-5)
    assert gpu.ordinary == 1


def test_an_operation_within_a_recorded_one_is_recorded_with_it(manager, planned):
    @_plan.planned
    def twice(x, out):
        from rocmkern.calls.arguments import accept

        operand = accept("x", x)
        inner = _launch.temporary(operand.shape, operand.dtype, operand.view, None, None)
        rocmkern.scale(rocmkern.scale(x, 2.0, out=inner), 3.0, out=out)
        return out

    x, out = manager.from_numpy(normal(5)), manager.zeros(5)
    rocmkern.scale(x, 2.0, out=out)  # a plan of the inner call
    with pytest.raises(ArgumentError):
        twice(x, x[:3])
    for expected in (False, True):
        assert planned(twice, x, out) is expected
        np.testing.assert_allclose(out.to_numpy(), 6 * x.to_numpy(), rtol=1e-6)


# The store


def test_the_number_of_plans_is_bounded_and_what_is_used_stays(manager, planned, monkeypatch):
    monkeypatch.setattr(_plan, "LIMIT", 4)
    x, out = manager.from_numpy(normal(5)), manager.zeros(5)
    for i in range(20):
        assert not planned(rocmkern.scale, x, 2.0 + i, out=out)
        assert planned(rocmkern.scale, x, 2.0, out=out) or i == 0
        assert len(rocmkern.scale.plans) <= 8
    assert not planned(rocmkern.scale, x, 3.0, out=out)


def test_layouts_are_bounded(monkeypatch, device):
    from rocmkern.runtime import layout

    monkeypatch.setattr(layout, "_LIMIT", 3)
    monkeypatch.setattr(layout, "_known", {})
    made = [layout.layout_of(device, 0, np.dtype("f4"), (n,), (4,)) for n in range(10)]
    assert len(layout._known) <= 3 and len(set(made)) == 10
    assert layout.layout_of(device, 64, np.dtype("f4"), (9,), (4,)) is made[-1]
    assert layout.layout_of(device, 4, np.dtype("f4"), (9,), (4,)) is not made[-1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_no_plans(manager, planned):
    x, out = manager.from_numpy(normal(5)), manager.zeros(5)
    rocmkern.scale(x, 2.0, out=out)
    assert len(rocmkern.scale.plans)
    child = os.fork()
    if not child:
        os._exit(len(rocmkern.scale.plans))
    assert os.waitpid(child, 0)[1] == 0


def public_operations():
    names = [name for name, home in rocmkern._MODULE_OF.items() if home.startswith("rocmkern.ops.")]
    return [function for name in names if inspect.isfunction(function := getattr(rocmkern, name))]


#: Operations that have no plans, and why.
UNPLANNED = {
    "quantize": "it runs on the host",
    "sample": "seed and offset are others in every call",
}


@pytest.mark.parametrize("operation", public_operations(), ids=lambda operation: operation.__name__)
def test_every_public_operation_is_planned(operation):
    if operation.__name__ in UNPLANNED:
        assert not hasattr(operation, "plans")
        return
    assert isinstance(operation.plans, _plan.Plans)
    assert inspect.signature(operation) == inspect.signature(operation.__wrapped__)
    assert operation.__doc__ and operation.__module__.startswith("rocmkern.ops.")


# Every operation of the matrix


def calls_of(operation):
    """Calls of an operation of the committed matrix that differ as much as a few can."""
    wanted, found = {"f32", "f16"}, []
    for case in CASES:
        if case.operation.name == operation and case.dtype in wanted:
            call = make_call(case)
            if all(x is None or x.size for x in call.arrays.values()):
                wanted.discard(case.dtype)
                found.append((case, call))
    return found


def on_device(manager, call, seed):
    """Its arguments in device memory; numbers with a fraction are others for another seed."""
    arguments = {}
    for name, value in call.arguments.items():
        if isinstance(value, np.ndarray):
            values = np.array(value)
            if seed and value.dtype in FLOATS and value.ndim:
                values = np.random.default_rng(seed).permuted(values.view(f"u{values.itemsize}")).view(values.dtype)
            value = manager.from_numpy(values)
        arguments[name] = value
    return arguments


@pytest.mark.parametrize("operation", sorted({case.operation.name for case in CASES} - set(UNPLANNED)))
def test_every_operation_gives_the_same_bits_by_a_plan(operation, device, manager, planned):
    for case, call in calls_of(operation):
        function = resolve(case.operation.function)
        for seed in range(3):
            arguments = on_device(manager, call, seed)
            given = [
                tuple(manager.zeros(shape, output_dtype(case, i)) for i, shape in enumerate(call.out_shapes))
                for _ in range(2)
            ]
            by_plan, ordinary = (x if len(x) > 1 else x[0] for x in given)
            allocations = device.allocations
            hit = planned(function, **arguments, out=by_plan)
            assert not hit or device.allocations == allocations, "a later call with out= allocates memory"
            function.__wrapped__(**arguments, out=ordinary)
            for a, b in zip(*given, strict=True):
                assert a.to_numpy().tobytes() == b.to_numpy().tobytes()
            assert hit is (seed > 0), f"call {seed} of {case.id}"


def test_inner_results_are_held_as_long_as_they_are_needed(held):
    """In the ordinary way, in the call that is recorded, and in the plan: there are many, and few at the same time."""
    operation = rocmkern.linear_cross_entropy_backward
    x, weight, target = normal(300, 40), normal(9000, 40), np.zeros(300, np.int32)
    peaks, results = [], []
    with rocmkern.using("cpu"):
        loss, lse = rocmkern.linear_cross_entropy(x, weight, target, bias=(bias := normal(9000)))
        for call in (operation.__wrapped__, operation, operation):
            held.clear()
            results.append(call(np.ones_like(loss), x, weight, target, lse, bias=bias))
            peaks.append(max(held) - default_manager("host").memory_stats().held)
    (plan,) = operation.plans._young.values()
    assert isinstance(plan, HostPlan) and len(plan._inner) > 10
    assert max(peaks) <= peaks[0] + 256 * len(plan._inner), peaks
    for first, *others in zip(*results, strict=True):
        assert all(np.array_equal(first, other) for other in others)
