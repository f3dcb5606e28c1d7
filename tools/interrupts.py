"""Interrupt operations at random moments, and look at what is left behind.

    python tools/interrupts.py cpu --rounds 1000 --threads 4 --busy 2
    python tools/interrupts.py hip --rounds 200 --small --beside 0 --spare vgpu.py     # a virtual GPU is slow

A round is one call (attention, split decoding, softmax, matmul; NumPy arrays or tensors of the target's memory; a
result that is allocated, or ``out=``) with an exception on its way: KeyboardInterrupt of a timer, up to three times in
a row, or what a thread asks for by ``PyThreadState_SetAsyncExc``. In some rounds the kernels and plans of the process
were forgotten, so that they are loaded and made anew. Rounds count where the exception came before the end of the call.
After it

* nobody writes any more: ``out`` keeps what it has, also beside itself, and new arrays where a result was keep theirs;
* the ledger has the buffers that the round began with, and what is reserved is what the device says that it gave;
* the same call, undisturbed, gives the same numbers as before, which were held against float64 at the beginning;
* other threads, which call all the time, get the right numbers.

A hang ends the process after ``--deadline`` seconds with the stacks of all threads. The status is 0 if nothing was
wrong and exceptions did land inside calls. Printed: where they landed, and how long after they were asked for they
were caught (this decides nothing: a busy machine takes its time).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import faulthandler
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import numpy as np

BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**5))"
GUARD = 4096  # elements before and behind an ``out`` array
CANARY = np.float32(-7.25)
STRIKES = 3


class Interrupt(BaseException):
    """What the thread asks for."""


class Interrupter:
    """Raises in the main thread, once or a few times, some time after `arm`; `disarm` is the end of that."""

    def __init__(self, spare: str | None) -> None:
        self._left = 0  # so many more exceptions may be raised
        self._spare = spare
        self.strikes = 0
        self.asked_at = 0.0  # when the latest was asked for
        self._main = threading.get_ident()
        self._delays: collections.deque[float] = collections.deque()
        self._wake = threading.Semaphore(0)
        signal.signal(signal.SIGALRM, self._on_alarm)
        threading.Thread(target=self._ask, daemon=True).start()

    def arm(self, kind: str, delay: float) -> None:
        """Let it come after `delay` seconds."""
        self.strikes, self._left = 0, STRIKES if kind == "timers" else 1
        if kind == "thread":
            self._delays.append(delay)
            self._wake.release()
        else:
            signal.setitimer(signal.ITIMER_REAL, delay, 100e-6 if kind == "timers" else 0)

    def disarm(self) -> None:
        """No exception after this; the caller has caught one, or none came in time."""
        self._left = 0
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if self._left > 0 and self._spared(frame):
            signal.setitimer(signal.ITIMER_REAL, 100e-6)  # until it is elsewhere
        elif self._left > 0:
            self._left -= 1
            self.strikes += 1
            self.asked_at = time.perf_counter()
            raise KeyboardInterrupt

    def _spared(self, frame: FrameType | None) -> bool:
        while self._spare is not None and frame is not None:
            if os.path.basename(frame.f_code.co_filename) == self._spare:
                return True
            frame = frame.f_back
        return False

    def _ask(self) -> None:
        ask = ctypes.pythonapi.PyThreadState_SetAsyncExc
        while True:
            self._wake.acquire()
            time.sleep(self._delays.popleft())
            self.asked_at = time.perf_counter()
            ask(ctypes.c_ulong(self._main), ctypes.py_object(Interrupt))
            self.strikes += 1  # from now on the main thread need not wait for it


@dataclass
class Case:
    """One kind of call, which takes ``out=``; what it gives, and how long it takes."""

    name: str
    call: Callable[..., Any]
    right: np.ndarray
    shape: tuple[int, ...]
    seconds: float = 0.0


@dataclass
class Found:
    """What the rounds have shown."""

    inside: int = 0
    outside: int = 0
    swallowed: int = 0
    collected: int = 0
    failures: list[str] = field(default_factory=list)
    places: collections.Counter = field(default_factory=collections.Counter)
    kinds: collections.Counter = field(default_factory=collections.Counter)
    latencies: list[float] = field(default_factory=list)


def as_numpy(x: Any) -> np.ndarray:
    """The elements of a result of either kind."""
    return x if isinstance(x, np.ndarray) else x.to_numpy()


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def make_cases(manager: Any, small: bool, seed: int) -> list[Case]:
    """Calls on arrays of both kinds, each held against its definition in float64."""
    import rocmkern
    from rocmkern import reference

    rng = np.random.default_rng(seed)
    scale = 8 if small else 1

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    q, k, v = draw(1, 4, 512 // scale, 64), draw(1, 2, 512 // scale, 64), draw(1, 2, 512 // scale, 64)
    one, long_k, long_v = draw(1, 4, 1, 64), draw(1, 2, 4096 // scale, 64), draw(1, 2, 4096 // scale, 64)
    x, a, b = draw(20_000 // scale**2, 63), draw(384 // scale, 256), draw(256, 512 // scale)
    kinds: list[tuple[str, Callable, Callable, tuple[np.ndarray, ...], dict[str, Any]]] = [
        ("attention", rocmkern.flash_attention, reference.flash_attention, (q, k, v), {"causal": True}),
        ("decoding", rocmkern.decode_attention, reference.decode_attention, (one, long_k, long_v), {}),
        ("softmax", rocmkern.softmax, reference.softmax, (x,), {}),
        ("matmul", rocmkern.matmul, reference.matmul, (a, b), {}),
    ]
    cases = []
    for name, operation, definition, arrays, more in kinds:
        expected = np.asarray(definition(*arrays, **more))
        splits = {"num_splits": 4} if name == "decoding" else {}
        for where, inputs in (("numpy", arrays), ("tensors", tuple(manager.from_numpy(each) for each in arrays))):
            call = functools.partial(operation, *inputs, **more, **splits)
            right = as_numpy(call())
            np.testing.assert_allclose(right, expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max()))
            case = Case(f"{name}, {where}", call, right, expected.shape)
            case.seconds = min(timed(lambda call=call: as_numpy(call())) for _ in range(5))
            cases.append(case)
    return cases


class Neighbours:
    """Threads that call all the time; nobody is inside while `paused`."""

    def __init__(self, count: int, found: Found, seed: int):
        self._found, self._turn = found, [threading.Lock() for _ in range(count)]
        self.calls = 0
        self._end = False
        self._threads = [threading.Thread(target=self._work, args=(lock, seed), daemon=True) for lock in self._turn]
        for thread in self._threads:
            thread.start()

    def _work(self, lock: threading.Lock, seed: int) -> None:
        import rocmkern

        x = np.random.default_rng(seed).standard_normal((300, 63), dtype=np.float32)
        right = None
        while not self._end:
            try:
                with lock:
                    result = rocmkern.softmax(x)
                right = result if right is None else right
                if not np.array_equal(result, right):
                    self._found.failures.append("another thread got wrong numbers")
            except BaseException as error:
                self._found.failures.append(f"another thread: {error!r}")
            self.calls += 1
            time.sleep(0.001)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody calls within the block."""
        with contextlib.ExitStack() as stack:
            for lock in self._turn:
                stack.enter_context(lock)
            yield

    def end(self) -> None:
        """Wait for them."""
        self._end = True
        for thread in self._threads:
            thread.join()


