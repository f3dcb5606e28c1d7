"""Which way a call of a public operation goes: directly, or through the operator that PyTorch knows it by.

Plain tensors go directly: a call through PyTorch's dispatcher takes some microseconds. The operator
(`rocmkern.torch.operators`) is called where PyTorch has to see the call itself:

    torch.compile, torch.export      Dynamo does not look into an operation; it gets the way to the operator
    FakeTensorMode, make_fx, modes   what the operator gives has the right shape and no numbers, or is noted down
    vmap and functionalize           the transform decides how the operator is called
    a subclass of torch.Tensor       its ``__torch_dispatch__`` gets the operator
    torch.autocast                   the operator casts
    a gradient is asked for          the operator's formula counts, or is missed

Arrays of other libraries never come through here. PyTorch is not imported, nor is anything of `rocmkern.torch` before
it is needed: that lies above, so it is found by its name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from rocmkern.calls.notes import thread
from rocmkern.runtime.torch_tensors import computes_itself, gradient_of, outside_of_transforms

#: The public operations by their names, as callers have them.
OPERATIONS: dict[str, Callable[..., Any]] = {}
_OPERATORS = "rocmkern.torch.operators"
operators: Any = None  # that module, once it was needed


def for_dynamo(function: Callable[..., Any], instead: Callable[..., Any]) -> None:
    """Let PyTorch's tracer look into another function instead of this one."""
    marked: Any = function
    marked._torchdynamo_inline = instead


def ordinary(operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation without a plan: through its operator where PyTorch has to see that, otherwise directly."""
    torch = sys.modules.get("torch")
    if torch is None or thread.recorder is not None or thread.in_operator:
        return operation(*args, **kwargs)
    if not _has_to_see(torch, [*args, *kwargs.values()]):
        return operation(*args, **kwargs)
    return _through_operator(operation, args, kwargs)


def _has_to_see(torch: Any, values: list[Any]) -> bool:
    tensor = getattr(torch, "Tensor", None)  # none while PyTorch is being imported
    if not isinstance(tensor, type):
        return False
    for value in values:
        if isinstance(value, (tuple, list)):
            values += value
    tensors: list[Any] = [value for value in values if isinstance(value, tensor)]
    if not tensors or torch._C._get_tracing_state() is not None:  # torch.jit.trace is refused: it keeps numbers
        return False
    if any(x.is_nested or x.layout is not torch.strided for x in tensors):  # refused as well, with what to write
        return False
    if not outside_of_transforms(torch)():
        return True
    return any(computes_itself(torch, x) or gradient_of(torch, x) is not None for x in tensors)


def _through_operator(operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _load()
    return operators.call(operation, args, kwargs)


def _load() -> None:
    global operators
    if operators is None:
        operators = importlib.import_module(_OPERATORS)


# The tracer looks into the operators' way instead of `ordinary`, and calls what imports them as it is.
for_dynamo(ordinary, _through_operator)
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]
