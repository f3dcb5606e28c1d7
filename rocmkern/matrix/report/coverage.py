"""Which cases have passed on a graphics card of which vendor, and why the others have not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rocmkern.matrix.report.place import Place
from rocmkern.matrix.results import Result

CARDS = {"hip": "an AMD card", "cuda": "an NVIDIA card"}
# What is known of a case; of several architectures the first of these counts.
PASSED, FAILED, FAILED_EMULATED, EMULATED, EXCLUDED, NEVER = range(6)


@dataclass(frozen=True)
class State:
    """What is known of one case on one GPU target.

    Attributes
    ----------
    rank : int
        ``PASSED`` (on a card), ``FAILED`` (on cards), ``FAILED_EMULATED``, ``EMULATED`` (passed, but in an emulator
        only), ``EXCLUDED`` (its row is not for this target) or ``NEVER`` (did not run).
    operation, dtype : str
    archs : tuple of str
        Where that was.
    """

    rank: int
    operation: str
    dtype: str
    archs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Why the case is not verified, in words."""
        where = ", ".join(self.archs)
        return {
            PASSED: f"passed on {where}",
            EMULATED: f"emulated only ({where})",
            FAILED: f"failed on {where}",
            FAILED_EMULATED: f"failed in an emulator ({where})",
            EXCLUDED: "not for this target",
            NEVER: "never run",
        }[self.rank]


@dataclass(frozen=True)
class Coverage:
    """One GPU target: what is known of each case that was reported anywhere.

    Attributes
    ----------
    target : str
    states : dict of str to State
        By case. Benchmark rows are left out.
    """

    target: str
    states: dict[str, State]

    @property
    def card(self) -> str:
        """``"an AMD card"``, ``"an NVIDIA card"``."""
        return CARDS[self.target]

    def unverified(self) -> dict[str, dict[str, list[str]]]:
        """Operation -> why not -> ids of the cases that have not passed on a card, but should."""
        found: dict[str, dict[str, list[str]]] = {}
        for case, state in self.states.items():
            if state.rank not in (PASSED, EXCLUDED):
                found.setdefault(state.operation, {}).setdefault(state.text, []).append(case)
        return found

    def reasons(self) -> list[str]:
        """``"62 emulated only (gfx1100)"``, and so on, the most frequent first."""
        counts: Counter[str] = Counter()
        for table in self.unverified().values():
            counts.update({reason: len(cases) for reason, cases in table.items()})
        return [f"{count} {reason}" for reason, count in counts.most_common()]

    def count(self, operation: str | None = None, dtype: str | None = None) -> tuple[int, int, int]:
        """How many cases passed on a card, how many more in an emulator only, and of how many.

        Parameters
        ----------
        operation, dtype : str, optional
            Of these only.
        """
        ranks = [
            state.rank
            for state in self.states.values()
            if state.rank != EXCLUDED
            and (operation is None or state.operation == operation)
            and (dtype is None or state.dtype == dtype)
        ]
        return ranks.count(PASSED), ranks.count(EMULATED), len(ranks)


def coverage_of(target: str, everything: Iterable[tuple[Place, Result]]) -> Coverage:
    """What is known of each case on a GPU target, from the latest result of each place."""
    states: dict[str, State] = {}
    for place, result in everything:
        if result.category == "benchmark":
            continue
        rank = NEVER
        if place.target == target:
            emulated = not place.is_card
            rank = {
                "passed": EMULATED if emulated else PASSED,
                "failed": FAILED_EMULATED if emulated else FAILED,
                "skipped": EXCLUDED,
            }[result.outcome]
        new = State(rank, result.operation, result.dtype, (place.arch or place.name,) if rank != NEVER else ())
        old = states.get(result.case)
        if old is None or new.rank < old.rank:
            states[result.case] = new
        elif new.rank == old.rank and new.archs != old.archs:
            archs = tuple(dict.fromkeys(old.archs + new.archs))
            states[result.case] = State(old.rank, old.operation, old.dtype, archs)
    return Coverage(target, states)
