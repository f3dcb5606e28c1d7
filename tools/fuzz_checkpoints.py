"""Open damaged checkpoints, each within limits of time and memory.

    python tools/fuzz_checkpoints.py                       # 5000, a seed by the clock
    python tools/fuzz_checkpoints.py --count 20 --seed 3
    python tools/fuzz_checkpoints.py --seed 3 --only 17    # one of them, with what came of it

Each must end in an error of this library or in tensors that are what the files say (`tests/checkpoint/damage.py`), in
2 s of processor time, and with 200 MB of memory more than before. They run in child processes: one that crashes, hangs
or is killed is counted against the checkpoint that it was about, and another one goes on behind it. The exit status is
1 if there is a failure.
"""

from __future__ import annotations

import argparse
import collections
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS, MEGABYTES = 2.0, 200
#: A child that says nothing for so long, on a busy machine, hangs.
SILENCE = 60


class TooSlowError(BaseException):
    """Not an Exception, so that nothing takes it for a damaged file."""


def work(seed: int, first: int, stop: int, verbose: bool) -> None:
    """Child process: a line for each checkpoint, its number before and its outcome after it."""
    for folder in ("checkpoint", "decoder"):
        sys.path.insert(0, str(ROOT / "tests" / folder))
    import damage

    sound = [make() for make in damage.SOUND]
    with tempfile.TemporaryDirectory() as directory:
        for files in sound:  # imports and caches are no matter of a checkpoint
            assert outcome_of(damage, Path(directory), files).startswith("opened")
        signal.signal(signal.SIGPROF, _too_slow)
        _limit_memory()
        for number in range(first, stop):
            print(number, end="\t", flush=True)
            what, files = damage.damaged(seed, number, sound)
            began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                outcome = outcome_of(damage, Path(directory), files)
            except BaseException as error:
                outcome = f"FAILED: {type(error).__name__}: {error}"
                if verbose:
                    traceback.print_exc()
            signal.setitimer(signal.ITIMER_PROF, 0)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            if grown > MEGABYTES:
                outcome = f"FAILED: took {grown} MB"
            print(f"{time.process_time() - began:.3f}\t{grown}\t{what}\t{' '.join(outcome.split())}", flush=True)


def outcome_of(damage, directory: Path, files: dict[str, bytes]) -> str:
    for path in directory.iterdir():
        path.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return damage.open_all(directory)


def _too_slow(*_: object) -> None:
    raise TooSlowError(f"more than {SECONDS} s")


def _limit_memory() -> None:
    """Address space: what there is, and so much more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (MEGABYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run(seed: int, first: int, stop: int, verbose: bool = False) -> list[tuple[int, list[str]]]:
    """The outcome of each: its number, and seconds, megabytes, what was done, what came of it."""
    results: list[tuple[int, list[str]]] = []
    while first < stop:
        command = [sys.executable, __file__, "--child", str(seed), str(first), str(stop), str(int(verbose))]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        watchdog = threading.Timer(SILENCE, child.kill)
        watchdog.start()
        for line in child.stdout:
            watchdog.cancel()
            number, *rest = line.rstrip("\n").split("\t")
            if len(rest) == 4:  # not the half of a line that a dying process left
                results.append((int(number), rest))
                first = int(number) + 1
            watchdog = threading.Timer(SILENCE, child.kill)
            watchdog.start()
        watchdog.cancel()
        status = child.wait()
        if first < stop:
            results.append((first, ["0", "0", "?", f"FAILED: the process ended with {status}, or hung"]))
            first += 1
    return results


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        work(*map(int, sys.argv[2:]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000, help="how many checkpoints (default: 5000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: by the clock")
    parser.add_argument("--only", type=int, help="one of them")
    options = parser.parse_args()
    first, stop = (0, options.count) if options.only is None else (options.only, options.only + 1)
    results = run(options.seed, first, stop, options.only is not None)
    failures = [(number, rest) for number, rest in results if rest[3].startswith("FAILED")]
    for number, rest in failures if options.only is None else results:
        print(number, *rest)
    kinds = collections.Counter(rest[3].split(":")[0] for _, rest in results)
    slowest, largest = (max((float(rest[i]) for _, rest in results), default=0) for i in (0, 1))
    print(
        f"seed {options.seed}: {len(results)} checkpoints; {dict(kinds)}; at most {slowest:.2f} s and {largest:.0f} MB"
    )
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
