"""Faults of the driver in the middle of an operation: an error or the right result, an exact ledger, the next call.

Each of ten faults meets each of five ways to work on the device, in turn with work that runs at once, with work that
runs when something waits for it, and with copies that are put off too. A fault that repeats stays until it is mended.

A kernel that fails on the card is another matter: all later calls fail with it until somebody resets the card. Each
way to work meets it as the fault of its own kernel and as that of one that was queued before it.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import rocmkern
from rocmkern.calls import plan as _plan
from rocmkern.runtime.errors import RocmkernError
from rocmkern.runtime.manager import default_manager
from rocmkern.targets import target_of

OUT_OF_MEMORY, LAUNCH_FAILURE, UNKNOWN = 2, 719, 999

#: Driver call, which of its calls fails, error, whether all later ones fail too.
FAULTS = {
    "launch": ("hipModuleLaunchKernel", 1, LAUNCH_FAILURE, False),
    "every launch": ("hipModuleLaunchKernel", 1, LAUNCH_FAILURE, True),
    "load": ("hipModuleLoadData", 1, UNKNOWN, False),
    "function": ("hipModuleGetFunction", 1, UNKNOWN, False),
    "copy": ("hipMemcpyAsync", 1, UNKNOWN, False),
    "every copy": ("hipMemcpyAsync", 1, UNKNOWN, True),
    "event": ("hipEventRecord", 1, UNKNOWN, False),
    "every event": ("hipEventRecord", 1, UNKNOWN, True),
    "query": ("hipEventQuery", 1, UNKNOWN, False),
    "memory": ("hipMalloc", 1, OUT_OF_MEMORY, True),
}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def decode(manager):
    """Split decoding: several blocks share a sequence, and join through scratch memory."""
    q, k, v = (manager.from_numpy(normal(1, 2, n, 16, seed=n)) for n in (1, 65, 65))
    return lambda: rocmkern.decode_attention(q, k, v, num_splits=2).to_numpy()


def paged(manager):
    """Paged attention over a page table in host memory."""
    q, caches = manager.from_numpy(normal(2, 2, 16)), manager.from_numpy(normal(4, 16, 2, 16, seed=1))
    table, lens = np.array([[2, 0], [1, 3]], np.int32), np.array([17, 30], np.int32)
    return lambda: rocmkern.paged_attention(q, caches, caches, table, lens).to_numpy()


def sample(manager):
    """Drawing tokens."""
    logits = manager.from_numpy(normal(3, 50))
    return lambda: rocmkern.sample(logits, top_k=7, seed=5).to_numpy()


def cache(manager):
    """A cache of keys and values that is forked and written to: blocks are copied on the device."""
    keys = normal(1, 4, 8, 2, 16, seed=3)

    def work():
        with rocmkern.KVCache(4, 8, num_kv_heads=2, head_dim=16, manager=manager) as held:
            held.keys.copy_(keys)
            held.values.copy_(keys)
            prompt = held.add()
            held.append(prompt, 5)
            held.append(held.fork(prompt), 1)
            return np.stack([held.keys.to_numpy(), held.values.to_numpy()])

    return work


def plan(manager):
    """A call with ``out=`` that is repeated: it was prepared once."""
    x, out = manager.from_numpy(normal(4, 33)), manager.zeros((4, 33))

    def work():
        out.copy_(np.zeros((4, 33), np.float32))
        for _ in range(3):
            rocmkern.softmax(x, out=out)
        return out.to_numpy()

    return work


WORK = {function.__name__: function for function in (decode, paged, sample, cache, plan)}
#: Faults in place of those that the work cannot meet: the cache launches no kernel of ours, a call with ``out=`` takes
#: no memory.
INSTEAD = {
    ("cache", "load"): ("hipMemsetAsync", 1, UNKNOWN, False),
    ("cache", "function"): ("hipMemsetAsync", 2, UNKNOWN, False),
    ("cache", "launch"): ("hipMemcpyAsync", 2, UNKNOWN, False),
    ("cache", "every launch"): ("hipMemcpyAsync", 3, UNKNOWN, True),
    ("plan", "memory"): ("hipModuleLaunchKernel", 2, LAUNCH_FAILURE, True),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", WORK)
def test_a_fault_leaves_everything_as_it_was(device, vgpu, name, fault):
    call, nth, error, repeat = INSTEAD.get((name, fault), FAULTS[fault])
    manager = default_manager(device)
    work = WORK[name](manager)
    expected = work()
    np.testing.assert_array_equal(work(), expected)
    gc.collect()
    manager.wait()
    alive = manager.live_buffers()
    if call.startswith("hipModule") and "Launch" not in call:
        target_of(device)._variants.clear()
        _plan.forget_all()
    if call == "hipMalloc":
        manager.trim()
    before = vgpu.calls(call)
    vgpu.config(ASYNC=(list(WORK).index(name) + list(FAULTS).index(fault)) % 3)
    vgpu.fail(call, nth=nth, error=error, repeat=repeat)
    try:
        np.testing.assert_array_equal(work(), expected)
    except RocmkernError as caught:
        assert call in str(caught) or "HIP runtime reports" in str(caught) or error == OUT_OF_MEMORY
    met = vgpu.calls(call) - before
    vgpu.clear_failures()
    vgpu.config(ASYNC=0)
    assert met >= nth, f"{name} does not call {call}"
    gc.collect()
    manager.wait()
    assert manager.live_buffers() == alive
    np.testing.assert_array_equal(work(), expected)
    assert manager.live_buffers() == alive


#: Instructions of a block after which the card ends a kernel.
FEW, MANY = 1, 4_000_000_000


def again(work):
    """What two calls in a row raise; None for one that raises nothing."""
    raised = []
    for _ in range(2):
        try:
            work()
            raised.append(None)
        except RocmkernError as caught:
            raised.append(str(caught))
    return raised


@pytest.mark.parametrize("queue", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "whose"),
    # A cache launches no kernel of its own.
    [(name, "one before it") for name in WORK] + [(name, "its own") for name in WORK if name != "cache"],
)
def test_a_card_on_which_a_kernel_failed_fails_until_it_is_reset(device, vgpu, name, whose, queue):
    manager = default_manager(device)
    work, before = WORK[name](manager), manager.from_numpy(normal(4, 33))
    expected = work()
    rocmkern.softmax(before)
    gc.collect()
    manager.wait()
    alive, allocated = manager.live_buffers(), len(vgpu.live())
    vgpu.config(ASYNC=queue, STICKY=1, MAX_INSTS=FEW)
    try:
        if whose == "one before it":
            # Where kernels run at once, it is this call that fails; the card is no better afterwards.
            assert (again(lambda: rocmkern.softmax(before))[0] is None) == (queue != 0)
        for said in again(work):
            assert "hipErrorLaunchTimeOut" in said
        gc.collect()
    finally:
        vgpu.config(ASYNC=0, STICKY=0, MAX_INSTS=MANY)
        vgpu.reset()
    manager.wait()
    assert (manager.live_buffers(), len(vgpu.live())) == (alive, allocated)
    np.testing.assert_array_equal(work(), expected)
    assert manager.live_buffers() == alive
