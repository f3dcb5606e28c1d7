"""Timing of benchmark rows: the kernel and its peers in turns, in one run, medians.

The clock that counts on a CPU is the CPU time of the process, over all its threads: it does not flatter the one of two
implementations that happened to run while the other cores were free. Wall-clock medians are recorded beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from rocmkern.matrix import Case, CaseFailure, PeerUnavailable, make_call
from rocmkern.matrix.inputs import output_dtype
from rocmkern.matrix.registry import resolve

# Rounds are chosen so that the kernel runs for about this long altogether.
SECONDS_PER_ROW = 1.5
MIN_ROUNDS, MAX_ROUNDS = 5, 100
# Worker threads of the one that ran last may spin for a while before they sleep, which would count against the next.
SETTLE_SECONDS = 0.003
# Largest difference from a peer's result, relative to its largest value: a benchmark of a wrong result is worthless.
AGREEMENT = {"f32": 1e-4, "f16": 1e-2, "bf16": 3e-2}


class _Clock:
    """CPU and wall-clock seconds of the runs of one function."""

    def __init__(self, function: Callable[[], Any]):
        self.function = function
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def __call__(self) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = self.function()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        return result


def measure(benchmark: Any, case: Case, target: str) -> dict[str, Any]:
    """Time a case and its peers with pytest-benchmark.

    Parameters
    ----------
    benchmark : pytest_benchmark.fixture.BenchmarkFixture
        Its statistics are those of the kernel's wall-clock times; ``extra_info`` gets what is returned.
    case : Case
    target : str

    Returns
    -------
    dict
        ``cpu_s`` and ``wall_s`` (medians), ``flop_per_s`` and ``byte_per_s`` (by wall clock), and ``peers``: for each
        its medians and the ratios peer / kernel (above 1: the kernel is faster), or ``unavailable`` with the reason.
    """
    import rocmkern

    call = make_call(case)
    function = resolve(case.operation.function)
    outs = tuple(np.empty(shape, output_dtype(case, index)) for index, shape in enumerate(call.out_shapes))
    arguments = call.arguments
    if case.operation.out:
        arguments["out"] = outs if len(outs) > 1 else outs[0]
    with rocmkern.use(target):
        kernel = _Clock(lambda: function(**arguments))
        first = kernel.function()
        peers, unavailable = _prepare_peers(case, call, first[0] if isinstance(first, tuple) else first)

        def run_peers() -> None:
            for peer in peers.values():
                time.sleep(SETTLE_SECONDS)
                peer()
            time.sleep(SETTLE_SECONDS)

        benchmark.pedantic(kernel, setup=run_peers, rounds=_rounds(kernel.function), iterations=1)
    speed = _speed(case, kernel, peers, unavailable)
    benchmark.extra_info.update({"case": case.id, "target": target, **speed})
    return speed


def _rounds(function: Callable[[], Any]) -> int:
    start = time.perf_counter()
    function()
    seconds = max(time.perf_counter() - start, 1e-9)
    return int(min(max(SECONDS_PER_ROW / seconds, MIN_ROUNDS), MAX_ROUNDS))


def _prepare_peers(case: Case, call: Any, ours: Any) -> tuple[dict[str, _Clock], dict[str, str]]:
    peers, unavailable = {}, {}
    for name in case.facts.peers:
        try:
            run = case.operation.peer_table[name].prepare(call, case)
        except PeerUnavailable as reason:
            unavailable[name] = str(reason)
            continue
        _check_agreement(case, name, ours, run())
        peers[name] = _Clock(run)
    return peers, unavailable


def _check_agreement(case: Case, name: str, ours: Any, theirs: Any) -> None:
    if hasattr(theirs, "detach"):
        theirs = theirs.detach().float().cpu().numpy()
    if case.features.get("layout") == "bshd":
        theirs = np.swapaxes(theirs, 1, 2)
    ours, theirs = np.asarray(ours).astype(np.float64), np.asarray(theirs).astype(np.float64)
    error, largest = float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())
    if not error <= AGREEMENT[case.dtype] * largest:
        raise CaseFailure("parity", f"differs from {name} by {error:.3g} where values reach {largest:.3g}")


def _speed(case: Case, kernel: _Clock, peers: dict[str, _Clock], unavailable: dict[str, str]) -> dict[str, Any]:
    cpu, wall = median(kernel.cpu), median(kernel.wall)
    speed: dict[str, Any] = {"cpu_s": cpu, "wall_s": wall, "rounds": len(kernel.wall)}
    if case.operation.flops is not None:
        speed["flop_per_s"] = case.operation.flops(case) / wall
    if case.operation.nbytes is not None:
        speed["byte_per_s"] = case.operation.nbytes(case) / wall
    speed["peers"] = {
        name: {
            "cpu_s": median(peer.cpu),
            "wall_s": median(peer.wall),
            "cpu_ratio": median(peer.cpu) / cpu,
            "wall_ratio": median(peer.wall) / wall,
            "bar": case.facts.bars.get(name),
        }
        for name, peer in peers.items()
    } | {name: {"unavailable": reason} for name, reason in unavailable.items()}
    return speed


def check_bars(case: Case, speed: dict[str, Any]) -> None:
    """Fail when the kernel is slower than a bar of its row allows."""
    for name, peer in speed["peers"].items():
        bar = peer.get("bar")
        if bar is not None and peer["cpu_ratio"] < bar:
            raise CaseFailure("speed", f"{peer['cpu_ratio']:.2f} times the speed of {name}, the bar is {bar:g}")


def table(records: list[dict[str, Any]]) -> list[str]:
    """The benchmark table that is printed at the end of a run."""
    width = max(len(record["case"]) for record in records) + 1
    head = (
        f"{'case':{width}}{'target':>7}{'wall ms':>10}{'cpu ms':>10}{'GFLOP/s':>9}{'GB/s':>8}  peer / kernel, CPU time"
    )
    lines = [head]
    for record in records:
        speed = record["speed"]
        lines.append(
            f"{record['case']:{width}}{record['target']:>7}{speed['wall_s'] * 1e3:10.3f}{speed['cpu_s'] * 1e3:10.3f}"
            f"{speed.get('flop_per_s', 0) / 1e9:9.1f}{speed.get('byte_per_s', 0) / 1e9:8.2f}  "
            + ", ".join(_peer_text(name, peer) for name, peer in speed["peers"].items())
        )
    return lines


def _peer_text(name: str, peer: dict[str, Any]) -> str:
    if "unavailable" in peer:
        return f"{name}: {peer['unavailable']}"
    text = f"{name} {peer['cpu_ratio']:.2f} (wall {peer['wall_ratio']:.2f})"
    if peer["bar"] is None:
        return text
    return f"{text}, bar {peer['bar']:g} {'met' if peer['cpu_ratio'] >= peer['bar'] else 'MISSED'}"
