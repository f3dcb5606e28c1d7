"""A case in words: what it is, which inputs it has, how its bound comes about, how to run it again."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.matrix import inputs as _inputs
from rocmkern.matrix.case import Case
from rocmkern.matrix.runner import compare_outputs, expected_outputs, reproduce
from rocmkern.matrix.tolerance import Rule, rule_of


def describe_case(case: Case) -> list[str]:
    """What a case is: its row, dimensions, features and arrays.

    Parameters
    ----------
    case : Case

    Returns
    -------
    list of str
        Lines of text.
    """
    facts = case.facts
    call = _inputs.make_call(case)
    lines = [
        case.id,
        f"  {facts.file}:{facts.line}, group {facts.group}, category {facts.category}",
        f"  why         {facts.why}",
        f"  operation   {case.operation.name} ({case.operation.function}), dtype {case.dtype}",
        f"  dimensions  {_pairs(case.dims)}",
        f"  features    {_pairs(_changed_features(case)) or 'none'}",
    ]
    lines += [f"  {name:<11} {_array(array)}" for name, array in call.arrays.items() if array is not None]
    lines += [f"  options     {_pairs(call.options)}"] if call.options else []
    for index, (output, shape) in enumerate(
        zip(case.operation.outputs_of(case.features), call.out_shapes, strict=True)
    ):
        lines.append(f"  -> {output.name:<8} {_inputs.output_dtype(case, index)}{list(shape)}")
    if facts.expect_error is not None:
        lines.append(f"  raises      {facts.expect_error.type} that names {facts.expect_error.argument}")
    if facts.targets is not None:
        lines.append(f"  targets     {facts.targets.reason}")
    return lines


def explain_case(case: Case, target: str) -> list[str]:
    """Why a case has the bound that it has, and how to reproduce it.

    The bound is worked out from the reference and the straightforward algorithm; no kernel runs.

    Parameters
    ----------
    case : Case
    target : str
        Where the lines that reproduce the case run it.

    Returns
    -------
    list of str
        Lines of text.
    """
    lines = [*describe_case(case), "", "bound"]
    if case.facts.expect_error is not None:
        lines.append("  none: the row says which error is raised")
    else:
        lines += [f"  {line}" for line in _bound(case)]
    return [*lines, "", "reproduce with", "", *reproduce(case, target).splitlines()]


def _bound(case: Case) -> list[str]:
    if case.operation.is_exact(case.features):
        return ["0: the operation is exact"]
    tolerance, rule = case.facts.tolerance, rule_of(case.facts.tolerance, case.dtype)
    if tolerance is None or rule == Rule():
        reason = "the default"
    else:
        reason = tolerance.reason
    if rule.absolute is not None:
        return [f"{rule.absolute:g} for every element: {reason}"]
    lines = [
        "for each row of an output: max|out - ref64| <= max(c * e, u * ulp(max|ref64|))",
        "e: error of the straightforward algorithm in the compute dtype against float64, its final rounding included",
        f"c = {rule.c:g}, u = {rule.u:g}: {reason}",
    ]
    call = _inputs.make_call(case)
    reference, baseline = expected_outputs(case, call)
    outputs = baseline if baseline is not None else reference
    with np.errstate(over="ignore"):
        rounded = tuple(np.asarray(o).astype(_inputs.output_dtype(case, i)) for i, o in enumerate(outputs))
    for comparison in compare_outputs(case, call, rounded):
        where = "" if comparison.index is None else f"; the row of element {comparison.index}"
        lines.append(
            f"output {comparison.output}: the straightforward algorithm errs by {comparison.error:.3g}, "
            f"bound {comparison.bound:.3g} = {comparison.parts}{where}"
        )
    return lines


def _changed_features(case: Case) -> dict[str, Any]:
    table = case.operation.feature_table
    return {name: value for name, value in case.features.items() if value != table[name].default}


def _pairs(values: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _array(array: np.ndarray) -> str:
    text = f"{array.dtype}{list(array.shape)}"
    if not array.flags.c_contiguous:
        text += f", strides {list(array.strides)} bytes"
    if array.size and _inputs.is_float(array):
        values = array.astype(np.float64)
        finite = values[np.isfinite(values)]
        if finite.size:
            text += f", {finite.min():.4g} to {finite.max():.4g}"
        if finite.size < values.size:
            text += f", {values.size - finite.size} not finite"
    return text
