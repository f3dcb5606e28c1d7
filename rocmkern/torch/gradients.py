"""Gradients of the operators: how their formulas (`formulas.FORMULAS`) come to be what PyTorch does.

Each overload gets one kernel for PyTorch's ``Autograd`` key. Where a gradient is asked for, and there is a formula, it
calls the operator below that key inside a `torch.autograd.Function`, whose backward is the formula; so PyTorch's graph
of a result, saved tensors, hooks, checkpoints and ``torch.compile`` find what they know. (`register_autograd` does not
take operators with tensors that are given by name only.) A gradient that there is no formula for is an error; a tensor
is never detached in silence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.torch_tensors import NO_GRADIENT, ON_META, computes_itself, gradient_of, outside_of_transforms
from rocmkern.torch.formulas import FORMULAS, Formula, GradientCall
from rocmkern.torch.refusals import refused

_outside = outside_of_transforms(torch)
_TWICE = (
    "one without: there are no gradients of gradients. Take gradients once: backward() or torch.autograd.grad() "
    "without create_graph=True; or `with torch.no_grad():` around the call, or {}.detach()"
)
_TRANSFORM = "gradients by backward() or torch.autograd.grad(), outside of the transforms of torch.func"
#: What an overload does, by its name. It is called as it is where PyTorch would come to it: the way there takes 10 us.
_KERNELS: dict[str, Callable[..., Any]] = {}
#: The same where a gradient may be asked for: of the values by their names, and whether the call is a plain one.
_DIFFERENTIABLE: dict[str, Callable[[dict[str, Any], bool], Any]] = {}
#: By the name of an overload, the arguments that have a gradient: PyTorch's tracer looks at it.
_WITH_GRADIENT = {name: formula.of for name, formula in FORMULAS.items()}
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def register(library: torch.library.Library, name: str, op: Any, kernel: Callable[..., Any]) -> None:
    """Register what an overload does where a gradient may be asked for: its formula, or the refusal.

    Parameters
    ----------
    library : torch.library.Library
    name : str
        Of the overload: ``"rocmkern::linear"``, ``"rocmkern::flash_attention.lse"``.
    op : torch._ops.OpOverload
    kernel : callable
        What it does below, with the same arguments.
    """
    _KERNELS[name] = kernel
    library.impl(op, _with_gradient(name, op, kernel), "Autograd")


def _with_gradient(name: str, op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]
    formula, below_autograd, count = FORMULAS.get(name), _below(name), len(op._schema.returns)

    def of_values(values: dict[str, Any], plain: bool) -> Any:
        tensors = [n for n, x in values.items() if isinstance(x, torch.Tensor)]
        if formula is not None and torch.is_grad_enabled() and any([values[n].requires_grad for n in tensors]):
            others = {n: x for n, x in values.items() if n not in tensors}
            called = name if not formula.forward else f"{name}.{formula.forward}"
            below = _KERNELS[called] if plain else _below(called)
            found = _Differentiable.apply(formula, count, below, others, tensors, *[values[n] for n in tensors])
            return found if count > 1 else found[0]
        return (kernel if plain else below_autograd)(**values)

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        values = dict(zip(names, args, strict=False), **kwargs)
        refuse(name, values)
        return of_values(values, is_plain(values))

    _DIFFERENTIABLE[name] = of_values
    return differentiable


def is_plain(values: dict[str, Any]) -> bool:
    """Whether nothing of PyTorch but gradients has to see a call: it is the same without its dispatcher, and sooner."""
    if not _outside():
        return False
    for value in values.values():
        if isinstance(value, torch.Tensor) and (computes_itself(torch, value) or value.is_meta):
            return False
    return True


def called_directly(name: str, values: dict[str, Any]) -> Any:
    """What an overload gives where `is_plain` holds, and `refuse` has nothing against it."""
    return _DIFFERENTIABLE[name](values, True)


def _operator(name: str, values: dict[str, Any]) -> Any:
    """What an operator gives to a formula."""
    kernel = _KERNELS[f"rocmkern::{name}"]
    op = getattr(torch.ops.rocmkern, name)
    batched = [n for n, x in values.items() if _is_batched(x)]
    if batched and isinstance(op.default._schema.returns[0].type, torch.ListType):  # PyTorch has no loop for lists
        given = "a batch of gradients (is_grads_batched=True, or vectorize=True)"
        raise ArgumentError(batched[0], given, "one gradient at a time: is_grads_batched=False, vectorize=False")
    if not torch.is_grad_enabled() and is_plain(values) and not batched:
        return kernel(**values)
    return op(**values)


def _is_batched(value: Any) -> bool:
    """Whether autograd itself maps over a value: for ``is_grads_batched``."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


