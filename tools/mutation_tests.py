"""Which tests run a place of the library's source, as `tools/mutation_record.py` wrote it down.

A test runs a line if it was seen to, or if it launches a kernel whose compilation was. Where no test runs the changed
statement (the body of a function that is only made, say), those that run the function around it are chosen, or at last
the file's: a mutant may die by them, but one that survives was never tried. What is outside of functions has the tests
that are called after the file too, and those of what modules declare.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutants import Mutant, Span

#: From each file and each operation this many quick tests come first.
NAMED_FIRST = 30
#: Files of tests of what modules declare, all of them: they read tables without a line of the module.
OF_TABLES = {"test_golden", "test_kernel_defaults", "test_fuzz_domains"}


@dataclass
class Covering:
    """The tests of a mutant in the order in which they are tried.

    Attributes
    ----------
    tests : list of str
    level : int
        How near they are: 0 for the statement, then the functions around it; the last is the file.
    executed : bool
        Whether the changed statement runs (outside of a function: whether the file is imported).
    """

    tests: list[str] = field(default_factory=list)
    level: int = 0
    executed: bool = False


class Tests:
    """What was recorded about some mutants."""

    def __init__(self, directory: Path, mutants: Sequence[Mutant], there: Container[str] | None = None):
        """Those of a directory; where `there` is given, only what is in it."""
        self.seconds: dict[str, float] = {}
        self.compiling: dict[str, float] = {}
        self.variants: dict[str, list[str]] = {}
        masks = {mutant.id: [*map(_bits, mutant.spans), -1] for mutant in mutants}
        by_file: dict[str, list[str]] = defaultdict(list)
        for mutant in mutants:
            by_file[mutant.file].append(mutant.id)

        def levels(lines: dict[str, str]) -> dict[str, int]:
            """How near a mutant these lines are."""
            found = {}
            for file, text in lines.items():
                bits = int(text, 16)
                for one in by_file.get(file, ()):
                    found[one] = next(level for level, mask in enumerate(masks[one]) if bits & mask)
            return found

        compiled: dict[str, dict[str, int]] = {}
        recorded: dict[str, dict[str, int]] = {}
        for entry in _entries(directory):
            if "variant" in entry:
                self.compiling[entry["variant"]] = entry["seconds"]
                compiled[entry["variant"]] = levels(entry["lines"])
            elif there is None or entry["test"] in there:
                self.seconds[entry["test"]] = entry["seconds"]
                self.variants[entry["test"]] = entry["variants"]
                recorded[entry["test"]] = levels(entry["lines"])
        tables = {mutant.id: _named_for(mutant) for mutant in mutants if not mutant.spans}
        near: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for test, found in recorded.items():
            found.update({one: 0 for one, words in tables.items() if _file_of(test) in words})
            for variant in self.variants[test]:
                for one, level in compiled.get(variant, {}).items():
                    found[one] = min(level, found.get(one, level))
            for one, level in found.items():
                near[one][level].append(test)
        self._covering = {mutant.id: self._of(mutant, near[mutant.id]) for mutant in mutants}

    def of(self, mutant: Mutant) -> Covering:
        """The tests of a mutant."""
        return self._covering[mutant.id]

    def _of(self, mutant: Mutant, near: dict[int, list[str]]) -> Covering:
        if not near:
            return Covering()
        level = min(near)
        words = _named_for(mutant)
        named = [test for test in near[level] if _file_of(test) in words]
        if mutant.spans:
            named = _in_turns(named, self.seconds)[:NAMED_FIRST]
        else:
            named.sort(key=self.seconds.__getitem__)  # what reads a table may be any of them
        tests = [*named, *_in_turns(near[level], self.seconds)]
        return Covering(list(dict.fromkeys(tests)), level, level == 0)

    def cost(self, test: str, compiled: set[str]) -> float:
        """Seconds of a test, compilation included where it is not in `compiled`, which gets what it compiles."""
        new = [variant for variant in self.variants[test] if variant not in compiled]
        compiled.update(new)
        return self.seconds[test] + sum(self.compiling.get(variant, 0.0) for variant in new)


def _entries(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob("record*.jsonl*")):
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for line in file:
                # The last line of a process that was killed may be cut.
                if line.endswith("\n"):
                    yield json.loads(line)


def _bits(span: Span) -> int:
    first, last = span
    return (1 << last + 1) - (1 << first)


def _file_of(test: str) -> str:
    return Path(test.partition("::")[0]).stem


def _named_for(mutant: Mutant) -> set[str]:
    return _named_after(mutant.file) | (set() if mutant.spans else OF_TABLES)


def _named_after(file: str) -> set[str]:
    """What the tests of a file may be called: after it, its folder or both (``test_ops_norm``, ``test_tile_rows``)."""
    *folders, module = (part.strip("_") for part in file.removesuffix(".py").split("/"))
    paths = [(*folders, module)[:n] for n in range(2, len(folders) + 2)]
    return {"_".join(("test", *path)) for path in [(module,), (*folders[:1], module), *paths]}


def _in_turns(tests: Sequence[str], seconds: dict[str, float]) -> list[str]:
    """Tests, the quick ones of a file first, the files (of the matrix: the operations) taking turns."""
    groups: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: seconds[test]):
        file, _, name = test.partition("::")
        groups[name.split("-")[0] if file == "matrix.yaml" else file].append(test)
    longest = max(map(len, groups.values()), default=0)
    return [group[i] for i in range(longest) for group in groups.values() if i < len(group)]
