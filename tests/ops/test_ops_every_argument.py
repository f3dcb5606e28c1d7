"""Every array argument of every operation is looked at: tensors without elements, gradients.

The calls are rows of the matrix, of each operation one with as many arrays as any.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import rocmkern
from rocmkern.flash_attn import flash_attn_with_kvcache
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.expand import load_cases
from rocmkern.matrix.inputs import make_call
from rocmkern.matrix.registry import resolve
from rocmkern.runtime.errors import ArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def calls():
    """``(operation, keyword arguments)`` of each operation that takes PyTorch's tensors."""
    document, cases = load_cases(Path(__file__).parents[2] / "matrix.yaml")
    for operation in document.registry:
        own = [
            case
            for case in cases
            if case.operation is operation
            and (case.category, case.memory, case.dtype) == ("quick", "contiguous", "f32")
            and case.facts.expect_error is None
            and 0 not in case.dims.values()
        ]
        if operation.name in ("decoder", "quantize", "causal_mask", "distributed_attention"):
            continue  # no operation; of arrays of NumPy only; of no arrays; called in other processes
        most = max(own, key=lambda case: sum(x is not None for x in case.operation.call(Draw(case)).arrays.values()))
        yield pytest.param(operation, make_call(most).arguments, id=operation.name)


def tensor(x):
    """A tensor of an array, of the same bits."""
    return torch.from_numpy(np.array(x, order="C"))


def as_tensors(arguments):
    """The arguments with PyTorch's tensors, and the names of those."""
    known = {
        name: tensor(x)
        for name, x in arguments.items()
        if isinstance(x, np.ndarray) and x.dtype.name in ("float32", "int32", "int64", "uint8", "int8", "bool")
    }
    return {**arguments, **known}, list(known)


def refused(function, arguments, name, value, words):
    with pytest.raises(ArgumentError, match=words) as error:
        function(**{**arguments, name: value})
    assert error.value.argument == name
    return error.value


def stays_without_elements(function, arguments, name, fake):
    """Beside tensors that have elements it is refused, by us or by PyTorch; alone it gives another fake one."""
    try:
        result = function(**{**arguments, name: fake})
    except (ArgumentError, AssertionError) as error:
        assert "FakeTensor" in str(error)
    else:
        assert all(type(each) is type(fake) for each in (result if isinstance(result, tuple) else (result,)))


def differentiated_or_refused(operation, function, arguments, name, parameter):
    """The results have a gradient, but for those that never have one, or it is refused: no tensor is detached."""
    try:
        result = function(**{**arguments, name: parameter})
    except ArgumentError:
        error = refused(function, arguments, name, parameter, "requires a gradient")
        assert re.search(rf"torch\.no_grad\(\).*\b{name}\.detach\(\)", error.allowed)
    else:
        from rocmkern.torch.formulas import FORMULAS

        results = result if isinstance(result, tuple) else (result,)
        formula = FORMULAS.get(f"rocmkern::{operation.name}")
        without = () if formula is None else formula.without
        assert all(each.requires_grad == (place not in without) for place, each in enumerate(results))


@pytest.mark.parametrize(("operation", "arguments"), calls())
def test_gradients_and_elements_are_asked_for_everywhere(operation, arguments):
    from torch._subclasses import FakeTensorMode

    # Rows call some with copies of the caches.
    appending = {"rope_append_kv": rocmkern.rope_append_kv, "flash_attn_with_kvcache": flash_attn_with_kvcache}
    appends = [function for name, function in appending.items() if operation.name.startswith(name)]
    function = appends[0] if appends else resolve(operation.function)
    given, names = as_tensors(arguments)
    assert names
    with rocmkern.using("python"):
        function(**given)
        for name in names:
            with FakeTensorMode() as mode:
                fake = mode.from_tensor(given[name])
            stays_without_elements(function, given, name, fake)
            refused(function, given, name, given[name].to("meta"), "meta device")
            if given[name].is_floating_point():
                parameter = torch.nn.Parameter(given[name])
                differentiated_or_refused(operation, function, given, name, parameter)
                with torch.no_grad():
                    function(**{**given, name: parameter})
