"""Mutation testing: small changes of the library's source, each with the tests that run the changed function.

    pip install cosmic-ray                            # or, without its dependencies: cosmic-ray, parso, attrs
    python tools/mutation.py record DIRECTORY         # once: which test runs which function (as long as the suite)
    python tools/mutation.py run DIRECTORY --jobs 8   # draw 150 mutants and try them; goes on where it stopped
    python tools/mutation.py report DIRECTORY         # the survivors; the exit status is 1 above 10 %

The mutations are those of cosmic-ray. They are drawn by `SEED`, as many from each part of the library; first a place in
the source, then one of the changes that are possible there. A mutant is tried on a copy of the repository with tests
that run the changed function, quick ones first, from as many files as there are, and with those whose name says that
they are about the changed module. It is killed when one of them fails, or when they do not end, although the same tests
take less than a third of that time without the mutant.

Left out are places that no test can notice: annotations, decorators that only keep results (`functools.cache`), the
drivers of cards (a machine without one never calls them). A survivor counts, unless ``DIRECTORY/equivalent.json``
gives its id with the reason why nothing can tell it from the original.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rocmkern"
SEED, COUNT = 14, 150
#: Parts of the library, and the files in them.
PARTS = {
    "ops": ["ops/**/*.py"],
    "runtime": ["runtime/**/*.py"],
    "kernels": ["kernels/*.py"],
    "tile": ["tile/*.py"],
    "matrix": ["matrix/**/*.py"],
    "testing": ["testing/*.py"],
    "checkpoint": ["checkpoint/*.py"],
    "decoder": ["decoder/*.py"],
}
#: What is called with a card only, and the faults: one that is wrong is not caught.
LEFT_OUT = ("runtime/cuda.py", "runtime/hip.py", "tile/lanes.py", "tile/folds.py", "tile/atoms.py", "matrix/faults/")
KEEPING = ("cache", "lru_cache", "cached_property")
#: Seconds for a mutant, and of tests that are chosen for it (as they took when they were recorded).
DEADLINE, BUDGET = 180, 40.0
MOST_TESTS = 150
ALLOWED = 0.10


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes
    ----------
    part, file : str
        The file's path within the package.
    operator, occurrence
        As cosmic-ray counts them.
    line : int
    function : str
        ``file:first line`` of the function that is changed; "" at the level of the module.
    """

    part: str
    file: str
    operator: str
    occurrence: int
    line: int
    function: str

    @property
    def id(self) -> str:
        """Name in results."""
        return f"{self.file}:{self.line} {self.operator} {self.occurrence}"


# ------------------------------------------------------------------------------------------------------------- mutants


def operators() -> dict[str, Any]:
    """cosmic-ray's operators that need no arguments, by name."""
    try:
        from cosmic_ray.operators.provider import OperatorProvider
    except ImportError as error:
        raise SystemExit(f"{error}; install cosmic-ray, or its wheel and those of parso and attrs") from None
    provider = OperatorProvider()
    return {name: provider[name]() for name in provider if not provider[name].arguments()}


def places(file: str, part: str, known: dict[str, Any]) -> dict[tuple[int, int], list[Mutant]]:
    """Every mutant of a file, by the place of the change."""
    from cosmic_ray.ast import ast_nodes, get_ast

    text = (PACKAGE / file).read_text(encoding="utf-8")
    tree, functions = ast.parse(text), []
    skipped: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions.append((first, node.end_lineno or first))
            skipped += [_span(each) for each in (node.returns,) if each]
            skipped += [_span(d) for d in node.decorator_list if ast.unparse(d).split("(")[0].split(".")[-1] in KEEPING]
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            skipped.append(_span(node.annotation))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.append(_span(node))
    found: dict[tuple[int, int], list[Mutant]] = defaultdict(list)
    nodes = list(ast_nodes(get_ast(text)))
    for name, operator in known.items():
        positions = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(positions):
            if any(begin <= (line, column) < end for begin, end in skipped):
                continue
            around = [span for span in functions if span[0] <= line <= span[1]]
            function = f"{file}:{max(around)[0]}" if around else ""
            found[line, column].append(Mutant(part, file, name, occurrence, line, function))
    return found


