"""Run rows of the matrix on the virtual AMD GPU, and hold against each other what ran and what the loader was given.

    python rows.py --rows 200 --arch gfx1100        (as amd_test.py runs it, see `make amd-test`)

A fixed sample: the quick rows whose ids have the smallest hashes, so that a new row changes it by one. They are dealt
to as many processes as there are cores, each with a virtual GPU of its own. It is a failure if

    a row fails, or was not collected
    code ran that the loader was not given, byte for byte (by its sha256, as a row's result has it)
    a row ran no code on the GPU, though its operation does
    a check of the executed code (waits, order) or of memory (out of bounds, use after free) has found something

Rows with an instruction that the emulator lacks are listed, and are no failure: nothing is known of them.

With ``--keep FILE`` rows are run a few at a time, and what passed is written there: see `kept`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kept import KeptRows, key_of

ROOT = Path(__file__).resolve().parents[2]
#: What a launch reports of an instruction that cannot be emulated (`hipErrorNotSupported`), and nothing else here does.
NOT_EMULATED = "hipErrorNotSupported"
#: Rows that a process runs before what it found is kept.
AT_ONCE = 10
#: What the virtual GPU is made of.
EMULATOR = ("vgpu.py", "vgpu_hip.c", "vgpu_checks.py", "vgpu_checks.c")

#: Operations whose every result is made on the host, whatever the target.
ON_THE_HOST = {"quantize"}


def main() -> int:
    """Run, print, and return 0 if everything holds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", default="200", help="how many quick rows, or: all (default: %(default)s)")
    parser.add_argument(
        "--operation", default="*", metavar="PATTERN", help="of these operations, such as *_backward (default: all)"
    )
    parser.add_argument("--arch", default="gfx1100", help="architecture of the virtual GPU (default: %(default)s)")
    parser.add_argument("--seed", default="0", help="scheduler's seed, see VGPU_SCHED (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows with the hashes of their code")
    parser.add_argument(
        "--lds", type=Path, metavar="FILE", help="check bank conflicts of shared memory too, for `rocmkern isa`; slower"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write rows that pass there; a run that was stopped goes on from it"
    )
    arguments = parser.parse_args()
    if arguments.keep and arguments.lds:
        parser.error("--keep and --lds exclude each other: bank conflicts are counted in rows that run")
    ids, started = sample(arguments.rows, arguments.operation), time.perf_counter()
    results, log, failed = kept_and_run(ids, arguments) if arguments.keep else run(ids, arguments)
    problems = judge(ids, results, log)
    report(results, log, arguments, time.perf_counter() - started)
    if arguments.json:
        arguments.json.write_text(json.dumps(record(results, log, arguments, problems), indent=1) + "\n")
        print(f"every row with the hashes of its code: {arguments.json}")
    if arguments.lds:
        code = merged_lds(log)
        arguments.lds.write_text(json.dumps({"lds_check": 1, "code": code}, indent=1) + "\n")
        print(f"conflicts of shared memory in {len(code)} code objects: {arguments.lds}")
    for problem in problems:
        print(f"FAILS: {problem}")
    if failed:
        print("FAILS: pytest itself ended with an error, see above")
    return 1 if problems or failed else 0


#: Results by the names of rows, the virtual GPU's log, and whether pytest ended with an error.
Found = tuple[dict[str, dict[str, Any]], list[dict[str, Any]], bool]


def run(ids: list[str], arguments: argparse.Namespace) -> Found:
    """Run rows, dealt to processes."""
    jobs = max(1, min(arguments.jobs, len(ids)))
    with tempfile.TemporaryDirectory(prefix="amd-test-") as directory:
        parts = [Path(directory, str(number)) for number in range(jobs)]
        running = [start(part, ids[number::jobs], arguments) for number, part in enumerate(parts)]
        failed = any([process.wait() not in (0, 1) for process in running])
        if failed:
            for part in parts:
                print((part / "output").read_text(errors="replace")[-6000:])
        return *collect(parts), failed


