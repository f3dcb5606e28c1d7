"""Put our operations in the place of a model's own modules, and take them away again.

A module keeps its class, its parameters and its name: it only gets a ``forward`` of its own. So the state of the model
has the same keys and numbers, and nothing remains when that attribute is deleted. The forwards are functions of this
package, or what pickles like one, in a `functools.partial` with their module: so a deep copy of the model has its own,
and a pickle too. (Of a bound method only the name would be pickled, which is that of the class's own.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from rocmkern.ops.quantized.api import FORMATS
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.transformers import linears
from rocmkern.transformers.mlps import mlp_replacement
from rocmkern.transformers.norms import norm_replacement
from rocmkern.transformers.rotary import attention_replacement, tables_replacement

_RECORD = "_rocmkern_patch"


@dataclass(frozen=True)
class PatchReport:
    """What `patch` did.

    Attributes
    ----------
    replaced : dict of str to str
        What each module got, by its name: "norms", "rotary", "mlp" or the format of its weights.
    left : dict of str to str
        Modules that were asked for and stay as they are, and why.
    """

    replaced: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = Counter(self.replaced.values())
        lines = [f"{kind}: {count} replaced" for kind, count in counts.items()]
        return "\n".join(
            [*lines, *(f"{count} left: {reason}" for reason, count in Counter(self.left.values()).items())]
        )


@dataclass(frozen=True)
class _Plan:
    """What is to be replaced, before anything is."""

    report: PatchReport = field(default_factory=PatchReport)
    forwards: list[tuple[torch.nn.Module, Callable[..., Any]]] = field(default_factory=list)

    def add(self, name: str, module: torch.nn.Module, kind: str, found: Callable[..., Any] | str | None) -> None:
        """Note what was found of a module: a forward, or why there is none; nothing where it is another module."""
        if callable(found):
            self.forwards.append((module, found))
            self.report.replaced[name] = kind
        elif found is not None:
            self.report.left[name] = found


def patch(model: Any, *, norms: bool, rotary: bool, mlp: bool, linear: str | None) -> PatchReport:
    """See `rocmkern.transformers.patch`."""
    _check(model, {"norms": norms, "rotary": rotary, "mlp": mlp}, linear)
    plan = _Plan()
    quantized = {} if linear is None else _linears(model, linear, plan)
    modules, find = list(model.named_modules()), _Finder()
    for name, module in modules if norms else ():
        plan.add(name, module, "norms", find(norm_replacement, module))
    if rotary:
        _rotary(modules, find, plan)
    for name, module in modules if mlp else ():
        found = find(mlp_replacement, module)
        if callable(found) and any(id(part) in quantized for part in module.children()):
            found = "its linear layers are quantized, one by one"
        plan.add(name, module, "mlp", found)
    left, kind = plan.report.left, type(model).__name__
    if not plan.forwards:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in [*left.items()][:3])
        allowed = "a model with RMS norms, rotary embeddings or gated MLPs that patch knows"
        raise ArgumentError("model", f"a {kind} with nothing to replace ({reasons or 'it has none'})", allowed)
    for layer in quantized.values():
        linears.quantize(layer, linear)
    for module, forward in plan.forwards:
        module.forward = partial(forward, module)  # type: ignore[method-assign]
    model.__dict__[_RECORD] = [module for module, _ in plan.forwards]
    return plan.report


def unpatch(model: Any) -> None:
    """See `rocmkern.transformers.unpatch`."""
    modules = getattr(model, "__dict__", {}).pop(_RECORD, None)
    if modules is None:
        raise ArgumentError("model", f"a {type(model).__name__} that is not patched", "one that patch was called with")
    for module in modules:
        del module.__dict__["forward"]
        linears.restore(module)


def _linears(model: torch.nn.Module, format: str, plan: _Plan) -> dict[int, torch.nn.Linear]:
    """Linear layers that are to be quantized, by their identity."""
    reasons, found = linears.reasons_to_stay(model, format), {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            plan.add(name, module, format, reasons.get(name) or linears.forward_of(format, name))
            if name not in reasons:
                found[id(module)] = module
    return found


def _rotary(modules: list[tuple[str, torch.nn.Module]], find: _Finder, plan: _Plan) -> None:
    """Modules that make tables and attentions that use them: neither without the other."""
    # Two modules of one class may have different frequencies.
    tables = [(name, module, tables_replacement(module)) for name, module in modules]
    attentions = [(name, module, find(attention_replacement, module)) for name, module in modules]
    both = all(any(callable(found) for _, _, found in some) for some in (tables, attentions))
    for name, module, found in [*tables, *attentions]:
        other = "what makes the tables" if (name, module, found) in attentions else "what uses the tables"
        plan.add(name, module, "rotary", f"{other} stays as it is" if callable(found) and not both else found)


class _Finder:
    """Looks at modules, at those that cannot differ only once: a model has many layers."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def __call__(self, look: Callable[[torch.nn.Module], Any], module: torch.nn.Module) -> Any:
        if "forward" in module.__dict__:
            found = look(module)
            return "something else has replaced its forward" if callable(found) else found
        settings = {n: v for n, v in module.__dict__.items() if isinstance(v, (int, float, str)) or callable(v)}
        parts = [(n, "forward" in part.__dict__) for n, part in module._modules.items() if part is not None]
        key = look, type(module), repr(module), repr(settings | {"layer_idx": None}), tuple(parts)
        if key not in self._known:
            self._known[key] = look(module)
        return self._known[key]


def _check(model: Any, asked: dict[str, Any], linear: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError("model", type(model).__name__, "a model of Transformers")
    if _RECORD in model.__dict__:
        raise ArgumentError("model", "a model that is patched", "one that is not: call unpatch first")
    for name, value in asked.items():
        if not isinstance(value, bool):
            raise ArgumentTypeError(name, repr(value), "True or False")
    if linear is not None and linear not in FORMATS:
        raise ArgumentError("linear", repr(linear), f"None, {', '.join(map(repr, FORMATS))}")
    if linear is None and not any(asked.values()):
        raise ArgumentError("norms", "False, as everything else", "something to replace")
