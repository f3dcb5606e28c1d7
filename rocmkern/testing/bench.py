"""Timing of benchmark rows: the kernel and its peers in turns, in one run, medians."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rocmkern
from rocmkern.matrix import Case, CaseFailure, PeerUnavailable, make_call
from rocmkern.matrix.inputs import output_dtype
from rocmkern.matrix.registry import Call, resolve
from rocmkern.runtime.devices import open_device
from rocmkern.runtime.manager import default_manager
from rocmkern.targets import GPU_TARGETS
from rocmkern.testing.clocks import DeviceClock, HostClock
from rocmkern.testing.roofs import roof

Clock = HostClock | DeviceClock

# Rounds are chosen so that the kernel runs for about this long altogether.
SECONDS_PER_ROW = 1.5
MIN_ROUNDS, MAX_ROUNDS = 5, 100
# Worker threads of the one that ran last may spin for a while before they sleep, which would count against the next.
SETTLE_SECONDS = 0.003
# Largest difference from a peer's result, relative to its largest value: a benchmark of a wrong result is worthless.
AGREEMENT = {"f32": 1e-4, "f16": 1e-2, "bf16": 3e-2}
# A GPU's peers work on the default stream.
DEFAULT_STREAM = 0


def measure(benchmark: Any, case: Case, target: str) -> dict[str, Any]:
    """Time a case and its peers with pytest-benchmark.

    On a GPU the arguments lie in the device's memory.

    Parameters
    ----------
    benchmark : pytest_benchmark.fixture.BenchmarkFixture
        Its statistics are wall-clock times of whole rounds; ``extra_info`` gets what is returned.
    case : Case
    target : str

    Returns
    -------
    dict
        ``wall_s`` (median; on a GPU the time between device events), on a CPU ``cpu_s``, ``spread`` (quartile distance
        over median), ``rounds``, ``counts`` (which of the two counts) and its ``samples``, ``flop_per_s`` and
        ``byte_per_s``, ``roof`` (see `rocmkern.testing.roofs.roof`), and ``peers``: for each its medians and
        ``samples`` and ``ratio``, peer / kernel (above 1: the kernel is faster), or
        ``unavailable`` with the reason.
    """
    call = make_call(case)
    with rocmkern.use(target):
        place = place_of(case, target)
        kernel = place.kernel(call)
        first = kernel.function()
        peers, unavailable = _prepare_peers(case, call, target, place, first[0] if isinstance(first, tuple) else first)

        def run_peers() -> None:
            for peer in peers.values():
                time.sleep(SETTLE_SECONDS)
                peer()
            time.sleep(SETTLE_SECONDS)

        benchmark.pedantic(kernel, setup=run_peers, rounds=_rounds(kernel.function), iterations=1)
    speed = _speed(case, kernel, peers, unavailable) | {"roof": roof(target, case.dtype)}
    benchmark.extra_info.update({"case": case.id, "target": target, **speed})
    return speed


def place_of(case: Case, target: str) -> _HostPlace:
    """Where the arrays of a case are when it is timed on a target, and what its time is taken with."""
    return _GpuPlace(case, target) if target in GPU_TARGETS and case.operation.on_device else _HostPlace(case)


class _HostPlace:
    """Arrays in host memory."""

    def __init__(self, case: Case):
        self.case = case

    def array(self, array: np.ndarray) -> Any:
        return array

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.empty(shape, dtype)

    def kernel(self, call: Call) -> Clock:
        """A clock around the operation with ``out=``."""
        function = resolve(self.case.operation.function)
        arguments = {n: self.array(a) if isinstance(a, np.ndarray) else a for n, a in call.arguments.items()}
        outs = tuple(self.empty(shape, output_dtype(self.case, index)) for index, shape in enumerate(call.out_shapes))
        if self.case.operation.out:
            arguments["out"] = outs if len(outs) > 1 else outs[0]
        return self.clock(lambda: function(**arguments))

    def clock(self, function: Callable[[], Any]) -> Clock:
        return HostClock(function)

    def peer(self, function: Callable[[], Any]) -> Clock:
        return HostClock(function)


class _GpuPlace(_HostPlace):
    """Arrays in the memory of the card that a target stands for."""

    def __init__(self, case: Case, target: str):
        super().__init__(case)
        self.manager = default_manager(open_device(target))

    def array(self, array: np.ndarray) -> Any:
        return self.manager.from_numpy(array)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.manager.empty(shape, dtype, uninitialized=True)

    def clock(self, function: Callable[[], Any]) -> Clock:
        return DeviceClock(function, self.manager, self.manager.stream, self.case.facts.warm)

    def peer(self, function: Callable[[], Any]) -> Clock:
        return DeviceClock(function, self.manager, DEFAULT_STREAM, self.case.facts.warm)


def _rounds(function: Callable[[], Any]) -> int:
    start = time.perf_counter()
    function()
    seconds = max(time.perf_counter() - start, 1e-9)
    return int(min(max(SECONDS_PER_ROW / seconds, MIN_ROUNDS), MAX_ROUNDS))


def _prepare_peers(
    case: Case, call: Call, target: str, place: _HostPlace, ours: Any
) -> tuple[dict[str, Clock], dict[str, str]]:
    peers, unavailable = {}, {}
    for name in case.facts.peers:
        try:
            run = case.operation.peer_table[name].prepare(call, case, target)
        except PeerUnavailable as reason:
            unavailable[name] = str(reason)
            continue
        _check_agreement(case, name, ours, run())
        peers[name] = place.peer(run)
    return peers, unavailable


def _check_agreement(case: Case, name: str, ours: Any, theirs: Any) -> None:
    if hasattr(theirs, "detach"):
        theirs = theirs.detach().float().cpu().numpy()
    if hasattr(ours, "to_numpy"):
        ours = ours.to_numpy()
    if case.features.get("layout") == "bshd":
        theirs = np.swapaxes(theirs, 1, 2)
    ours, theirs = np.asarray(ours).astype(np.float64), np.asarray(theirs).astype(np.float64)
    error, largest = float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())
    if not error <= AGREEMENT[case.dtype] * largest:
        raise CaseFailure("parity", f"differs from {name} by {error:.3g} where values reach {largest:.3g}")


def _speed(case: Case, kernel: Clock, peers: dict[str, Clock], unavailable: dict[str, str]) -> dict[str, Any]:
    medians = kernel.medians()
    speed: dict[str, Any] = {**medians, "spread": kernel.spread(), "rounds": kernel.rounds}
    speed |= {"counts": kernel.counts, "samples": kernel.samples}
    if case.operation.flops is not None:
        speed["flop_per_s"] = case.operation.flops(case) / medians["wall_s"]
    if case.operation.nbytes is not None:
        speed["byte_per_s"] = case.operation.nbytes(case) / medians["wall_s"]
    speed["peers"] = {
        name: {
            **(theirs := peer.medians()),
            "ratio": theirs[kernel.counts] / medians[kernel.counts],
            "wall_ratio": theirs["wall_s"] / medians["wall_s"],
            "bar": case.facts.bars.get(name),
            "samples": peer.samples,
        }
        for name, peer in peers.items()
    } | {name: {"unavailable": reason} for name, reason in unavailable.items()}
    return speed


def check_bars(speed: dict[str, Any]) -> None:
    """Fail when the kernel is slower than a bar of its row allows."""
    for name, peer in speed["peers"].items():
        bar = peer.get("bar")
        if bar is not None and peer["ratio"] < bar:
            raise CaseFailure("speed", f"{peer['ratio']:.2f} times the speed of {name}, the bar is {bar:g}")


def table(records: list[dict[str, Any]]) -> list[str]:
    """The benchmark table that is printed at the end of a run."""
    width = max(len(record["case"]) for record in records) + 1
    head = (
        f"{'case':{width}}{'target':>7}{'wall ms':>10}{'cpu ms':>10}{'spread':>8}{'GFLOP/s':>9}{'GB/s':>8}"
        "  peer / kernel by what counts (CPU time, device events)"
    )
    lines = [head]
    for record in records:
        speed = record["speed"]
        cpu = f"{speed['cpu_s'] * 1e3:10.3f}" if "cpu_s" in speed else " " * 10
        lines.append(
            f"{record['case']:{width}}{record['target']:>7}{speed['wall_s'] * 1e3:10.3f}{cpu}{speed['spread']:8.0%}"
            f"{speed.get('flop_per_s', 0) / 1e9:9.1f}{speed.get('byte_per_s', 0) / 1e9:8.2f}  "
            + ", ".join(_peer_text(name, peer) for name, peer in speed["peers"].items())
        )
    return lines


def _peer_text(name: str, peer: dict[str, Any]) -> str:
    if "unavailable" in peer:
        return f"{name}: {peer['unavailable']}"
    text = f"{name} {peer['ratio']:.2f} (wall {peer['wall_ratio']:.2f})"
    if peer["bar"] is None:
        return text
    return f"{text}, bar {peer['bar']:g} {'met' if peer['ratio'] >= peer['bar'] else 'MISSED'}"
