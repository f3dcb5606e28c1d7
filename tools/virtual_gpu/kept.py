"""Rows that passed on the virtual GPU, in a file: a run that was stopped, or in which some code has changed, goes on.

A line is a row that passed and ran code: its key, its result, and what the loader was given for it. The key is a hash
of what the row depends on: what the matrix says of it; of each launch the kernel's variant (see `source.variant_key`: a
hash of the source of the kernel and of what generates its code), the grid, the numbers, the shapes and strides; and
what is the same for all rows: compiler, virtual GPU, scheduler's seed. A row that has another key now is run again.

What a launch does not show is not in the key: the numbers in the arrays, and the definition that results are held
against. Whoever changes these begins with a new file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmkern.cli._variants import ShapeDraw, VariantRecorder
from rocmkern.matrix.case import Case
from rocmkern.matrix.registry import resolve
from rocmkern.targets import launching_on, source
from rocmkern.tile.language.kernel import Config, Kernel


class _Launches(VariantRecorder):
    """A target that notes what it is asked to launch, in words."""

    def __init__(self, arch: str):
        super().__init__(arch)
        self.words: list[str] = []

    def launch(self, kernel: Kernel, cfg: Config, grid: Sequence[int], args: Sequence[Any]) -> None:
        """Note a launch."""
        key = source.variant_key("hip", kernel, cfg, source.dtypes_of(kernel, args))
        given = [(a.shape, a.strides) if hasattr(a, "strides") else a for a in args]
        self.words.append(f"{key.digest} {tuple(grid)} {given}")


def key_of(case: Case, arch: str, common: Sequence[str]) -> str:
    """The key of a row on an architecture; ``common`` are words about what is the same for all rows."""
    facts = case.facts
    said = (case.id, case.dims, case.dtype, case.features, case.memory, facts.inputs, facts.arguments, facts.spoil)
    launches = _Launches(arch)
    if facts.expect_error is None:
        with launching_on(launches):
            resolve(case.operation.function)(**case.operation.call(ShapeDraw(case)).arguments)
    words = [arch, *common, repr((*said, facts.masked, facts.one_hot, facts.tolerance)), *launches.words]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


class KeptRows:
    """A file of rows that passed.

    Parameters
    ----------
    path : Path
        Made where it does not exist. A line that is no row, cut off when a run was stopped, counts for nothing.
    """

    def __init__(self, path: Path):
        self.path, self.rows = path, dict[str, dict[str, Any]]()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
                self.rows[row["key"]] = {"result": dict(row["result"]), "loaded": list(row["loaded"])}
            except (ValueError, TypeError, KeyError):
                continue

    def add(self, keys: Mapping[str, str], results: Iterable[dict[str, Any]], log: Iterable[dict[str, Any]]) -> None:
        """Write the rows that passed and ran code, whose ``keys`` are there by the rows' names."""
        loaded = {entry["loaded"]["sha256"]: entry["loaded"] for entry in log if "loaded" in entry}
        lines = ["\n"] if self.path.exists() and not self.path.read_text(encoding="utf-8").endswith("\n") else []
        for result in results:
            if result["outcome"] == "passed" and result["code"] and all(code in loaded for code in result["code"]):
                row = {"result": result, "loaded": [loaded[code] for code in result["code"]]}
                self.rows[keys[result["case"]]] = row
                lines.append(json.dumps({"key": keys[result["case"]], **row}) + "\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))