@functools.cache
def _below(name: str) -> Callable[..., Any]:
    """What an overload is to PyTorch below the key of gradients."""
    packet, _, overload = name.removeprefix("rocmkern::").partition(".")
    op = getattr(getattr(torch.ops.rocmkern, packet), overload or "default")

    def below(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    return below


#: Of the arguments of `_Differentiable`, the place of the first tensor.
_FIRST = 5


class _Differentiable(torch.autograd.Function):
    """A call of an operator whose results have gradients; it gives a tuple."""

    @staticmethod
    def forward(ctx: Any, formula: Formula, count: int, call: Any, others: Any, names: list[str], *tensors: Any) -> Any:
        """Call what gives as many results or more, and keep what the formula needs."""
        values = dict(zip(names, tensors, strict=True))
        found = call(**others, **values)
        results = found if isinstance(found, tuple) else (found,)
        needs = frozenset(n for n, needed in zip(names, ctx.needs_input_grad[_FIRST:], strict=True) if needed)
        spared = formula.spares(needs, others)
        kept = [n for n in names if n in formula.saves and n not in spared]
        ctx.save_for_backward(*[values[n] for n in kept], *[results[i] for i in formula.keeps])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[results[i] for i in formula.without])
        ctx.formula, ctx.others, ctx.names, ctx.kept = formula, others, names, kept
        ctx.like = {n: (x.shape, x.dtype) for n, x in values.items() if n in formula.of}
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the tensors, None where one is not asked for."""
        formula = ctx.formula
        asked = ctx.needs_input_grad[_FIRST:]
        found: dict[str, Any] = {}
        # Of a conjugate PyTorch gives a lazy negative.
        grads = tuple([x.resolve_neg() if x is not None and x.is_neg() else x for x in grads])
        if any(grad is not None for grad in grads):
            saved = ctx.saved_tensors
            values = {**ctx.others, **dict(zip(ctx.kept, saved, strict=False))}
            needs = frozenset(n for n, needed in zip(ctx.names, asked, strict=True) if needed)
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                found = formula.backward(
                    GradientCall(values, grads, saved[len(ctx.kept) :], needs, ctx.like, _operator)
                )
        gradients = [found.get(n) if needed else None for n, needed in zip(ctx.names, asked, strict=True)]
        return (*[None] * _FIRST, *gradients)


def with_gradient(name: str) -> tuple[str, ...]:
    """The arguments of an operation that have a gradient."""
    return _WITH_GRADIENT.get(f"rocmkern::{name}", ())


def refuse(name: str, values: dict[str, Any]) -> None:
    """Raise `ArgumentError` for a tensor that asks for a gradient that an overload does not have, or has no elements.

    Tensors that are all on the meta device give another one; a single one would make a result of nothing.

    PyTorch's tracer looks into it.
    """
    differentiable = _WITH_GRADIENT.get(name, ())
    on_meta = [argument for argument, x in values.items() if isinstance(x, torch.Tensor) and x.is_meta]
    if on_meta and len(on_meta) < len([x for x in values.values() if isinstance(x, torch.Tensor)]):
        refused(on_meta[0], *ON_META)
    for argument, value in values.items():
        if isinstance(value, torch.Tensor):
            refusal = gradient_of(torch, value)
            if refusal is not None:
                given, allowed = refusal
                if argument in differentiable and allowed == NO_GRADIENT:
                    if not _inside_transform():
                        continue
                    allowed = _TRANSFORM
                elif name.endswith("_backward"):
                    allowed = _TWICE
                elif name.endswith("out"):
                    allowed = "no out=, which has none, or " + allowed
                refused(argument, given, allowed.format(argument))


def _inside_transform() -> bool:
    """Whether a transform of ``torch.func`` computes: it does not take functions of `torch.autograd` from operators."""
    return torch._C._functorch.peek_interpreter_stack() is not None


_inside_transform._dynamo_marked_constant = True  # type: ignore[attr-defined]
