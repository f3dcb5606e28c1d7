"""Look at a matrix, run single cases of it, and prove that it would notice mistakes.

    rocmkern matrix list [PATTERN ...]      the cases, one a line
    rocmkern matrix show ID ...             what a case is: its row, its arrays
    rocmkern matrix explain ID ...          why its bound is what it is, and five lines that reproduce it
    rocmkern matrix run PATTERN ...         run cases and print what was measured
    rocmkern matrix validate                read the file; a mistake is an error with its position; with
                                            --results FILE ..., a bound far above what was measured is one
    rocmkern matrix mutate [FAULT ...]      put every seeded fault in and say which quick rows catch it; with
                                            --target cpu, hip or cuda those of the emitted machine code
    rocmkern matrix isolate [PATTERN ...]   does a case give the same bits alone, in any order and in dirty memory?
    rocmkern matrix compare BASELINE RUN    which benchmark rows became slower or faster, and which differ by noise
    rocmkern matrix report RESULTS ...      one page of support, accuracy and speed from files of pytest --rocmkern-json

A PATTERN is an id, an id with * and ?, or a part of one: "phi2", "*d80*bf16*". The exit status is 1 if a case fails, a
fault is not caught, or the bits of a case depend on what ran before. Without --matrix it is the matrix.yaml of this
directory, else the one of this library.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import rocmkern
from rocmkern.cli._matrix_file import default_matrix
from rocmkern.runtime.errors import ArgumentError

SUMMARY = "list, show, run and explain the cases of a matrix file; find out which faults it catches"
COMPARED = (
    "A benchmark row became slower or faster, and is no noise, when a two-sided Mann-Whitney rank test of the samples "
    "of both runs has p < 0.01 and the medians differ by at least the smallest effect. Rows of different devices are "
    "compared by their ratios to peers only. The exit status is 1 where a row became slower."
)
MUTATE_JSON = 'print {"faults": [{"name", "caught", "rows"}]}, with "error" where a fault cannot be put in'
TARGETS = ("python", "cpu", "hip", "cuda")
CATEGORIES = ("quick", "full", "benchmark")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand for each thing to do."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument(
            "--matrix",
            type=Path,
            default=default_matrix(),
            metavar="FILE",
            help="matrix file (default: %(default)s)",
        )
        action.set_defaults(action=run)
        return action

    listing = add("list", _list, "name the cases")
    listing.add_argument("patterns", nargs="*", metavar="PATTERN", help="ids with * and ?, or parts of ids")
    listing.add_argument("--operation", action="append", metavar="NAME", help="cases of one operation (repeatable)")
    listing.add_argument("--category", action="append", choices=CATEGORIES, help="cases of a category (repeatable)")
    listing.add_argument("--json", action="store_true", help="as JSON, with dimensions and features")
    for name, run, text in (
        ("show", _show, "what a case is"),
        ("explain", _explain, "why a case has its bound, and how to reproduce it"),
        ("run", _run, "run cases and print what was measured"),
    ):
        action = add(name, run, text)
        action.add_argument("patterns", nargs="+", metavar="PATTERN", help="ids with * and ?, or parts of ids")
        if name != "show":
            action.add_argument("--target", choices=TARGETS, help="default: the chosen target")
    validate = add("validate", _validate, "read the file and expand it; with results, look for loose bounds")
    validate.add_argument(
        "--results", nargs="+", type=Path, metavar="RESULTS", default=[],
        help="files of pytest --rocmkern-json: a bound ten times above all that was measured is a mistake",
    )  # fmt: skip
    mutate = add("mutate", _mutate, "put seeded faults in and say which quick rows catch them")
    mutate.add_argument("faults", nargs="*", metavar="FAULT", help="names (default: all)")
    mutate.add_argument(
        "--json",
        action="store_true",
        help=MUTATE_JSON,
    )
    mutate.add_argument("--first", action="store_true", help="stop at the first row that catches a fault")
    mutate.add_argument(
        "--target", choices=("cpu", "hip", "cuda"), help="faults of this target's lowering instead of the kernels'"
    )
    mutate.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time, of a lowering (default: 1)")
    compare = actions.add_parser("compare", help="benchmark rows of two files of results", description=COMPARED)
    compare.add_argument("baseline", type=Path, metavar="BASELINE", help="of pytest --benchmark-only --rocmkern-json")
    compare.add_argument("results", type=Path, metavar="RUN", help="file of a later run")
    compare.add_argument("--effect", type=float, metavar="SHARE", help="smallest difference of medians (default: 0.05)")
    compare.set_defaults(action=_compare)
    isolation = add("isolate", _isolate, "find cases whose bits depend on what ran before them")
    isolation.add_argument("patterns", nargs="*", metavar="PATTERN", help="ids with * and ? (default: all quick cases)")
    isolation.add_argument("--target", choices=TARGETS, help="default: the chosen target")
    isolation.add_argument("--json", action="store_true", help='print {"outcomes": {WAY: {ID: hashes or a text}}}')
    isolation.add_argument(
        "--keep", type=Path, metavar="FILE", help="write every outcome there; a run that was stopped goes on from it"
    )
    isolation.add_argument("--smallest", action="store_true", help="one case for each operation and dtype")
    isolation.add_argument("--seed", type=int, default=0, help="of the random order (default: %(default)s)")
    isolation.add_argument(
        "--ways", default="alone,file,random,dirty", help="separated by commas (default: %(default)s)"
    )
    isolation.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help="what a case may take (default: deadline_s of its row, or 300)",
    )
    report = actions.add_parser("report", help="a page from files of results", description="A page from results.")
    report.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="files of pytest --rocmkern-json")
    report.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained HTML page")
    report.add_argument("--markdown", type=Path, metavar="FILE", help="write Markdown (default: print it)")
    report.set_defaults(action=_report)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked for."""
    status: int = arguments.action(arguments)
    return status


