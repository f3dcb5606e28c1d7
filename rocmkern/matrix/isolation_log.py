"""What an isolation found so far, in a file: a run that was stopped goes on where it stopped.

The first line says what was run (target, seed, and a digest of the library's source and of the matrix); each of the
others is the outcome of one case in one way. A file of other source, another target or another seed is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmkern.runtime.errors import MatrixError

# What a case gave: digests of its outputs, or how it failed.
Outcome = tuple[str, ...] | str


class IsolationLog:
    """A file of outcomes.

    Parameters
    ----------
    path : Path
        Made where it does not exist.
    head : dict
        What must be the same for the outcomes to belong together.

    Attributes
    ----------
    outcomes : dict
        For each way the outcomes by case that the file held.
    """

    path: Path
    outcomes: dict[str, dict[str, Outcome]]

    def __init__(self, path: Path, head: Mapping[str, Any]):
        self.path, self.outcomes = path, dict[str, dict[str, Outcome]]()
        first = json.dumps(dict(head), sort_keys=True)
        if not path.exists():
            self._append(first)
            return
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines[:1] != [first]:
            raise self._refused(1, "belongs to another run (target, seed, source or matrix differ)")
        for number, line in enumerate(lines[1:], 2):
            try:
                way, case, outcome = json.loads(line)
                kept = outcome if isinstance(outcome, str) else tuple(map(str, outcome))
                self.outcomes.setdefault(str(way), {})[str(case)] = kept
            except (ValueError, TypeError):
                if number == len(lines):
                    # The run was stopped while it wrote: what is cut off is run again.
                    path.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
                    break
                raise self._refused(number, "is not an outcome") from None

    def add(self, way: str, case: str, outcome: Outcome) -> None:
        """Write one outcome."""
        self._append(json.dumps([way, case, outcome]))

    def _append(self, line: str) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise MatrixError(f"cannot be written: {error.strerror}", file=str(self.path)) from None

    def _refused(self, line: int, what: str) -> MatrixError:
        return MatrixError(f"line {line} {what}; remove the file to begin again", file=str(self.path))


def source_digest(matrix: Path) -> str:
    """Of every source file of the library and of a matrix."""
    digest = hashlib.sha256(matrix.read_bytes())
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
