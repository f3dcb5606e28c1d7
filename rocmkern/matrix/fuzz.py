"""Rows drawn at random within an operation's declared domain, and the smallest one that fails.

Hypothesis draws dimensions, features, dtype and memory layouts, and shrinks what fails; a failure is a row of YAML,
ready to be put into the table, so that it is a test from then on. The same number of examples and the same seed draw
the same rows; another seed draws others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import yaml

from rocmkern.matrix.case import OUT_ARRAY
from rocmkern.matrix.expand import array_shapes, expand
from rocmkern.matrix.inputs import OneHotError
from rocmkern.matrix.layouts import CONTIGUOUS, layouts_of
from rocmkern.matrix.loader import Document, loads
from rocmkern.matrix.registry import Domain, Operation
from rocmkern.matrix.runner import run_case
from rocmkern.matrix.schema import Dtype
from rocmkern.matrix.tolerance import DEFAULT_C, DEFAULT_U

# Among thousands of drawn rows are some whose roundings all go one way: the bound is this many times the operation's.
SLACK = 2.0
GROUP = "drawn"


class FuzzFailure(AssertionError):
    """A drawn row fails.

    Attributes
    ----------
    operation : str
        Whose row it is.
    row : dict
        The smallest one that was found.
    error : Exception or SystemExit
        How it fails.
    seed : int
        That it was drawn with.
    """

    operation: str
    row: dict[str, Any]
    error: BaseException
    seed: int

    def __init__(self, operation: str, row: Mapping[str, Any], error: BaseException, seed: int):
        self.operation, self.row, self.error, self.seed = operation, dict(row), error, seed
        super().__init__(f"{describe(operation, row)}\n\n{type(error).__name__}: {error}")

    def __reduce__(self) -> tuple[type[FuzzFailure], tuple[Any, ...]]:
        return type(self), (self.operation, self.row, self.error, self.seed)


def describe(operation: str, row: Mapping[str, Any]) -> str:
    """A group of one row, as text for the matrix file."""
    line = yaml.safe_dump(dict(row), default_flow_style=True, sort_keys=False, width=10**6).strip()
    return f"  found_by_fuzzing:\n    why: found by fuzzing\n    operation: {operation}\n    rows:\n      - {line}"


def fuzz(
    document: Document,
    operation: Operation,
    target: str,
    examples: int,
    seed: int = 0,
    before_row: Callable[[], None] = lambda: None,
) -> int:
    """Run drawn rows of an operation on a target.

    Parameters
    ----------
    document : Document
        Its defaults and its settings for the operation hold for the drawn rows.
    operation : Operation
        One with a `Domain`.
    target : str
    examples : int
        How many rows are drawn.
    seed : int
        Of the drawing: the same rows for the same seed, others for another.
    before_row : callable
        Called before each of them.

    Returns
    -------
    int
        How many rows ran.

    Raises
    ------
    FuzzFailure
        A row fails; it is the smallest such one.
    """
    # deferred: optional dependency
    import hypothesis

    found: dict[str, Any] = {}
    ran = 0

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, report_multiple_bugs=False, print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(rows(operation, document))
    def check(row: dict[str, Any]) -> None:
        nonlocal ran
        before_row()
        (case,) = expand(_with_row(document, operation, row))
        try:
            run_case(case, target)
        except OneHotError:
            hypothesis.reject()
        except (Exception, SystemExit) as error:
            found.update(row=row, error=error)
            raise
        ran += 1

    try:
        check()
    except (Exception, SystemExit):
        if not found:
            raise
        raise FuzzFailure(operation.name, found["row"], found["error"], seed) from found["error"]
    return ran


def rows(operation: Operation, document: Document) -> Any:
    """Hypothesis strategy of rows within the domain of an operation; the settings of the document hold for them."""
    # deferred: optional dependency
    from hypothesis import strategies as st

    domain = operation.domain
    if domain is None:
        raise ValueError(f"operation {operation.name!r} declares no domain")

    @st.composite
    def draw_row(draw: Any) -> dict[str, Any]:
        # deferred: optional dependency
        from hypothesis import assume

        shape: dict[str, Any] = {}
        for dim in operation.dims:
            sizes = st.integers(*domain.dims.get(dim.name, (0, 70)))
            shape[dim.name] = draw(st.lists(sizes, min_size=1, max_size=4) if dim.many else sizes)
        features = {}
        for feature in operation.features:
            value = draw(st.sampled_from(_choices(domain, feature)))
            if value != feature.default:
                features[feature.name] = value
        full = {feature.name: features.get(feature.name, feature.default) for feature in operation.features}
        assume(domain.accepts is None or domain.accepts(shape, full))
        row: dict[str, Any] = {"shape": shape}
        if features:
            row["features"] = features
        row["dtypes"] = [draw(st.sampled_from(domain.dtypes or get_args(Dtype)))]
        (case,) = expand(_with_row(document, operation, row))
        apart = (*domain.plain, *operation.distinct, OUT_ARRAY)
        layouts = {}
        for name, extents in array_shapes(case).items():
            layout = draw(st.sampled_from([CONTIGUOUS, *layouts_of(extents, name in apart)]))
            if layout != CONTIGUOUS:
                layouts[name] = layout
        if layouts:
            row["memory"] = [layouts]
        return row

    return draw_row()


def _slackened(tolerance: Mapping[str, Any] | None, dtype: str) -> dict[str, Any]:
    """An operation's tolerance for a dtype, wider."""
    given = tolerance if tolerance and dtype in tolerance.get("dtypes", [dtype]) else {}
    if "absolute" in given:
        return {"absolute": SLACK * given["absolute"], "reason": "drawn rows"}
    c, u = given.get("c", DEFAULT_C), given.get("u", DEFAULT_U)
    return {"c": SLACK * c, "u": SLACK * u, "reason": "drawn rows"}


def _choices(domain: Domain, feature: Any) -> list[Any]:
    """Values of a feature that are drawn: those of the domain, or all that are named one by one."""
    named = domain.features.get(feature.name)
    if named is None:
        named = tuple(choice for choice in feature.allowed if not isinstance(choice, type))
    return [feature.default, *named]


def _with_row(document: Document, operation: Operation, row: Mapping[str, Any]) -> Document:
    """A document with the settings of another one and this row only."""
    whole = document.source.data
    data = {name: whole[name] for name in ("version", "registry", "defaults") if name in whole}
    settings = (whole.get("operations") or {}).get(operation.name)
    if settings is not None:
        data["operations"] = {operation.name: settings}
    group: dict[str, Any] = {"why": "drawn", "operation": operation.name, "rows": [{**row, "category": "quick"}]}
    if operation.exact is False:
        group["tolerance"] = _slackened((settings or {}).get("tolerance"), row["dtypes"][0])
    return loads(yaml.safe_dump({**data, "groups": {GROUP: group}}), f"<{GROUP}>", document.registry)