def kept_and_run(ids: list[str], arguments: argparse.Namespace) -> Found:
    """Take the rows that a file has, and run the others, a few at a time."""
    kept, keys = KeptRows(arguments.keep), keys_of(ids, arguments)
    there = [kept.rows[keys[name]] for name in ids if keys[name] in kept.rows]
    results = {row["result"]["case"]: row["result"] for row in there}
    log = [{"loaded": each} for row in there for each in row["loaded"]]
    missing = [name for name in ids if name not in results]
    print(f"{len(there)} rows passed earlier, of the same code; {len(missing)} are run", flush=True)
    failed, step = False, AT_ONCE * arguments.jobs
    for first in range(0, len(missing), step):
        some = missing[first : first + step]
        found, said, wrong = run(some, arguments)
        # What a check found is not said of a row: then none of them is known to be right.
        if not wrong and not any("problem" in entry for entry in said):
            kept.add(keys, found.values(), said)
        results, log, failed = {**results, **found}, log + said, failed or wrong
        passed = sum(result["outcome"] == "passed" for result in results.values())
        print(f"{len(results)} of {len(ids)} rows, {passed} passed", flush=True)
        for problem in judge(some, found, said):
            print(f"FAILS: {problem}", flush=True)
    return results, log, failed


def keys_of(ids: list[str], arguments: argparse.Namespace) -> dict[str, str]:
    """The keys of rows, by their names."""
    from amd_test import commit_of

    from rocmkern.matrix import load_cases
    from rocmkern.targets.hip import versions

    here = Path(__file__).parent
    emulator = hashlib.sha256(b"".join((here / name).read_bytes() for name in EMULATOR)).hexdigest()
    common = (str(versions()), emulator, commit_of(os.environ["TINYGRAD"]), arguments.seed)
    cases = {case.id: case for case in load_cases(ROOT / "matrix.yaml")[1]}
    return {name: key_of(cases[name], arguments.arch, common) for name in ids}


def sample(count: str, operation: str = "*") -> list[str]:
    """The ids of the rows to run."""
    from rocmkern.matrix import load_cases
    from rocmkern.matrix.sample import in_fixed_order

    cases = [case for case in load_cases(ROOT / "matrix.yaml")[1] if fnmatch(case.operation.name, operation)]
    quick = [case.id for case in in_fixed_order(cases, "hip")]
    if not quick:
        raise SystemExit(f"--operation is {operation}; allowed: a pattern that fits an operation with quick rows")
    if count != "all" and not (count.isdigit() and 0 < int(count) <= len(quick)):
        raise SystemExit(f"--rows is {count}; allowed: 1 to {len(quick)}, or all")
    return quick if count == "all" else quick[: int(count)]