def _list(arguments: argparse.Namespace) -> int:
    cases = [
        case
        for case in _matching(_cases(arguments), arguments.patterns or ["*"])
        if case.operation.name in (arguments.operation or [case.operation.name])
        and case.category in (arguments.category or CATEGORIES)
    ]
    if arguments.json:
        print(json.dumps([_record(case) for case in cases], indent=1))
    else:
        for case in cases:
            print(case.id)
        print(f"{len(cases)} cases", file=sys.stderr)
    return 0


def _record(case: Any) -> dict[str, Any]:
    facts = case.facts
    return {
        "id": case.id,
        "operation": case.operation.name,
        "group": facts.group,
        "category": case.category,
        "dtype": case.dtype,
        "dims": dict(case.dims),
        "features": dict(case.features),
        "memory": case.memory,
        "line": facts.line,
        "why": facts.why,
    }


def _show(arguments: argparse.Namespace) -> int:
    # deferred: start-up
    from rocmkern.matrix.explain import describe_case

    return _print_each(arguments, describe_case)


def _explain(arguments: argparse.Namespace) -> int:
    # deferred: start-up
    from rocmkern.matrix.explain import explain_case

    target = _target(arguments)
    return _print_each(arguments, lambda case: explain_case(case, target))


def _print_each(arguments: argparse.Namespace, describe: Callable[[Any], list[str]]) -> int:
    # deferred: start-up
    from rocmkern.matrix import MatrixError

    for number, case in enumerate(_matching(_cases(arguments), arguments.patterns)):
        try:
            lines = describe(case)
        except MemoryError as error:
            facts = case.facts
            raise MatrixError(f"case {case.id}: {error}", file=facts.file, line=facts.line, column=1) from None
        print(("\n" if number else "") + "\n".join(lines))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    # deferred: start-up
    from rocmkern.matrix import reproduce, run_case
    from rocmkern.matrix.known import tolerated

    target, counts = _target(arguments), {"passed": 0, "failed": 0, "known": 0, "skipped": 0}
    for case in _matching(_cases(arguments), arguments.patterns):
        reason = case.skip_reason(target)
        if reason:
            print(f"skipped  {case.id}: {reason}")
            counts["skipped"] += 1
            continue
        try:
            try:
                result = run_case(case, target)
            except (Exception, SystemExit) as error:
                # The case's own, or what its inputs ask for: the others still run.
                print(f"known    {case.id}: {tolerated(case, target, error)}")
                counts["known"] += 1
                continue
            tolerated(case, target, None)
        except (Exception, SystemExit) as error:
            counts["failed"] += 1
            print(f"FAILED   {case.id}: {_failure_text(error)}\nreproduce with\n\n{reproduce(case, target)}\n")
            continue
        counts["passed"] += 1
        print(f"passed   {case.id}")
        for comparison in result.comparisons:
            print(
                f"         {comparison.output}: error {comparison.error:.3g}, bound {comparison.bound:.3g} "
                f"({comparison.parts}), {comparison.share:.0%} of it"
            )
    print(f"on {target}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count))
    return 1 if counts["failed"] else 0


def _failure_text(error: BaseException) -> str:
    """What was measured, or what is wrong with the row; of any other error where it comes from."""
    # deferred: start-up
    from rocmkern.matrix import CaseFailure, MatrixError

    if isinstance(error, CaseFailure):
        return f"check {error.check}\n{error}"
    if isinstance(error, (MatrixError, MemoryError)):
        return str(error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return f"{type(error).__name__}: {error}\n{trace}"


def _validate(arguments: argparse.Namespace) -> int:
    # deferred: start-up
    from rocmkern.matrix import load_cases
    from rocmkern.matrix.bounds import judge_bounds, mistakes
    from rocmkern.matrix.inputs import check_sizes
    from rocmkern.matrix.results import read

    document, cases = load_cases(arguments.matrix)
    for case in cases:
        check_sizes(case)
    counts = ", ".join(f"{sum(case.category == name for case in cases)} {name}" for name in CATEGORIES)
    print(f"{arguments.matrix}: {len(cases)} cases ({counts})")
    if not arguments.results:
        return 0
    bounds = judge_bounds(document, cases, [read(path) for path in arguments.results])
    wrong = mistakes(document, bounds)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    unknown = sum(not bound.outputs for bound in bounds)
    print(f"{len(bounds)} tolerances: {len(wrong)} refused, {unknown} without results")
    return 1 if wrong else 0


def _mutate(arguments: argparse.Namespace) -> int:
    # deferred: start-up
    from rocmkern.matrix import MatrixError, expand, load
    from rocmkern.matrix.faults import FaultError, caught_by

    document = load(arguments.matrix)
    if arguments.target:
        return _mutate_lowering(arguments, document)
    faults = document.registry.faults
    if not faults:
        raise MatrixError(
            f"{document.matrix.registry} declares no seeded faults, so there is nothing to put in; "
            "declare some: Registry(..., faults=[Fault(...)])",
            file=str(arguments.matrix),
        )
    _check_names(arguments.faults, faults)
    cases = [case for case in expand(document) if case.category == "quick"]
    records: list[dict[str, Any]] = []
    sound: dict[str, bool] = {}
    for name in arguments.faults or faults:
        record: dict[str, Any] = {"name": name, "caught": False, "rows": []}
        try:
            rows = caught_by(faults[name], cases, 1 if arguments.first else None, sound)
            record.update(caught=bool(rows), rows=rows)
            shown = f"{len(rows)} rows, {rows[0]}" if rows else f"NOT CAUGHT: {faults[name].description}"
        except FaultError as error:
            record["error"] = str(error)
            shown = f"NOT CAUGHT: {error}"
        records.append(record)
        if not arguments.json:
            print(f"{name:<32} {shown}", flush=True)
    missed = sum(not record["caught"] for record in records)
    if arguments.json:
        print(json.dumps({"faults": records}, indent=1))
    else:
        print(f"{len(records)} faults, {missed} not caught")
    return 1 if missed else 0


def _mutate_lowering(arguments: argparse.Namespace, document: Any) -> int:
    # deferred: start-up
    from rocmkern.matrix import expand
    from rocmkern.matrix.faults.lowering import judge
    from rocmkern.matrix.faults.lowerings import LOWERING_FAULTS

    target = arguments.target
    faults = {name: fault for name, fault in LOWERING_FAULTS.items() if target in fault.targets}
    _check_names(arguments.faults, faults)
    if arguments.jobs < 1:
        raise ArgumentError("jobs", str(arguments.jobs), "1 or more")
    cases = [case for case in expand(document) if case.category == "quick"]
    records: list[dict[str, Any]] = []
    for verdict in judge(target, [faults[name] for name in arguments.faults or faults], cases, arguments.jobs):
        caught = verdict.caught is not None
        records.append({"name": verdict.fault, "caught": caught, "rows": [verdict.caught] if caught else []})
        if not caught:
            records[-1]["error"] = verdict.how
        if not arguments.json:
            found = f"{verdict.how}, {verdict.caught}" if caught else f"NOT CAUGHT: {verdict.how}"
            print(f"{verdict.fault:<36} {found}", flush=True)
    missed = sum(not record["caught"] for record in records)
    if arguments.json:
        print(json.dumps({"target": target, "faults": records}, indent=1))
    else:
        print(f"{len(records)} faults of the lowering for {target}, {missed} not caught")
    return 1 if missed else 0


def _check_names(names: list[str], faults: Iterable[str]) -> None:
    """Refuse the name of a fault that does not exist."""
    # deferred: start-up
    from rocmkern.matrix import nearest

    for name in names:
        if name not in faults:
            raise ArgumentError("FAULT", name, f"one of {', '.join(faults)};{nearest(name, faults)}".rstrip(";"))


def _compare(arguments: argparse.Namespace) -> int:
    # deferred: start-up
    from rocmkern.matrix.regression import compare_runs
    from rocmkern.matrix.results import read

    runs = read(arguments.baseline), read(arguments.results)
    comparison = compare_runs(*runs) if arguments.effect is None else compare_runs(*runs, arguments.effect)
    print("\n".join(comparison.lines()))
    return 1 if comparison.regressions else 0


def _isolate(arguments: argparse.Namespace) -> int:
    # deferred: start-up
    from rocmkern.matrix.isolation import isolate, smallest
    from rocmkern.matrix.isolation_log import IsolationLog, source_digest
    from rocmkern.testing.jobs import on_device

    if arguments.deadline is not None and not 0 < arguments.deadline < float("inf"):
        raise ArgumentError("deadline", f"{arguments.deadline:g}", "a finite number of seconds above 0")

    # A GPU is not opened here before the cases have run alone, each in a process that opens it.
    target = arguments.target or _target(arguments)
    cases = [case for case in _matching(_cases(arguments), arguments.patterns or ["*"]) if case.category == "quick"]
    ways = [way.strip() for way in arguments.ways.split(",") if way.strip()]
    log = None
    if arguments.keep is not None:
        log = IsolationLog(
            arguments.keep,
            {"target": target, "seed": arguments.seed, "source": source_digest(arguments.matrix)},
        )
    found = isolate(
        smallest(cases) if arguments.smallest else cases,
        target,
        seed=arguments.seed,
        ways=ways,
        deadline_s=arguments.deadline,
        holding=on_device,
        note=lambda line: print(line, file=sys.stderr, flush=True),
        earlier=log.outcomes if log else None,
        **({"tell": log.add} if log else {}),
    )
    failed, different = found.failed(), found.different()
    rules = {case.id: rule for case in cases if (rule := case.known_failure(target)) and not rule.expired()}
    known = {case: failed.pop(case) for case in list(failed) if case in rules}
    if arguments.json:
        print(json.dumps({"target": target, "outcomes": found.outcomes}))
        return 1 if failed or different else 0
    for case, text in known.items():
        print(f"known    {case}: known failure until {rules[case].expires}: {rules[case].issue}\n{text}")
    for case, text in failed.items():
        print(f"FAILED   {case}: {text}")
    for case, outcomes in different.items():
        shown = (
            f"{way} {'failed' if isinstance(o, str) else ' '.join(d[:12] for d in o)}" for way, o in outcomes.items()
        )
        print(f"DEPENDS  {case}: {', '.join(shown)}")
    count = len({case for outcomes in found.outcomes.values() for case in outcomes})
    print(
        f"{count} cases on {target}, {', '.join(found.outcomes)} (seed {arguments.seed}): "
        f"{len(different)} depend on what ran before, {len(failed)} fail"
    )
    return 1 if failed or different else 0


def _report(arguments: argparse.Namespace) -> int:
    # deferred: start-up
    from rocmkern.matrix import MatrixError
    from rocmkern.matrix.report import page, summarise, text
    from rocmkern.matrix.results import read

    summary = summarise([read(path) for path in arguments.results])
    for path, make in ((arguments.html, page), (arguments.markdown, text)):
        if path is not None:
            try:
                path.write_text(make(summary), encoding="utf-8")
            except OSError as error:
                raise MatrixError(f"cannot be written: {error.strerror}", file=str(path)) from None
            print(f"{path}: {len(summary.everything)} results of {len(summary.runs)} runs")
    if arguments.html is None and arguments.markdown is None:
        print(text(summary), end="")
    return 0


def _cases(arguments: argparse.Namespace) -> list[Any]:
    # deferred: start-up
    from rocmkern.matrix import load_cases

    return load_cases(arguments.matrix)[1]


def _matching(cases: list[Any], patterns: Iterable[str]) -> list[Any]:
    """The cases whose id fits a pattern, in the order of the file; a pattern that fits none is an error."""
    # deferred: start-up
    from rocmkern.matrix import nearest

    ids, wanted = [case.id for case in cases], set()
    for pattern in patterns:
        found = fnmatch.filter(ids, pattern) or fnmatch.filter(ids, f"*{pattern}*")
        if not found:
            raise ArgumentError(
                "PATTERN", pattern, f"what fits one of {len(ids)} ids;{nearest(pattern, ids)}".rstrip(";")
            )
        wanted.update(found)
    return [case for case in cases if case.id in wanted]


def _target(arguments: argparse.Namespace) -> str:
    return arguments.target or rocmkern.target().name
