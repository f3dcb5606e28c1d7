"""Rotary embeddings of a model by `rocmkern.rope`.

A model makes tables of cosine and sine once a forward pass, and its attentions call a function of their module,
``apply_rotary_pos_emb(q, k, cos, sin)``. That function is replaced in the forwards of this model's attentions only:
they are the same code with another name in it. The tables are made as ever, and that of cosines also gets a mark: the
positions, and which rotation of `rope` the tables are. Where it is gone, because a model did something else with the
table, the function that was there before is called.

Which rotation it is, is found out by comparing frequencies, and an attention's function is held against the formula.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import CellType, FunctionType
from typing import Any, Literal

import numpy as np
import torch

import rocmkern
from rocmkern.ops.rotary.scaling import YarnScaling, accept_scaling, attention_factor, frequencies
from rocmkern.runtime.errors import ArgumentError
from rocmkern.transformers.replicas import CLOSE, difference, random, why

APPLY = "apply_rotary_pos_emb"
_OURS = f"rocmkern_{APPLY}"
_BUFFER = "inv_freq"
_MARK = "rocmkern_turn"
#: Their frequencies change with the length of the text.
_CHANGING = ("dynamic", "longrope")
_BASE = 10000.0


def tables_replacement(module: torch.nn.Module) -> Callable[..., Any] | str | None:
    """The forward for a module that makes the tables, why it stays as it is, or None for another module."""
    buffers = [name for name in module._buffers if name.endswith(_BUFFER) and not name.endswith(f"original_{_BUFFER}")]
    if not type(module).__name__.endswith("RotaryEmbedding") or not buffers:
        return None
    kinds = getattr(module, "rope_type", "default")
    turns: dict[str | None, dict[str, Any]] = {}
    for name in buffers:
        layer_type = name.removesuffix(_BUFFER).removesuffix("_") or None
        kind = kinds[layer_type] if isinstance(kinds, dict) else kinds
        if any(word in kind for word in _CHANGING):
            return f"the frequencies of rope_type {kind!r} change with the length of the text"
        found = _turn(module, name, layer_type)
        if isinstance(found, str):
            return found
        turns[layer_type] = found
    return partial(_tables, turns=turns)


def _turn(module: torch.nn.Module, name: str, layer_type: str | None) -> dict[str, Any] | str:
    """Arguments of `rope` for one buffer of frequencies, in the fewest words, or why there are none."""
    buffer: Any = module._buffers[name]
    if buffer.is_meta or buffer.dim() != 1:
        return f"its frequencies are {tuple(buffer.shape)} on {buffer.device}"
    wanted = buffer.detach().cpu().double().numpy()
    factor = float(getattr(module, name.removesuffix(_BUFFER) + "attention_scaling", 1.0))
    if not (wanted > 0).all():
        return "some of its frequencies are 0"
    size = 2 * len(wanted)
    said = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    said = dict(said.get(layer_type) or {}) if layer_type is not None else dict(said)
    base = float(said.pop("rope_theta", _BASE))
    for given in (None, said):
        try:
            scaling = accept_scaling(given)
        except ArgumentError:
            continue  # words that `rope` does not know: the frequencies themselves say it
        radians = frequencies(size, base, scaling).astype(np.uint64) * (2 * np.pi / 2.0**64)
        if np.allclose(radians, wanted, rtol=1e-6, atol=0) and np.isclose(attention_factor(scaling), factor, rtol=1e-6):
            return {"base": base, "rotary_dim": size, "scaling": scaling}
    own = tuple((_BASE ** -(np.arange(0, size, 2) / size) / wanted).tolist())
    # A scaling by 1 leaves the frequencies, and has a factor for cosine and sine.
    scaling = None if factor == 1.0 else YarnScaling(1.0, 1, attention_factor=factor)
    return {"base": _BASE, "rotary_dim": size, "freq_factors": own, "scaling": scaling}


def _tables(
    self: Any,
    x: torch.Tensor,
    position_ids: torch.Tensor,
    layer_type: str | None = None,
    *,
    turns: dict[str | None, dict[str, Any]],
) -> Any:
    more = () if layer_type is None else (layer_type,)
    cos, sin = type(self).forward(self, x, position_ids, *more)
    # One row for all is not repeated for each element of the batch.
    positions = position_ids[0] if position_ids.shape[0] == 1 else position_ids
    setattr(cos, _MARK, (positions, turns[layer_type]))
    return cos, sin


def attention_replacement(module: torch.nn.Module) -> Callable[..., Any] | str | None:
    """The forward of an attention with another rotation, why it stays as it is, or None for another module."""
    inner: Any = inspect.unwrap(type(module).forward)
    if APPLY not in getattr(getattr(inner, "__code__", None), "co_names", ()):
        return None
    before = inner.__globals__.get(APPLY)
    if before is None:
        return f"its {APPLY} is not found"
    if list(inspect.signature(before).parameters) != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        return f"its {APPLY} takes other arguments than q, k, cos, sin, unsqueeze_dim"
    variant = _variant(before)
    if variant not in ("half", "interleaved"):
        return variant
    return _Attention(type(module), variant)


class _Attention:
    """The forward of a class of attentions with another rotation; what is pickled is the class and which rotation."""

    def __init__(self, kind: type[torch.nn.Module], variant: Literal["half", "interleaved"]):
        self._made_of = kind, variant
        names = inspect.unwrap(kind.forward).__globals__
        # The module's own name keeps its value: other models use it.
        names.setdefault(_OURS, _applied(names[APPLY], variant))
        self._forward = renamed(kind.forward, APPLY, _OURS)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of

    def __deepcopy__(self, memo: Any) -> _Attention:
        return self


def _variant(apply: Callable[..., Any]) -> Any:
    """Which rotation a function is, or why it is none of those of `rope`."""
    size, q, k = 8, random(2, 3, 5, 8), random(2, 1, 5, 8, seed=1)
    numbers = torch.arange(5, dtype=torch.float32), torch.arange(size // 2, dtype=torch.float32)
    angles = numbers[0][:, None] * 0.5 ** numbers[1]
    tables = {
        "half": (torch.cat([angles, angles], -1), angles),
        "interleaved": (angles.repeat_interleave(2, -1), torch.cat([angles, angles], -1)),
    }
    for variant, ways in tables.items():
        for table in ways:
            try:
                with torch.no_grad():
                    found = apply(q, k, table.cos()[None], table.sin()[None])
            except Exception as error:
                failed = why(error)
                continue
            failed = ""
            wanted = [_rotated(x.double(), angles.double(), variant) for x in (q, k)]
            if max(map(difference, found, wanted)) < CLOSE:
                return variant
    return (
        f"its {APPLY} cannot be tried ({failed})" if failed else f"its {APPLY} is another rotation than those of rope"
    )


def _rotated(x: torch.Tensor, angles: torch.Tensor, variant: str) -> torch.Tensor:
    if variant == "interleaved":
        a, b = x[..., ::2], x[..., 1::2]
        pairs = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
        return torch.stack(pairs, -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def _applied(before: Callable[..., Any], variant: Literal["half", "interleaved"]) -> Callable[..., Any]:
    def apply(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> Any:
        mark = getattr(cos, _MARK, None)
        if mark is None or unsqueeze_dim != 1 or q.dtype is not cos.dtype:
            return before(q, k, cos, sin, unsqueeze_dim)
        positions, options = mark
        return tuple(rocmkern.rope(x, positions, variant=variant, layout="hsd", **options) for x in (q, k))

    return apply


def renamed(function: Any, name: str, other: str) -> Any:
    """The same function with another name for one of its globals; what wraps it wraps the result."""
    inner = getattr(function, "__wrapped__", None)
    code, cells, changed = function.__code__, function.__closure__, None
    if inner is None:
        code = code.replace(co_names=tuple(other if used == name else used for used in code.co_names))
    else:
        changed = renamed(inner, name, other)
        cells = tuple(CellType(changed) if cell.cell_contents is inner else cell for cell in cells or ())
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    if changed is not None:
        copy.__dict__.update({**function.__dict__, "__wrapped__": changed})
    return copy