def _span(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    # A decorator's mutation stands at its "@".
    return (node.lineno, max(node.col_offset - 1, 0)), (node.end_lineno, node.end_col_offset)


def mutated(mutant: Mutant) -> str:
    """The text of a file with a mutant in it."""
    from cosmic_ray.ast import get_ast

    operator, left = operators()[mutant.operator], mutant.occurrence

    def walk(node: Any) -> Any:
        nonlocal left
        for index, _ in enumerate(operator.mutation_positions(node)):
            if left == 0:
                node = operator.mutate(node, index)
            left -= 1
        if node is not None and hasattr(node, "children"):
            node.children = [new for child in node.children if (new := walk(child)) is not None]
        return node

    return walk(get_ast((PACKAGE / mutant.file).read_text(encoding="utf-8"))).get_code()


def draw(count: int, seed: int, parts: Sequence[str]) -> list[Mutant]:
    """So many mutants that are Python, the parts taking turns."""
    known, rng, drawn = operators(), random.Random(seed), []
    waiting = {}
    for part in parts:
        files = sorted({str(p.relative_to(PACKAGE)) for pattern in PARTS[part] for p in PACKAGE.glob(pattern)})
        files = [file for file in files if not file.startswith(LEFT_OUT) and not file.endswith("__init__.py")]
        sites = [options for file in files for _, options in sorted(places(file, part, known).items())]
        rng.shuffle(sites)
        waiting[part] = sites
    while len(drawn) < count and any(waiting.values()):
        for part in parts:
            while waiting[part] and len(drawn) < count:
                mutant = rng.choice(waiting[part].pop())
                if _is_python(mutated(mutant), (PACKAGE / mutant.file).read_text(encoding="utf-8")):
                    drawn.append(mutant)
                    break
    return drawn


def _is_python(text: str, before: str) -> bool:
    try:
        return ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))
    except SyntaxError:
        return False


# --------------------------------------------------------------------------------------------------------------- tests


