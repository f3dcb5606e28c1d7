"""Mutation testing: small changes of the library's source, each with the tests that run the changed place.

    pip install cosmic-ray                            # or, without its dependencies: cosmic-ray, parso, attrs
    python tools/mutation.py record DIRECTORY         # once: which test runs which line (as long as the suite)
    python tools/mutation.py draw DIRECTORY           # 150 mutants (see `mutants`) into DIRECTORY/mutants.jsonl
    python tools/mutation.py run DIRECTORY --jobs 8   # try them; goes on where it stopped
    python tools/mutation.py verify DIRECTORY         # the tests that killed them must pass without them
    python tools/mutation.py report DIRECTORY         # the survivors; the exit status is 1 above 10 %

Tests are those of `tests/` and the quick rows of the matrix on the interpreter and the CPU. A mutant is tried on a copy
of the repository with all tests that run it (see `mutation_tests`), quick ones first, from as many files as there are.
It is killed when one of them fails, or when they do not end within three times what they take without it. It survives
when they pass, or when three minutes are over; the report says how many of them ran. ``run --budget 15`` first tries
each with tests of 15 seconds, a later ``run`` goes on with the survivors.

A survivor counts, unless ``DIRECTORY/equivalent.json`` gives its id with the reason why nothing can tell it from the
original.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import PARTS, Mutant, draw
from mutation_tests import Tests

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rocmkern"
SEED, COUNT = 14, 150
#: Seconds for a mutant.
DEADLINE = 180.0
ALLOWED = 0.10
#: Rows of the matrix that are recorded by one process, and what a test may take that is recorded.
ROWS_TOGETHER, LONGEST_TEST = 120, 120
#: Parts whose mutants change the code that kernels are compiled to: they do not share the compiled ones.
COMPILED = ("kernels", "tile")
NOT_COPIED = (".*", "__pycache__", "build", "dist", "*.egg-info")

_PYTEST = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:warnings"]


# -------------------------------------------------------------------------------------------------------------- record


def record(directory: Path, jobs: int, seconds: float, only: Sequence[str]) -> None:
    """Run the tests, and the rows of the matrix on the interpreter and the CPU, and write down what they run.

    It is done in a copy, so that processes that tests start with the library's directory in their path tell it too.
    """
    end = time.monotonic() + seconds
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    units = {file.replace("/", "_"): [file] for file in sorted(files, key=lambda f: -(ROOT / f).stat().st_size)}
    rows = _rows()
    # Each of the operations has rows in each unit, because some take far longer than others.
    count = -(-len(rows) // ROWS_TOGETHER)
    for number in range(count):
        units[f"matrix.yaml-{number}"] = rows[number::count]
    wanted = {name: tests for name, tests in units.items() if not only or any(part in name for part in only)}
    cache = directory / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)

    def one(name: str, root: Path) -> str:
        path = directory / f"record-{name}.jsonl"
        if path.exists() or time.monotonic() > end:
            return f"{name}: " + ("recorded before" if path.exists() else "not recorded: the time is over")
        listed, start = directory / f"{name}.list", time.monotonic()
        listed.write_text("\n".join(wanted[name]), encoding="utf-8")
        environment = _environment(root, cache)
        environment["PYTHONPATH"] += os.pathsep + str(root / "tools")
        command = [*_PYTEST, "--timeout", str(LONGEST_TEST), "-p", "mutation_record", "--record", str(path)]
        said = _ended([*command, f"@{listed}"], root, environment, end - time.monotonic())[1]
        listed.unlink()
        return f"{time.monotonic() - start:5.0f} s {name}: {' '.join(said[-1:])}"

    with tempfile.TemporaryDirectory(prefix="mutant-") as place, ThreadPoolExecutor(jobs) as pool:
        root = copied(Path(place))
        lines = runpy.run_path(str(root / "tools" / "mutation_lines.py"))
        (root / "sitecustomize.py").write_text(lines["SITECUSTOMIZE"], encoding="utf-8")
        for future in as_completed([pool.submit(one, name, root) for name in wanted]):
            print(future.result(), flush=True)


def _rows() -> list[str]:
    """The quick rows of the matrix on the interpreter and the CPU, as pytest calls them."""
    done = subprocess.run(
        [sys.executable, "-c", "from rocmkern.cli import main; main(['matrix', 'list', '--category', 'quick'])"],
        cwd=ROOT, env=_environment(ROOT, None), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [f"matrix.yaml::{case}[{target}]" for case in done.stdout.split() for target in ("python", "cpu")]


def _environment(root: Path, cache: Path | None) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(root), "ROCMKERN_NO_GPU": "1", "ROCMKERN_NUM_THREADS": "2"}
    if cache:
        environment["ROCMKERN_CACHE_DIR"] = str(cache)
    return environment


def _ended(command: Sequence[str], where: Path, environment: dict[str, str], seconds: float) -> tuple[int, list[str]]:
    """Exit status of a command, -9 where it was killed with all that it started, and what it said."""
    # Not through a pipe: a process that it left behind would keep it open.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            command, cwd=where, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        said.seek(0)
        return process.returncode, said.read().strip().splitlines()


# ----------------------------------------------------------------------------------------------------------------- run


def write_drawn(directory: Path, count: int, seed: int, parts: Sequence[str]) -> None:
    """Draw the mutants; each with the hash of the file that it changes."""
    with (directory / "mutants.jsonl").open("w", encoding="utf-8") as file:
        for mutant, text in draw(count, seed, parts).items():
            entry = {**asdict(mutant), "id": mutant.id, "of": _hash(PACKAGE / mutant.file), "text": text}
            file.write(json.dumps(entry) + "\n")


def drawn(directory: Path) -> dict[Mutant, str]:
    """The mutants of a directory."""
    found = {}
    for entry in _lines(directory / "mutants.jsonl"):
        if entry.pop("of") != _hash(PACKAGE / entry["file"]):
            raise SystemExit(f"{entry['file']} is not what {directory / 'mutants.jsonl'} was drawn from; draw it again")
        text, _ = entry.pop("text"), entry.pop("id")
        found[Mutant(**entry | {"spans": tuple(map(tuple, entry["spans"]))})] = text
    return found


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(directory: Path, jobs: int, budget: float, seconds: float) -> None:
    """Try the mutants that were not tried yet, or not with all of their tests."""
    end = time.monotonic() + seconds
    mutants = drawn(directory)
    tests, path = Tests(directory, list(mutants), _there()), directory / "results.jsonl"
    done = {entry["id"]: entry for entry in results(directory)}

    def one(mutant: Mutant) -> dict[str, Any] | None:
        before = done.get(mutant.id)
        if before is not None and before["outcome"] != "survived":
            return None
        if time.monotonic() > end:
            return None
        with tempfile.TemporaryDirectory(prefix="mutant-") as place:
            cache = directory / "cache"
            return attempt(mutant, mutants[mutant], tests, Path(place), cache, budget, before, end)

    with ThreadPoolExecutor(jobs) as pool, path.open("a", encoding="utf-8") as file:
        for future in as_completed([pool.submit(one, mutant) for mutant in mutants]):
            entry = future.result()
            if entry is not None:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                print(f"{entry['outcome']:<9} {entry['seconds']:>5.0f} s {_ran(entry)}  {entry['id']}", flush=True)


def _there() -> set[str]:
    """The tests that can be chosen here: a recording may be of another machine, where more is installed."""
    command = [*_PYTEST, "--collect-only", "tests"]
    done = subprocess.run(command, cwd=ROOT, env=_environment(ROOT, None), capture_output=True, text=True, check=True)
    return {*_rows(), *(line for line in done.stdout.splitlines() if "::" in line)}


def attempt(
    mutant: Mutant, text: str, tests: Tests, place: Path, cache: Path, budget: float, before: dict[str, Any] | None,
    end: float,
) -> dict[str, Any] | None:  # fmt: skip
    """One mutant, in a copy of the repository, with the tests that did not run before.

    None where none is left, or where `end`, of the monotonic clock, came before that of the tests.
    """
    covering = tests.of(mutant)
    first, spent = (before["ran"], before["seconds"]) if before else (0, 0.0)
    compiled: set[str] = set() if mutant.part in COMPILED else set(tests.compiling)
    chosen: list[str] = []
    expected = 0.0
    for test in covering.tests[first:]:
        cost = tests.cost(test, compiled)
        if chosen and expected + cost > min(budget, DEADLINE - spent):
            break
        chosen.append(test)
        expected += cost
    if before and (not chosen or spent > DEADLINE - 5):
        return None
    original = (PACKAGE / mutant.file).read_text(encoding="utf-8").splitlines()
    changed = ((x.strip(), y.strip()) for x, y in zip(original, text.splitlines(), strict=False) if x != y)
    change = next(changed, ("", ""))
    outcome, said, start, failed = "survived", [], time.monotonic(), []
    if chosen:
        copy = copied(place)
        (copy / "rocmkern" / mutant.file).write_text(text, encoding="utf-8")
        listed = place / "tests"
        listed.write_text("\n".join(chosen), encoding="utf-8")
        environment = _environment(copy, place / "cache" if mutant.part in COMPILED else cache)
        longest = max(tests.seconds[test] for test in chosen)
        command = [*_PYTEST, "-x", "--timeout", str(30 + 5 * round(longest)), f"@{listed}"]
        limit = min(DEADLINE, 60 + 3 * expected)
        status, said = _ended(command, copy, environment, min(limit, end - start))
        if status == -9 and time.monotonic() > end:
            return None
        if status == -9:
            outcome = "timeout" if expected < limit / 3 else "survived"
        elif status != 0:
            outcome = "killed"
        # An id may have spaces in it.
        lines = (line.partition(" ")[2] for line in said if line.startswith(("FAILED ", "ERROR ")))
        failed = [line.partition(" - ")[0] for line in lines if "::" in line]
    return {
        **asdict(mutant), "id": mutant.id, "outcome": outcome, "seconds": round(spent + time.monotonic() - start, 1),
        "ran": first + len(chosen), "tests": len(covering.tests), "executed": covering.executed,
        "before": change[0], "after": change[1], "failed": failed[:1], "said": said[-3:],
    }  # fmt: skip


def copied(place: Path) -> Path:
    """A copy of the repository."""
    copy = place / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
    return copy


def verify(directory: Path) -> int:
    """Whether the tests that killed mutants pass without them, in a copy too."""
    killing = sorted({test for entry in results(directory) for test in entry["failed"] if "::" in test})
    if not killing:
        print("no test killed a mutant")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        copy, listed = copied(Path(place)), Path(place) / "tests"
        listed.write_text("\n".join(killing), encoding="utf-8")
        environment = _environment(copy, Path(place) / "cache")
        status, said = _ended([*_PYTEST, f"@{listed}"], copy, environment, 3600)
    print("\n".join([*(line for line in said if line.startswith(("FAILED ", "ERROR "))), *said[-1:]]))
    return int(status != 0)


def results(directory: Path) -> list[dict[str, Any]]:
    """What is known of each mutant by now."""
    return list({entry["id"]: entry for entry in _lines(directory / "results.jsonl")}.values())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _ran(entry: dict[str, Any]) -> str:
    where = "" if entry["executed"] else ", none of which runs the changed statement"
    return f"{entry['ran']} of {entry['tests']} tests{where}"


def report(directory: Path) -> int:
    """Print the survivors; whether there are too many."""
    path = directory / "equivalent.json"
    equivalent = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries = results(directory)
    survivors = [entry for entry in entries if entry["outcome"] == "survived"]
    for entry in survivors:
        reason = equivalent.get(entry["id"])
        print(f"{entry['id']} ({_ran(entry)})\n  - {entry['before']}\n  + {entry['after']}")
        print(f"  nothing can tell: {reason}" if reason else "", end="\n" if reason else "")
    counted = [entry for entry in survivors if entry["id"] not in equivalent]
    for part, count in sorted(Counter(entry["part"] for entry in entries).items()):
        print(f"{part:<12} {count:>4} mutants {sum(e['part'] == part for e in counted):>4} survive")
    share = len(counted) / max(1, len(entries))
    print(f"{len(entries)} mutants, {len(counted)} survive ({share:.0%}); allowed: {ALLOWED:.0%}")
    return 1 if share > ALLOWED else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("record", "draw", "run", "verify", "report"))
    parser.add_argument("directory", type=Path, help="where recordings and results lie")
    parser.add_argument("only", nargs="*", help="record: only what has one of these in its name")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e6, help="stop after this time")
    parser.add_argument("--count", type=int, default=COUNT, help="mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the drawing (default: %(default)s)")
    parser.add_argument("--parts", default=",".join(PARTS), help="of the library (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=DEADLINE, help="seconds of tests (default: %(default)s)")
    options = parser.parse_args(arguments)
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if options.step == "record":
        record(directory, options.jobs, options.seconds, options.only)
    elif options.step == "draw":
        write_drawn(directory, options.count, options.seed, options.parts.split(","))
    elif options.step == "run":
        run(directory, options.jobs, options.budget, options.seconds)
    return {"verify": verify, "report": report}.get(options.step, lambda directory: 0)(directory)


if __name__ == "__main__":
    sys.exit(main())
