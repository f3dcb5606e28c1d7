"""Which bounds of a table are loose, by what runs have measured.

A table widens or narrows the default rule (c = u = 2) where it says ``tolerance``: for everything, an operation, a
group or a row. Such a bound is **loose** when on a target that was recorded every output that it holds for stays below
a tenth of it. Validation refuses that: a kernel there could become ten times worse unnoticed. It is made smaller, or
the tolerance says with ``loose: why`` why it is kept; and one that says so although on every target an output comes
nearer than that is refused as well. The default itself is no choice of the table and is never loose.

Bounds are judged by whole runs: of a part of the rows, the one that comes near may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rocmkern.matrix.case import Case
from rocmkern.matrix.loader import Document
from rocmkern.matrix.results import Run
from rocmkern.matrix.schema import Tolerance
from rocmkern.matrix.tolerance import rule_of
from rocmkern.matrix.yaml_source import DataPath, format_path

FACTOR = 10.0


@dataclass
class Nearest:
    """How near the outputs on one target came to a bound.

    Attributes
    ----------
    share : float
        The largest share of the bound that was measured.
    case : str
        Whose output that is, and on which target.
    outputs : int
        How many outputs were measured.
    """

    share: float = 0.0
    case: str = ""
    outputs: int = 0

    @property
    def is_loose(self) -> bool:
        """Whether nothing comes near."""
        return self.share * FACTOR < 1


@dataclass
class Bound:
    """A tolerance of the table, and how near the outputs that it holds for came to it.

    Attributes
    ----------
    path : tuple
        Where it stands in the data.
    tolerance : Tolerance
    targets : dict of str to Nearest
        What was measured, by target.
    """

    path: DataPath
    tolerance: Tolerance
    targets: dict[str, Nearest] = field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """How many outputs were measured."""
        return sum(nearest.outputs for nearest in self.targets.values())

    @property
    def share(self) -> float:
        """The largest share of the bound that was measured."""
        return max((nearest.share for nearest in self.targets.values()), default=0.0)

    @property
    def mistake(self) -> str:
        """What is wrong with it, or nothing."""
        if not self.targets:
            return ""
        loose = [target for target, nearest in self.targets.items() if nearest.is_loose]
        if loose and self.tolerance.loose is None:
            share = max(self.targets[target].share for target in loose)
            smaller = (
                f"a {1 / share:.0f} times smaller one would hold there" if share else "every output is exact there"
            )
            return f"is loose: {self.describe(loose)}; {smaller}: make it smaller, or say with loose: why it is kept"
        if not loose and self.tolerance.loose is not None:
            return f"says that it is loose, but {self.describe(self.targets)}; remove loose"
        return ""

    def describe(self, targets: Iterable[str] | None = None) -> str:
        """What was measured, on some targets or on all."""
        chosen = [self.targets[target] for target in sorted(self.targets if targets is None else targets)]
        if not chosen:
            return "nothing was recorded"
        nearest, outputs = max(chosen, key=lambda each: each.share), sum(each.outputs for each in chosen)
        names = ", ".join(sorted(self.targets if targets is None else targets))
        where = f" ({nearest.case})" if nearest.case else ""
        return f"at most {nearest.share:.1%} of it was measured in {outputs} outputs on {names}{where}"


def judge_bounds(document: Document, cases: Sequence[Case], runs: Sequence[Run]) -> list[Bound]:
    """Every tolerance of a table with what was measured of it, in the order of the file.

    Parameters
    ----------
    document : Document
    cases : sequence of Case
        Of the document.
    runs : sequence of Run
        What was recorded. Shares are of the bounds that the document has now.

    Returns
    -------
    list of Bound
    """
    bounds = {id(tolerance): Bound(path, tolerance) for path, tolerance in _declared(document)}
    named = {case.id: case for case in cases}
    for run in runs:
        for result in run.results:
            case = named.get(result.case)
            if case is None or result.outcome != "passed" or case.operation.is_exact(case.features):
                continue
            bound = bounds.get(id(case.facts.tolerance))
            if bound is not None:
                _measure(bound, case, f"{result.case}[{result.target}]", result.target, result.outputs)
    return list(bounds.values())


def _measure(bound: Bound, case: Case, name: str, target: str, outputs: list[dict]) -> None:
    features = case.features
    dtypes = {o.name: o.dtype_of(case.dtype, features) for o in case.operation.outputs_of(features)}
    for output in outputs:
        dtype = dtypes.get(output["output"], case.dtype)
        if bound.tolerance.dtypes is not None and dtype not in bound.tolerance.dtypes:
            continue
        if "e" not in output:
            continue  # a file of an older version: its shares may be of another bound
        nearest = bound.targets.setdefault(target, Nearest())
        nearest.outputs += 1
        limit = float(rule_of(bound.tolerance, dtype).bound(output["e"], output["ulp"]))
        share = output["error"] / limit if limit else output["share"]
        if share > nearest.share:
            nearest.share, nearest.case = share, name


def _declared(document: Document) -> Iterator[tuple[DataPath, Tolerance]]:
    matrix = document.matrix
    places: list[tuple[DataPath, Tolerance | None]] = []
    if matrix.defaults is not None:
        places.append((("defaults", "tolerance"), matrix.defaults.tolerance))
    for name, settings in (matrix.operations or {}).items():
        places.append((("operations", name, "tolerance"), settings.tolerance))
    for name, group in matrix.groups.items():
        places.append((("groups", name, "tolerance"), group.tolerance))
        for index, row in enumerate(group.rows):
            places.append((("groups", name, "rows", index, "tolerance"), row.tolerance))
    return ((path, tolerance) for path, tolerance in places if tolerance is not None)


def mistakes(document: Document, bounds: Sequence[Bound]) -> list[str]:
    """A line with its position for each bound that is loose, or that wrongly says so."""
    lines = []
    for bound in bounds:
        if bound.mistake:
            at = document.source.position(bound.path)
            lines.append(f"{document.name}:{at.line}:{at.column}: {format_path(bound.path)}: {bound.mistake}")
    return lines
