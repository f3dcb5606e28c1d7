"""Write one file that says all that is worth knowing of a first run on a card: to be looked at, and sent.

    rocmkern report --card                  doctor, all quick rows, ten benchmarks: rocmkern-card-report.json
    rocmkern report --card --rows 200       a fixed sample of the rows, a few minutes
    rocmkern report --same-code A B         do the rows of two such files run the same machine code?

The file has doctor's findings, versions, hashes of the code that ran, results, times, and clocks, temperature and power
where the machine shows them. Names of users and hosts and paths are taken out of it, and nothing is sent anywhere. Each
row runs in a process that is ended at the deadline: what hangs or crashes is a line of the report, and the rest goes
on. The file is written again and again meanwhile, so that even a machine that stops leaves one. The exit status is 0 if
all that was asked for ran and passed, or the code is the same. Without a card the rows run on the CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rocmkern.cli._matrix_file import default_matrix
from rocmkern.runtime.errors import ArgumentError
from rocmkern.targets import NAMES

SUMMARY = "one file about this machine's card, its rows and its speed, to send back"
DEFAULT_FILE = "rocmkern-card-report.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to run, and where the report goes."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--card", action="store_true", help="make a report of this machine's card")
    what.add_argument(
        "--same-code",
        nargs=2,
        type=Path,
        metavar="FILE",
        help="compare the hashes of code in two reports, or in one and a file of amd-test --json",
    )
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_FILE), metavar="FILE", help="(default: %(default)s)")
    parser.add_argument("--rows", default="all", metavar="N", help="quick rows to run, or: all (default: %(default)s)")
    parser.add_argument(
        "--benchmarks",
        default="",
        metavar="N",
        help="how many of the ten benchmarks (default: all; none where the card is emulated)",
    )
    parser.add_argument("--target", default=None, help="hip, cuda, cpu or python (default: the chosen target)")
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="what a row may take (default: deadline_s of the row, or 300)"
    )
    parser.add_argument(
        "--matrix", type=Path, default=default_matrix(), metavar="FILE", help="matrix file (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run, write, and say what was found; or compare."""
    if arguments.same_code:
        # deferred: start-up
        from rocmkern.cli import _same_code

        lines, same = _same_code.compare(*map(_same_code.read, arguments.same_code))
        print("\n".join(lines))
        return 0 if same else 1
    return _report(arguments)


def _report(arguments: argparse.Namespace) -> int:
    """Make a report of this machine's card."""
    # deferred: start-up
    from rocmkern.cli._anonymous import Anonymizer
    from rocmkern.cli._card_report import CardReport
    from rocmkern.matrix import load_cases
    from rocmkern.targets.cache import own_directory

    if arguments.target not in (None, *NAMES):
        raise ArgumentError("--target", arguments.target, ", ".join(NAMES))
    if arguments.deadline is not None and not 0 < arguments.deadline < float("inf"):
        raise ArgumentError("--deadline", f"{arguments.deadline:g}", "a finite number of seconds above 0")
    rows, benchmarks = _count("--rows", arguments.rows or "all"), _count("--benchmarks", arguments.benchmarks or "all")
    cases = load_cases(arguments.matrix)[1]
    _refuse_unwritable(arguments.out)
    with tempfile.TemporaryDirectory(prefix="rocmkern-report-") as directory:
        # Each row would compile its kernels again, and nobody could tell afterwards what ran.
        if own_directory() is None:
            os.chmod(directory, 0o700)
            os.environ["ROCMKERN_CACHE_DIR"] = directory
        report = CardReport(arguments.out, _say, Anonymizer.of_this_machine())
        try:
            _collect(report, cases, rows, benchmarks, arguments)
            data = report.finish()
        except KeyboardInterrupt:
            report.write()
            print(f"{arguments.out}: ended before it was complete", file=sys.stderr)
            return 130
        finally:
            report.close()
    return _tell(arguments.out, data)


def _collect(
    report: Any, cases: list[Any], rows: int | None, benchmarks: int | None, arguments: argparse.Namespace
) -> None:
    """Everything that goes into the report."""
    # deferred: start-up
    from rocmkern.cli._card_report import BENCHMARKS
    from rocmkern.matrix.sample import in_fixed_order

    target = report.look(arguments.target)
    if target is None or not report.open(target, Path(arguments.matrix).resolve()):
        return
    report.rows(in_fixed_order(cases, target)[:rows], arguments.deadline)
    if not arguments.benchmarks and report.data["emulated"]:
        report.data["benchmarks"] = "not run: the card is emulated, so that times say nothing"
        return
    timed = {case.id: case for case in cases if case.skip_reason(target) is None}
    report.benchmarks([timed[name] for name in BENCHMARKS if name in timed][:benchmarks])


def _count(name: str, text: str) -> int | None:
    """A number of rows; None for all."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise ArgumentError(name, text, "a whole number, at least 0, or all")
    return int(text)


def _refuse_unwritable(path: Path) -> None:
    """Find out before the run what would lose the report at the end."""
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "a directory" if path.is_dir() else "in a folder that is missing or cannot be written"
        raise ArgumentError("--out", f"{path}, {reason}", "a file in a folder of yours")


def _say(text: str) -> None:
    """What is done now: after a machine has stopped, the last line tells what it was."""
    print(text, file=sys.stderr, flush=True)


def _tell(path: Path, data: dict[str, Any]) -> int:
    """Say what the report has."""
    outcomes, not_run = data["counts"]["outcomes"], data["counts"]["not_run"]
    device = data["run"]["environment"]["devices"][data["target"]]["name"] if "run" in data else "nothing"
    ran = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "nothing"
    print(f"on {data['target']} ({device}{', emulated' if data.get('emulated') else ''}): {ran}, {not_run} not run")
    for kind, count in data["counts"]["errors"].items():
        print(f"  {count} x {kind}")
    if "given_up" in data:
        print(f"given up: {data['given_up']}")
    if isinstance(data.get("benchmarks"), str):
        print(f"benchmarks: {data['benchmarks']}")
    for when, reading in data["sensors"].items():
        if "absent" in reading:
            print(f"clocks, temperature, power {when}: {reading['absent']}")
    print(f"{path}: {PLAIN}")
    return 0 if not data["counts"]["errors"] and not not_run and "run" in data else 1


PLAIN = (
    "names of users and hosts and paths are not in it, and it was sent nowhere; docs/first-card.md: where to send it"
)
