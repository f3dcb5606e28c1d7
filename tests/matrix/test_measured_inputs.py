"""Inputs and costs of rows are those that results were measured with: otherwise old and new ones do not compare.

Of each operation a few numbers stand for all arrays and options of its quick rows. Who changes them on purpose writes
them anew with ``python tests/matrix/test_measured_inputs.py``, and says in the change that older results are of others.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from numbers import Real
from pathlib import Path

import numpy as np
import pytest

from rocmkern.matrix import load_cases, make_call

#: By operation: rows, what stands for their inputs, FLOP in thousands, bytes in thousands.
RECORDED = Path(__file__).parent / "golden" / "inputs.txt"
MEASURED = {
    name: [float(number) for number in numbers.split()]
    for name, numbers in (line.split(": ") for line in RECORDED.read_text(encoding="utf-8").splitlines())
}


def weighed(value):
    """A number for a value that changes with each part of it, by far more than roundings of a processor do."""
    if value is None or isinstance(value, (str, bool)):
        return zlib.crc32(repr(value).encode()) % 1000
    if isinstance(value, (tuple, list, dict)):
        items = sorted(value.items()) if isinstance(value, dict) else value
        return sum((place + 1) * weighed(item) for place, item in enumerate(items))
    if not isinstance(value, (np.ndarray, Real)):
        return zlib.crc32(str(value).encode()) % 1000
    numbers = np.asarray(value).reshape(-1)
    numbers = (numbers if numbers.dtype.names is None else numbers.view(np.uint8)).astype(np.float64)
    with np.errstate(over="ignore"):
        small = np.nan_to_num(np.arcsinh(1000 * numbers), nan=777.0, posinf=888.0, neginf=-888.0)
    return float((small * (1 + np.arange(small.size) % 7)).sum()) + small.size


def measured():
    """The numbers of the quick rows, by operation."""
    rows = defaultdict(list)
    for case in load_cases(Path(__file__).parents[2] / "matrix.yaml")[1]:
        if case.category == "quick" and case.memory == "contiguous" and not case.facts.expect_error:
            call = make_call(case)
            inputs = weighed(dict(call.arguments)) + weighed(list(call.out_shapes))
            costs = (cost(case) if cost else 0 for cost in (case.operation.flops, case.operation.nbytes))
            rows[case.operation.name].append((1, inputs, *(number / 1000 for number in costs)))
    return {name: [sum(column) for column in zip(*numbers, strict=True)] for name, numbers in rows.items()}


@pytest.fixture(scope="module")
def found():
    return measured()


def test_every_operation_is_known(found):
    assert set(found) == set(MEASURED)


@pytest.mark.parametrize("operation", MEASURED)
def test_inputs_and_costs_are_those_of_results(found, operation):
    now = found[operation]
    assert now == pytest.approx(MEASURED[operation], rel=1e-8), f'"{operation}": {tuple(now)},'


if __name__ == "__main__":
    lines = (f"{name}: {' '.join(f'{number:.10g}' for number in numbers)}\n" for name, numbers in measured().items())
    RECORDED.write_text("".join(sorted(lines)), encoding="utf-8")