def place_of(trace: TracebackType | None) -> str | None:
    """The innermost function of the library in a traceback; None where there is none."""
    import rocmkern

    root = os.path.dirname(os.path.abspath(rocmkern.__file__)) + os.sep
    place = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(root):
            place = f"{code.co_filename.removeprefix(root)}: {code.co_name}"
        trace = trace.tb_next
    return place


def forget_kernels(target: Any) -> None:
    """Let the next call load its kernel, and make its plan, as the first one does."""
    from rocmkern.calls import plan as _plan

    target._variants.clear()
    for plans in _plan._all_plans:
        plans.forget()


class Rounds:
    """Calls `Case` after `Case` with an exception on its way; see this module."""

    def __init__(
        self,
        target: Any,
        manager: Any,
        cases: list[Case],
        neighbours: Neighbours,
        found: Found,
        seed: int,
        spare: str | None,
    ):
        from rocmkern.runtime.memory import DeviceMemory

        self._target, self._manager, self._cases = target, manager, cases
        self._neighbours, self._found = neighbours, found
        self._draw = random.Random(seed)
        self._memory = DeviceMemory.of(manager.device)
        self._interrupter = Interrupter(spare)
        # A thread cannot see where the exception will be raised.
        self._kinds = ("timer", "timers", "thread") if spare is None else ("timer", "timers")

    def run(self) -> None:
        """One round."""
        draw, found = self._draw, self._found
        case, with_out = draw.choice(self._cases), draw.random() < 0.5
        kind = draw.choice(self._kinds)
        name = f"{case.name}, {'out=' if with_out else 'allocated'}, {kind}"
        if draw.random() < 0.1:
            forget_kernels(self._target)
            name += ", forgotten"
        with self._neighbours.paused():
            live = len(self._manager.live_buffers())
        out, whole = self._out(case, "tensors" in case.name) if with_out else (None, None)
        late = draw.uniform(0, 1) * case.seconds
        if not self._attempt(lambda: case.call(out=out), kind, late):
            return
        found.kinds[", ".join(name.split(", ")[:3])] += 1
        problems = list(self._writes(case, out, whole))
        out = whole = None
        with self._neighbours.paused():
            problems += self._books(live)
        result = as_numpy(case.call())
        if not np.array_equal(result, case.right):
            problems.append("the next call is wrong")
        found.failures += [f"{name}: {problem}" for problem in problems]

    def _attempt(self, call: Callable[[], Any], kind: str, late: float) -> bool:
        """Whether an exception landed inside the call."""
        interrupter, found = self._interrupter, self._found
        caught = None
        try:
            interrupter.arm(kind, late)
            call()
            end = time.perf_counter() + late + (60.0 if kind == "thread" else 1.0)
            while time.perf_counter() < end and not interrupter.strikes:
                time.sleep(2e-5)
            time.sleep(0.001)  # an exception that was asked for is raised here at the latest
        except (Interrupt, KeyboardInterrupt) as error:
            # Nothing comes between: the interpreter looks for exceptions behind a call, and there was none.
            interrupter._left = 0
            at = time.perf_counter()
            caught = place_of(error.__traceback__)
            if caught is not None:
                found.latencies.append(at - interrupter.asked_at)
        except BaseException as error:
            interrupter._left = 0
            found.failures.append(f"the call raised {error!r} in place of the exception")
        else:
            interrupter._left = 0
            found.swallowed += interrupter.strikes > 0
        interrupter.disarm()
        if caught is None:
            found.outside += 1
            return False
        found.inside += 1
        found.places[caught] += 1
        return True

    def _out(self, case: Case, tensors: bool) -> tuple[Any, Any]:
        """An array to be written, and the larger one that it lies in."""
        size = int(np.prod(case.shape))
        whole = np.full(size + 2 * GUARD, CANARY, np.float32)
        if tensors:
            whole = self._manager.from_numpy(whole)
        return whole[GUARD : GUARD + size].reshape(*case.shape), whole

    def _writes(self, case: Case, out: Any, whole: Any) -> Iterator[str]:
        """Who writes after the exception."""
        if not isinstance(whole, np.ndarray):
            self._manager.wait()  # what was submitted before is done: on a device that is no later write
        if whole is None:
            arrays = [np.full(case.shape, CANARY) for _ in range(3)]
            self._pause()
            if any((array != CANARY).any() for array in arrays):
                yield "new memory was written after the exception"
            return
        before = as_numpy(whole).copy()
        self._pause()
        after = as_numpy(whole)
        if not np.array_equal(before, after, equal_nan=True):
            yield "out= was written after the exception"
        if (after[:GUARD] != CANARY).any() or (after[-GUARD:] != CANARY).any():
            yield "the memory beside out= was written"

    def _pause(self) -> None:
        time.sleep(self._draw.uniform(0.0002, 0.002))

    def _books(self, live: int) -> Iterator[str]:
        """What the ledger has too many or too few of."""
        manager, memory = self._manager, self._memory
        alive = manager.live_buffers()
        if len(alive) != live:
            # An exception that strikes while another is handled leaves frames and exceptions that hold each other, and
            # what the frames hold: garbage, not a loss.
            gc.collect()
            alive = manager.live_buffers()
            self._found.collected += 1
        if len(alive) != live:
            yield f"{len(alive)} live buffers in place of {live}: {'; '.join(map(str, alive))}"
        memory.settle()
        given = sum(memory.device.allocated().values())
        kept = sum(ticket.block.capacity for ticket in memory.ledger.live() if ticket.block is not None)
        if not memory.reserved == given == kept + memory.pool.idle_bytes:
            yield f"reserved {memory.reserved}, given {given}, kept {kept}, idle {memory.pool.idle_bytes} bytes"


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Others that want this machine's cores."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def report(found: Found, rounds: int, calls: int) -> None:
    """Say what was found."""
    print(f"{rounds} calls: {found.inside} exceptions landed inside, {found.outside} did not")
    print(f"{found.swallowed} were swallowed; {calls} calls of other threads beside")
    print(f"{found.collected} times a buffer was held by an exception's frames, until they were collected")
    for name, count in found.kinds.most_common():
        print(f"  {count:6} {name}")
    print(f"in {len(found.places)} functions of the library, most often:")
    for name, count in found.places.most_common(25):
        print(f"  {count:6} {name}")
    if found.latencies:
        times = sorted(found.latencies)
        median, high, most = (1e3 * times[at] for at in (len(times) // 2, len(times) * 99 // 100, -1))
        print(f"caught after {median:.2f} ms (median), {high:.2f} ms (99 %), {most:.2f} ms (most)")
    for failure, count in collections.Counter(found.failures).most_common(40):
        print(f"FAILED {count} times: {failure}")
    print(f"{len(found.failures)} failures")


def main() -> int:
    """Interrupt, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=["cpu", "hip", "cuda"])
    parser.add_argument("--rounds", type=int, default=1000, metavar="N", help="exceptions inside calls")
    parser.add_argument("--threads", type=int, default=4, metavar="N", help="that share a launch on the cpu")
    parser.add_argument("--beside", type=int, default=1, metavar="N", help="other threads that call")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="other processes that compute")
    parser.add_argument("--seed", type=int, metavar="N", help="default: from the clock")
    parser.add_argument("--small", action="store_true", help="small arrays")
    parser.add_argument(
        "--spare", metavar="FILE", help="no exception in functions of a file of this name: a driver's callbacks lose it"
    )
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="S", help="end after so many seconds")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="S", help="of one round")
    arguments = parser.parse_args()
    os.environ.update(ROCMKERN_TARGET=arguments.target, ROCMKERN_NUM_THREADS=str(arguments.threads))
    os.environ.setdefault("ROCMKERN_QUIET", "1")
    seed = time.time_ns() % 2**32 if arguments.seed is None else arguments.seed
    print(f"{arguments.target}, {arguments.threads} threads, {arguments.busy} busy processes, seed {seed}", flush=True)
    import rocmkern
    from rocmkern.targets import current_target

    sys.setswitchinterval(2e-5)  # so that the thread that asks for exceptions is not late
    target, found = current_target(), Found()
    with rocmkern.ResourceManager(target.device or "host") as manager, busy_processes(arguments.busy):
        cases = make_cases(manager, arguments.small, seed)
        neighbours = Neighbours(arguments.beside, found, seed)
        rounds = Rounds(target, manager, cases, neighbours, found, seed, arguments.spare)
        end, done = time.monotonic() + arguments.limit, 0
        while found.inside < arguments.rounds and time.monotonic() < end:
            faulthandler.dump_traceback_later(arguments.deadline, exit=True)
            rounds.run()
            done += 1
        faulthandler.cancel_dump_traceback_later()
        neighbours.end()
        del rounds, cases
    report(found, done, neighbours.calls)
    return 1 if found.failures or not found.inside else 0


if __name__ == "__main__":
    raise SystemExit(main())
