"""One case of a matrix: a call of an operation, and what its row says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rocmkern.matrix.registry import Operation
from rocmkern.matrix.schema import ExpectError, Generator, KnownFailure, Masked, Memory, OneHot, Targets, Tolerance

OUT_ARRAY = "out"


@dataclass(frozen=True)
class RowFacts:
    """What all cases of a row have in common.

    Attributes
    ----------
    operation : Operation
        The declaration.
    group, row : str
        Names; the row's may be empty.
    why : str
        Why the row exists.
    category : str
        ``"quick"``, ``"full"`` or ``"benchmark"``.
    file, line : str, int
        Where the row stands.
    deadline_s : float or None
        Seconds that a case may take in the worker process of a test run; None: the run's.
    invariant : bool
        Whether excerpts of a call must hold the same bits.
    """

    operation: Operation
    group: str
    row: str
    why: str
    category: str
    file: str
    line: int
    inputs: Mapping[str, Generator]
    tolerance: Tolerance | None
    targets: Targets | None
    masked: Masked | None
    one_hot: OneHot | None
    expect_error: ExpectError | None
    arguments: Mapping[str, Any]
    spoil: Mapping[str, str]
    peers: tuple[str, ...]
    bars: Mapping[str, float]
    warm: bool
    deadline_s: float | None = None
    invariant: bool = False


@dataclass(frozen=True)
class Case:
    """One case of a matrix.

    Attributes
    ----------
    id : str
        Stable, readable, unique name.
    facts : RowFacts
        What the case shares with the others of its row.
    dims : dict
        Every dimension of the operation with its value.
    dtype : str
        ``"f32"``, ``"f16"`` or ``"bf16"``.
    features : dict
        Every feature of the operation with its value.
    memory : str or dict
        Memory layout of the arrays.
    known_failures : tuple of KnownFailure
        The rules that fit the case, the most specific one first.
    """

    id: str
    facts: RowFacts
    dims: Mapping[str, Any]
    dtype: str
    features: Mapping[str, Any]
    memory: Memory
    known_failures: tuple[KnownFailure, ...] = ()

    @property
    def operation(self) -> Operation:
        """The declaration of the operation."""
        return self.facts.operation

    @property
    def category(self) -> str:
        """``"quick"``, ``"full"`` or ``"benchmark"``."""
        return self.facts.category

    def skip_reason(self, target: str) -> str | None:
        """Why the case does not run on `target`, or None."""
        missing = [name for name in self.operation.needs if find_spec(name) is None]
        if missing:
            return f"{self.operation.name} needs {', '.join(missing)}, which is not installed"
        targets = self.facts.targets
        return None if targets is None or targets.allows(target) else targets.reason

    def known_failure(self, target: str) -> KnownFailure | None:
        """The rule that says that the case fails on `target`."""
        return next((r for r in self.known_failures if r.targets is None or target in r.targets), None)

    def memory_of(self, array: str) -> str:
        """Memory layout of one array; ``"out"`` is the output, which a layout of all arrays does not concern."""
        if isinstance(self.memory, str):
            return "contiguous" if array == OUT_ARRAY else self.memory
        return self.memory.get(array, "contiguous")