def record(directory: Path, jobs: int, arguments: Sequence[str]) -> None:
    """Run the tests, and the rows of the matrix on the interpreter and the CPU, and write down what they call."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    operations = {line.partition("-")[0] for line in _row_ids()}
    units = [[file] for file in files] + [["matrix.yaml", "-k", f"{name}-"] for name in sorted(operations)]
    wanted = [unit for unit in units if not arguments or any(part in unit[-1] for part in arguments)]

    def one(number: int, unit: list[str]) -> str:
        path = directory / f"record-{'-'.join(unit).replace('/', '_')}.jsonl"
        if path.exists():
            return ""
        partly = path.with_suffix(".partly")
        partly.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as cache:
            environment = _environment(ROOT, cache)
            environment["PYTHONPATH"] += os.pathsep + str(ROOT / "tools")
            command = [*_PYTEST, "-p", "mutation_record", "--record", str(partly), *unit]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if partly.exists():
            partly.rename(path)
        return f"{' '.join(unit)}: {done.stdout.strip().splitlines()[-1:]}"

    with ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(one, range(len(wanted)), wanted):
            if line:
                print(line, flush=True)


_PYTEST = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:warnings"]


def _row_ids() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from rocmkern.cli import main; main(['matrix', 'list', '--category', 'quick'])"],
        cwd=ROOT, env=_environment(ROOT, ""), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def _environment(root: Path, cache: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "ROCMKERN_NO_GPU": "1"}
    environment["ROCMKERN_NUM_THREADS"] = "2"
    if cache:
        environment["ROCMKERN_CACHE_DIR"] = cache
    return environment


class Tests:
    """What was recorded: the tests of a function."""

    def __init__(self, directory: Path):
        self.seconds: dict[str, float] = {}
        self.calling: dict[str, list[str]] = defaultdict(list)
        for path in sorted(directory.glob("record-*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                self.seconds[entry["test"]] = entry["seconds"]
                for function in entry["functions"]:
                    self.calling[function].append(entry["test"])

    def of(self, mutant: Mutant) -> list[str]:
        """Tests for a mutant, within `BUDGET` and `MOST_TESTS`."""
        named = self._about(mutant)
        calling = self.calling.get(mutant.function) or self._of_file(mutant.file)
        chosen, spent = [], 0.0
        for test in dict.fromkeys([*_in_turns(named, self.seconds, 30), *_in_turns(calling, self.seconds, 10**6)]):
            if len(chosen) == MOST_TESTS or (chosen and spent + self.seconds[test] > BUDGET):
                break
            chosen.append(test)
            spent += self.seconds[test]
        return chosen

    def _about(self, mutant: Mutant) -> list[str]:
        """Tests in a file that is named after the changed module, or after its package and it."""
        package, _, module = mutant.file.removesuffix(".py").rpartition("/")
        words = {f"test_{module.strip('_')}", f"test_{package.replace('/', '_')}_{module.strip('_')}"}
        calling = set(self.calling.get(mutant.function, ()))
        named = [test for test in self.seconds if Path(test.partition("::")[0]).stem in words]
        return [test for test in named if test in calling] or named

    def _of_file(self, file: str) -> list[str]:
        found = {
            test for function in self.calling if function.startswith(f"{file}:") for test in self.calling[function]
        }
        return sorted(found)


def _in_turns(tests: Sequence[str], seconds: dict[str, float], most: int) -> list[str]:
    """Tests, the quick ones of a file first, the files (of the matrix: the operations) taking turns."""
    groups: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: seconds[test]):
        file, _, name = test.partition("::")
        groups[name.split("-")[0] if file == "matrix.yaml" else file].append(test)
    longest = max(map(len, groups.values()), default=0)
    return [group[i] for i in range(longest) for group in groups.values() if i < len(group)][:most]


# ----------------------------------------------------------------------------------------------------------------- run


def run(directory: Path, mutants: Sequence[Mutant], jobs: int) -> None:
    """Try the mutants that have no result yet."""
    tests, path = Tests(directory), directory / "results.jsonl"
    done = {entry["id"] for entry in _results(path)}
    waiting = [mutant for mutant in mutants if mutant.id not in done]

    def one(mutant: Mutant) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="mutant-") as place:
            return attempt(mutant, tests.of(mutant), Path(place), tests.seconds)

    with ThreadPoolExecutor(jobs) as pool, path.open("a", encoding="utf-8") as file:
        for entry in pool.map(one, waiting):
            file.write(json.dumps(entry) + "\n")
            file.flush()
            print(
                f"{entry['outcome']:<9} {entry['seconds']:>5.0f} s {entry['tests']:>4} tests  {entry['id']}", flush=True
            )


def attempt(mutant: Mutant, chosen: list[str], place: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """One mutant in a copy of the repository."""
    copy = place / "copy"
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    before = (PACKAGE / mutant.file).read_text(encoding="utf-8").splitlines()
    text = mutated(mutant)
    (copy / "rocmkern" / mutant.file).write_text(text, encoding="utf-8")
    after = text.splitlines()
    change = next(((x.strip(), y.strip()) for x, y in zip(before, after, strict=False) if x != y), ("", ""))
    listed = place / "tests"
    listed.write_text("\n".join(chosen), encoding="utf-8")
    expected, start = sum(seconds.get(test, 0) for test in chosen), time.monotonic()
    outcome, said = "survived", ""
    if chosen:
        command = [*_PYTEST, "-x", "--timeout", str(DEADLINE), f"@{listed}"]
        process = subprocess.Popen(
            command, cwd=copy, env=_environment(copy, str(place / "cache")), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=DEADLINE)
            outcome = "survived" if process.returncode == 0 else "killed"
        except subprocess.TimeoutExpired:
            outcome = "timeout" if expected < DEADLINE / 3 else "survived"
            os.killpg(process.pid, 9)
            said, _ = process.communicate()
    entry = {**asdict(mutant), "id": mutant.id, "outcome": outcome, "seconds": round(time.monotonic() - start, 1)}
    entry |= {"tests": len(chosen), "before": change[0], "after": change[1], "said": said.strip().splitlines()[-3:]}
    return entry


def _results(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def report(directory: Path) -> int:
    """Print the survivors; whether there are too many."""
    path = directory / "equivalent.json"
    equivalent = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries = list(_results(directory / "results.jsonl"))
    survivors = [entry for entry in entries if entry["outcome"] == "survived"]
    for entry in survivors:
        reason = equivalent.get(entry["id"])
        print(f"{entry['id']} ({entry['tests']} tests)\n  - {entry['before']}\n  + {entry['after']}")
        print(f"  nothing can tell: {reason}" if reason else "", end="\n" if reason else "")
    counted = [entry for entry in survivors if entry["id"] not in equivalent]
    for part, count in sorted(Counter(entry["part"] for entry in entries).items()):
        print(f"{part:<12} {count:>4} mutants {sum(e['part'] == part for e in counted):>4} survive")
    share = len(counted) / max(1, len(entries))
    print(f"{len(entries)} mutants, {len(counted)} survive ({share:.0%}); allowed: {ALLOWED:.0%}")
    return 1 if share > ALLOWED else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one of the three steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("record", "draw", "run", "report"))
    parser.add_argument("directory", type=Path, help="where recordings and results lie")
    parser.add_argument("only", nargs="*", help="record: only files and operations with one of these in their name")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--count", type=int, default=COUNT, help="mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the drawing (default: %(default)s)")
    parser.add_argument("--parts", default=",".join(PARTS), help="of the library (default: %(default)s)")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.step == "report":
        return report(options.directory)
    if options.step == "record":
        record(options.directory.resolve(), options.jobs, options.only)
        return 0
    mutants = draw(options.count, options.seed, options.parts.split(","))
    if options.step == "draw":
        for mutant in mutants:
            print(mutant.id)
        return 0
    run(options.directory, mutants, options.jobs)
    return report(options.directory)


if __name__ == "__main__":
    sys.exit(main())
