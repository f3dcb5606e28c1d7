"""Linear layers of a model by `rocmkern.quantized_linear`.

The blocks lie on the layer's device, as a buffer that is not part of the state. The weights themselves, which the
state consists of and `unpatch` needs, move to host memory; where they are there already, nothing moves. A state that is
loaded gives new blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import rocmkern
from rocmkern.runtime.errors import ArgumentError
from rocmkern.tile.formats import FORMATS

BLOCKS = "rocmkern_blocks"


def reasons_to_stay(model: torch.nn.Module, format: str) -> dict[str, str]:
    """Why linear layers of a model are not quantized, by their names; the others are not in it."""
    elements = FORMATS[format].elements
    of_logits: Any = getattr(model, "get_output_embeddings", None)
    head = None if of_logits is None else of_logits()
    users: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module._parameters.values():
            if parameter is not None:
                users.setdefault(id(parameter), []).append(name)
    found = {}
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    some_frozen = any(not layer.weight.requires_grad for _, layer in layers)
    for name, module in layers:
        if module is head:
            found[name] = "it gives the logits"
        elif type(module) is not torch.nn.Linear:
            found[name] = f"it is no plain torch.nn.Linear but a {type(module).__name__}"
        elif len(users[id(module.weight)]) > 1:
            found[name] = f"its weight is that of {', '.join(n for n in users[id(module.weight)] if n != name)} too"
        elif some_frozen and module.weight.requires_grad:
            found[name] = "it is trained, as an adapter beside layers that are frozen"
        elif module.weight.is_meta or not module.weight.is_floating_point():
            found[name] = f"its weight is {module.weight.dtype} on {module.weight.device}"
        elif module.in_features % elements:
            found[name] = f"its {module.in_features} columns are no multiple of {elements}, a block of {format}"
    return found


def quantize(layer: torch.nn.Linear, format: Any) -> None:
    """Give a layer its blocks, and move its weight to host memory."""
    device = layer.weight.device
    host = layer.weight.detach().cpu()
    layer.register_buffer(BLOCKS, rocmkern.quantize(host.contiguous(), format).to(device), persistent=False)
    layer.weight.data = host
    layer.register_load_state_dict_post_hook(partial(_again, format=format))


def _again(layer: torch.nn.Module, keys: Any, *, format: Any) -> None:
    """Write the blocks anew, to where they are, as captured graphs read them there."""
    blocks: Any = layer._buffers[BLOCKS]
    weight: Any = layer.weight
    weight.data = weight.detach().cpu()  # that of a state whose tensors are assigned may lie elsewhere
    blocks.copy_(rocmkern.quantize(weight.data.contiguous(), format))


def restore(layer: torch.nn.Module) -> None:
    """Take the blocks of a layer away, if it has some, and bring its weight to where they were."""
    blocks = layer._buffers.pop(BLOCKS, None)
    if blocks is not None:
        layer._non_persistent_buffers_set.discard(BLOCKS)
        hooks: Any = layer._load_state_dict_post_hooks
        for key in [key for key, hook in hooks.items() if getattr(hook, "func", None) is _again]:
            del hooks[key]
        layer.weight.data = layer.weight.data.to(blocks.device)  # type: ignore[operator, union-attr]


def forward_of(format: Any, name: str) -> Callable[..., Any]:
    """The forward for a layer of that name that has its blocks."""
    return partial(_forward, format=format, name=name)


def _forward(self: torch.nn.Module, input: torch.Tensor, *, format: Any, name: str) -> torch.Tensor:
    blocks: Any = self._buffers[BLOCKS]
    weight = self._parameters["weight"]
    if weight is not None and weight.requires_grad and torch.is_grad_enabled():
        input = _Beside.apply(input, _Trained.apply(weight, input.device, name))
    return rocmkern.quantized_linear(input, blocks, format, self._parameters["bias"])


class _Beside(torch.autograd.Function):
    """What a layer is given, and no numbers of its weight: a graph of gradients has the weight where it is used."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad.new_empty(0)


class _Trained(torch.autograd.Function):
    """No numbers of a weight that is quantized. Only where its gradient is asked for does PyTorch go backward here."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, device: torch.device, name: str) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.name = name
        return weight.new_empty(0, device=device)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _no_gradient(grad, *ctx.saved_tensors, ctx.name), None, None


# An operator, as a graph that is compiled has forward and backward: the error is of the call of the latter.
@torch.library.custom_op(
    "rocmkern_transformers::no_gradient", mutates_args=(), schema="(Tensor grad, Tensor weight, str name) -> Tensor"
)
def _no_gradient(grad: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
    given = f"a model to train whose quantized weights require gradients ({f'{name}.weight'.lstrip('.')})"
    raise ArgumentError("linear", given, "frozen ones: model.requires_grad_(False) before adapters are put in")


@_no_gradient.register_fake
def _(grad: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(weight)
