"""Gradients of the operators: the one place where their formulas are registered.

`FORMULAS` is empty: there are no gradients yet. An operator that gets one gets an entry, and nothing else changes.
Until then a tensor that asks for a gradient is an error; it is never detached in silence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.torch_tensors import computes_itself, gradient_of, outside_of_transforms


class Formula(NamedTuple):
    """The gradient of an operator.

    Attributes
    ----------
    backward, setup_context : callable
        As `torch.library.register_autograd` takes them.
    """

    backward: Callable[..., Any]
    setup_context: Callable[..., None]


_outside = outside_of_transforms(torch)
#: By the name of an overload: ``"rocmkern::linear"``, ``"rocmkern::flash_attention.lse"``.
FORMULAS: dict[str, Formula] = {}


def register(library: torch.library.Library, name: str, op: Any, kernel: Callable[..., Any]) -> None:
    """Register what an overload does where a gradient may be asked for: its formula, or the refusal.

    Parameters
    ----------
    library : torch.library.Library
    name : str
        Of the overload.
    op : torch._ops.OpOverload
    kernel : callable
        What it does below, with the same arguments.
    """
    formula = FORMULAS.get(name)
    if formula is None:
        library.impl(op, _without_gradient(name, op, kernel), "Autograd")
    else:
        torch.library.register_autograd(name, formula.backward, setup_context=formula.setup_context, lib=library)


def _without_gradient(name: str, op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]

    def refusing(*args: Any, **kwargs: Any) -> Any:
        values = dict(zip(names, args, strict=False), **kwargs)
        refuse(name, values)
        if _outside() and not any(
            computes_itself(torch, x) or x.is_meta for x in values.values() if isinstance(x, torch.Tensor)
        ):
            return kernel(*args, **kwargs)  # what PyTorch would come to: a second way through it takes 10 us
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    return refusing


def refuse(name: str, values: dict[str, Any]) -> None:
    """Raise `ArgumentError` for a tensor that asks for a gradient that an overload does not have.

    PyTorch's tracer looks into it.
    """
    if name in FORMULAS:
        return
    for argument, value in values.items():
        if isinstance(value, torch.Tensor):
            refusal = gradient_of(torch, value)
            if refusal is not None:
                _refused(argument, refusal[0], refusal[1])


def _refused(argument: str, given: str, allowed: str) -> None:
    tracing = torch._guards.TracingContext.try_get() is not None
    raise (_traced_error() if tracing else ArgumentError)(argument, given, allowed.format(argument))


# The tracer calls it as it is, instead of looking into it: the error is ours, not one about a `raise` in a graph.
_refused._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _traced_error() -> type[ArgumentError]:
    """An `ArgumentError` that PyTorch's tracer lets pass: others it wraps into an error of its own."""
    # deferred: start-up
    from torch._dynamo.exc import UserError, UserErrorType

    class TracedArgumentError(ArgumentError, UserError):
        """An argument of an operation inside ``torch.compile`` has a value that is not allowed."""

        def __init__(self, argument: str, given: str, allowed: str):
            UserError.__init__(self, UserErrorType.INVALID_INPUT, f"{argument}: got {given}; allowed: {allowed}")
            ArgumentError.__init__(self, argument, given, allowed)

    return TracedArgumentError
