"""No array argument of any operation may lie in the memory that the operation writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmkern import targets
from rocmkern.matrix import load_cases, make_call
from rocmkern.matrix.inputs import output_dtype
from rocmkern.matrix.registry import resolve
from rocmkern.ops.catalog import OPERATIONS
from rocmkern.runtime.errors import ArgumentError

ELEMENT = 8
#: Operations whose arrays are at least as large as what they write, beside those whose only array may be that.
AS_LARGE = (
    "causal_mask",
    "softmax",
    "add_residual",
    "swiglu",
    "geglu",
    "transpose",
    "quantize",
    "sample",
    "softmax_backward",
    "linear_cross_entropy",
)


@pytest.fixture(scope="module")
def cases():
    """For each operation and array argument one quick case in which the argument fits into the first output."""
    found: dict = {}
    looked_at: dict = {}
    for case in load_cases(Path(__file__).parents[2] / "matrix.yaml")[1]:
        if case.category != "quick" or case.facts.expect_error or not case.operation.out or case.memory != "contiguous":
            continue
        looked_at[case.operation.name] = looked_at.get(case.operation.name, 0) + 1
        if looked_at[case.operation.name] > 60:
            continue
        call = make_call(case)
        room = int(np.prod(call.out_shapes[0])) * output_dtype(case, 0).itemsize
        for name, value in call.arguments.items():
            if isinstance(value, np.ndarray) and value.nbytes > 0 and value.nbytes + ELEMENT <= room:
                found.setdefault((case.operation.name, name), case)
    return found


def test_every_kind_of_argument_is_among_them(cases):
    for wanted in (
        ("flash_attention_packed", "cu_seqlens_q"),
        ("flash_attention_packed", "cu_seqlens_k"),
        ("paged_attention", "block_table"),
        ("paged_attention", "context_lens"),
        ("paged_attention_packed", "cu_seqlens_q"),
        ("rope", "positions"),
        ("embedding", "indices"),
        ("quantized_linear", "bias"),
    ):
        assert wanted in cases


def smaller(operation):
    """Whether an operation has arrays that fit into what it writes."""
    return operation.out and operation.name not in AS_LARGE and operation.arrays != (operation.in_place,)


@pytest.mark.parametrize("operation", [each.name for each in OPERATIONS if smaller(each)])
def test_an_output_over_an_argument_is_refused(operation, cases):
    arguments = [argument for name, argument in cases if name == operation]
    assert arguments
    for argument in arguments:
        check(cases[operation, argument], argument)


def check(case, argument):
    """A call whose output lies over this argument is refused, and leaves it alone."""
    call = make_call(case)
    outs = [np.zeros(int(np.prod(s)) * output_dtype(case, i).itemsize, np.uint8) for i, s in enumerate(call.out_shapes)]
    given = call.arguments[argument]
    inside = outs[0][ELEMENT : ELEMENT + given.nbytes].view(given.dtype).reshape(given.shape)
    inside[...] = given
    before = inside.copy()
    arrays = tuple(x.view(output_dtype(case, i)).reshape(call.out_shapes[i]) for i, x in enumerate(outs))
    arguments = {**call.arguments, argument: inside, "out": arrays if len(arrays) > 1 else arrays[0]}
    with targets.using("python"), pytest.raises(ArgumentError, match=f"overlaps with {argument}"):
        resolve(case.operation.function)(**arguments)
    np.testing.assert_array_equal(inside, before)
