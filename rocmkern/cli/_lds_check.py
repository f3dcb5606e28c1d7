"""What the virtual GPU counted of accesses to shared memory, from the addresses: files of ``amd-test --lds``.

::

    lds_check    1
    code         for each code object, by its ``code_sha256``:
        kernel, arch
        matrix          matrix instructions executed
        instructions    by offset: text, executed, cycles (best and worst grouping of lanes; equal under a documented
                        rule), ideal (cycles for the bytes of the active lanes), documented

A code object that was compiled since is another one, and has no results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmkern.runtime.errors import ArgumentError

FORMAT = 1


@dataclass(frozen=True)
class Conflicts:
    """What was counted of some instructions of a kernel.

    Attributes
    ----------
    executed : int
        Times that a wave executed one.
    best, worst : float
        Cycles, by the best and the worst grouping of lanes; equal where the rule is documented.
    ideal : float
        Cycles that the bytes take at least.
    documented : bool
        The rule is documented for all of them.
    matrix : int
        Matrix instructions executed meanwhile.
    """

    executed: int
    best: float
    worst: float
    ideal: float
    documented: bool
    matrix: int = 0

    def __str__(self) -> str:
        factors = _span(self.best / self.ideal, self.worst / self.ideal) if self.ideal else "1.00"
        text = f"{factors} of the least cycles in {self.executed} executed"
        if self.matrix:
            text += f", {_span(self.best / self.matrix, self.worst / self.matrix)} cycles a matrix instruction"
        return f"{text}; {'documented rule' if self.documented else 'best to worst grouping where no rule is known'}"


class LdsCheck:
    """The results of a file.

    Parameters
    ----------
    code : mapping
        What stands under ``code``.
    """

    def __init__(self, code: Mapping[str, Any]):
        self._code = code

    @classmethod
    def read(cls, path: Path) -> LdsCheck:
        """Read a file; `ArgumentError` where it is not one of these."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["lds_check"] != FORMAT:
                raise ValueError(f"it is of format {data['lds_check']!r}")
            for found in data["code"].values():
                _sum(found["instructions"].values(), found["matrix"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            words = f"{path} ({type(error).__name__}: {error})"
            raise ArgumentError("--lds", words, 'a file of `make amd-test ARGS="--lds FILE"`') from None
        return cls(data["code"])

    def of(self, code_sha256: str) -> Conflicts | None:
        """All of a code object; None where it was not executed under the check."""
        found = self._code.get(code_sha256)
        return None if found is None else _sum(found["instructions"].values(), found["matrix"])

    def cycles(self, code_sha256: str, instructions: Iterable[str]) -> tuple[Conflicts, int] | None:
        """Cycles of these instructions, once each, as they were on average; and how many of them were executed.

        The same text at several places counts as one.
        """
        found = self._code.get(code_sha256)
        if found is None:
            return None
        by_text: dict[str, list[Mapping[str, Any]]] = {}
        for each in found["instructions"].values():
            by_text.setdefault(_plain(each["text"]), []).append(each)
        total, known = Conflicts(0, 0.0, 0.0, 0.0, True), 0
        for counted in (by_text.get(_plain(text)) for text in instructions):
            if counted is None or not (one := _sum(counted)).executed:
                continue
            known += 1
            per = 1 / one.executed
            total = Conflicts(
                total.executed + one.executed, total.best + one.best * per, total.worst + one.worst * per,
                total.ideal + one.ideal * per, total.documented and one.documented,
            )  # fmt: skip
        return total, known


def _sum(instructions: Iterable[Mapping[str, Any]], matrix: int = 0) -> Conflicts:
    found = list(instructions)
    best, worst = (sum(each["cycles"][i] for each in found) for i in (0, 1))
    documented = all(each["documented"] for each in found)
    executed, ideal = (sum(each[name] for each in found) for name in ("executed", "ideal"))
    return Conflicts(executed, best, worst, ideal, documented, matrix)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _span(low: float, high: float) -> str:
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