def start(part: Path, ids: list[str], arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start pytest on some rows; everything that it leaves behind is in a folder of its own."""
    (part / "tmp").mkdir(parents=True)
    (part / "ids").write_text("".join(f"matrix.yaml::{name}[hip]\n" for name in ids))
    environment = {
        **os.environ,
        "ROCMKERN_TARGET": "hip",
        "VGPU_AUTO": "1",
        "VGPU_CODEGEN": "shipped",
        "VGPU_DEVICES": f"{arguments.arch}:20GiB",
        "VGPU_CHECK": "lds,waits,order" if arguments.lds else "waits,order",
        "VGPU_SCHED": arguments.seed,
        "VGPU_LOG": str(part / "log"),
        # The lock of a device is in the folder for temporary files; each process has a device of its own.
        "TMPDIR": str(part / "tmp"),
    }
    command = [
        sys.executable, "-m", "pytest", "-p", "rocmkern.testing.plugin", "-p", "no:cacheprovider", "-q", "-n", "0",
        "--rocmkern-target", "hip", "--rocmkern-emulated", f"--rocmkern-json={part / 'results.json'}",
        "--rocmkern-deadline", "900", f"@{part / 'ids'}",
    ]  # fmt: skip
    with (part / "output").open("wb") as output:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)


def collect(parts: list[Path]) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The results of all rows by id, and the virtual GPU's log."""
    results, log = {}, []
    for part in parts:
        if (part / "results.json").exists():
            found = json.loads((part / "results.json").read_text())["results"]
            results.update({result["case"]: result for result in found})
        if (part / "log").exists():
            log += [json.loads(line) for line in (part / "log").read_text().splitlines()]
    return results, log


def judge(ids: list[str], results: dict[str, dict[str, Any]], log: list[dict[str, Any]]) -> list[str]:
    """Everything that does not hold, a sentence each."""
    given = {entry["loaded"]["sha256"] for entry in log if "loaded" in entry}
    problems = [f"{name} was not collected" for name in ids if name not in results]
    problems += sorted(
        {entry["problem"] for entry in log if "problem" in entry and "cannot emulate" not in entry["problem"]}
    )
    for name, result in results.items():
        if result["outcome"] == "failed" and NOT_EMULATED not in result["reason"]:
            problems.append(f"{name}: {result['reason']}")
        if result["outcome"] == "skipped":
            problems.append(f"{name} was skipped: {result['reason']}")
        if result["outcome"] == "passed" and result["outputs"]:
            strange = [code for code in result["code"] if code not in given]
            problems += [f"{name} ran code {code} that the loader was not given" for code in strange]
            if not result["code"] and result["operation"] not in ON_THE_HOST and not _is_empty(result):
                problems.append(f"{name} ran no code on the GPU")
    return problems


def _is_empty(result: dict[str, Any]) -> bool:
    """Whether an extent of a row is 0, or that of no sequence, so that there may be nothing to launch."""
    extents = result["dims"].values()
    return any((not each or 0 in each) if isinstance(each, list) else each == 0 for each in extents)


def code_objects(log: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the loader was given, by the sha256 of all its bytes."""
    return {entry["loaded"]["sha256"]: entry["loaded"] for entry in log if "loaded" in entry}


def merged_lds(log: list[dict[str, Any]]) -> dict[str, Any]:
    """What the check of shared memory has counted in all processes: by the hash of the code, by instruction."""
    merged: dict[str, Any] = {}
    for code, found in (item for entry in log if "lds" in entry for item in entry["lds"].items()):
        known = merged.setdefault(code, {**found, "matrix": 0, "instructions": {}})
        known["matrix"] += found["matrix"]
        for offset, counted in found["instructions"].items():
            before = known["instructions"].get(offset, {"executed": 0, "cycles": [0, 0], "ideal": 0})
            sums = {name: before[name] + counted[name] for name in ("executed", "ideal")}
            cycles = [one + other for one, other in zip(before["cycles"], counted["cycles"], strict=True)]
            known["instructions"][offset] = {**counted, **sums, "cycles": cycles}
    return dict(sorted(merged.items()))


def lacks(log: list[dict[str, Any]]) -> list[str]:
    """Instructions that were met, and that the emulator lacks."""
    return sorted({entry["lacks"] for entry in log if "lacks" in entry})


def record(
    results: dict[str, dict[str, Any]], log: list[dict[str, Any]], arguments: argparse.Namespace, problems: list[str]
) -> dict[str, Any]:
    """What ran, for a file: of each row the sha256 of the code objects that it ran, of each of those what it holds.

    ``code_sha256`` covers machine code, kernel descriptors and metadata: it is the same whichever linker was used.
    """
    kept = ("outcome", "reason", "code")
    return {
        "arch": arguments.arch,
        "seed": arguments.seed,
        "rows": {name: {key: result[key] for key in kept} for name, result in sorted(results.items())},
        "code_objects": dict(sorted(code_objects(log).items())),
        "lacks": lacks(log),
        "problems": problems,
    }


def report(
    results: dict[str, dict[str, Any]], log: list[dict[str, Any]], arguments: argparse.Namespace, seconds: float
) -> None:
    """Print what ran."""
    import vgpu

    objects, lacking = code_objects(log), lacks(log)
    unknown = [name for name, result in results.items() if NOT_EMULATED in result["reason"]]
    outcomes = [result["outcome"] for result in results.values() if NOT_EMULATED not in result["reason"]]
    everything = hashlib.sha256("".join(sorted(each["code_sha256"] for each in objects.values())).encode()).hexdigest()
    print(f"instructions executed by the project instead of the emulator: {', '.join(map('/'.join, vgpu.mended()))}")
    print(f"forms of instructions that are mended in the emulator: {'; '.join(vgpu.MENDED_FORMS)}")
    print(f"instructions that the emulator lacks, met in this run: {'; '.join(lacking) or 'none'}")
    print(f"rows that could not be executed for that: {', '.join(unknown) or 'none'}")
    operations = Counter(result["operation"] for result in results.values())
    print(f"rows by operation: {', '.join(f'{name} {count}' for name, count in sorted(operations.items()))}")
    versions = ", ".join(sorted({str(each["version"]) for each in objects.values()}))
    print(
        f"code objects loaded: {len(objects)}, of code object version {versions}; hash of all their code {everything}"
    )
    print(
        f"{outcomes.count('passed')} passed, {outcomes.count('failed')} failed, {outcomes.count('skipped')} skipped, "
        f"{len(unknown)} not executed on {arguments.arch} with checks waits and order, seed {arguments.seed}, "
        f"in {seconds:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
