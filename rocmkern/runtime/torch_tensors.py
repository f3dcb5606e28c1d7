"""Which PyTorch tensors are plain memory, told without importing PyTorch.

An operation reads and writes addresses. Some tensors mean something else than the elements at their address, or have
none: those of FakeTensorMode, of `torch.func` transforms, of tracers, wrapper subclasses, lazy views, layouts that are
not strided. DLPack does not notice all of them: what it hands over for a fake tensor is whatever lies there. So each
kind is refused here, with what to write instead.

Whether a parameter may be used is PyTorch's own rule: it requires a gradient only where gradient mode is on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from rocmkern.runtime.errors import ArgumentError

#: What is allowed of a tensor that asks for a gradient.
NO_GRADIENT = "gradients off, as there is none of this call: `with torch.no_grad():` around the call, or {}.detach()"
_NO_TANGENT = "a plain tensor, as there are gradients by backward() only: forward_ad.unpack_dual({}).primal"
_LAZY_SIGN = "a tensor that is a lazy negative or conjugate", "plain values: {}.resolve_neg().resolve_conj()"
#: What was given and what is allowed, of a tensor without elements beside others.
ON_META = "a tensor on the meta device, which has no elements", "a tensor in host memory or on a GPU"
_EAGER = "a call outside of it, on tensors with elements"


def torch_of(x: Any) -> Any:
    """The module ``torch`` if x is one of its tensors, else None; PyTorch is never imported."""
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)
    return torch if isinstance(kind, type) and isinstance(x, kind) else None


def plain_tensor(torch: Any, x: Any, argument: str) -> Any:
    """The tensor as one that shares its memory without question: x, or x without its place in the gradient's graph.

    Parameters
    ----------
    torch : module
        As `torch_of` gives it.
    x : torch.Tensor
    argument : str
        Its name for errors.

    Raises
    ------
    ArgumentError
        For a tensor that is not plain memory; the message says what to write instead.
    """
    refusal = _without_elements(torch, x) or _elsewhere(torch, x) or gradient_of(torch, x)
    if refusal is not None:
        given, allowed = refusal
        raise ArgumentError(argument, given, allowed.format(argument))
    return x.detach() if x.requires_grad else x


def gradient_of(torch: Any, x: Any) -> tuple[str, str] | None:
    """What was given and what is allowed of ``{}``, where x asks for a gradient now; None where it does not."""
    if _dual_level(torch) >= 0 and torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
        return "a dual tensor of forward differentiation", _NO_TANGENT
    if x.requires_grad and torch.is_grad_enabled():
        return "a tensor that requires a gradient", NO_GRADIENT
    return None


def computes_itself(torch: Any, x: Any) -> bool:
    """Whether the class of a tensor says what operators do to it."""
    return type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def check_marks(x: Any, argument: str) -> None:
    """Raise `ArgumentError` for an array of another library that bears the marks of PyTorch's tensors."""
    if getattr(x, "requires_grad", False):
        allowed = f"one without: {argument}.detach(), or gradients off"
        raise ArgumentError(argument, "an array that requires a gradient", allowed)
    if any(getattr(x, flag, bool)() for flag in ("is_neg", "is_conj")):
        raise ArgumentError(argument, _LAZY_SIGN[0], _LAZY_SIGN[1].format(argument))


def note_write(x: Any, argument: str = "out") -> None:
    """Tell PyTorch that a tensor is about to be written, as its own in-place operations do; nothing for other arrays.

    What autograd has kept of the tensor for a gradient is another value then: its version says so.

    Raises
    ------
    ArgumentError
        For a tensor made in inference mode, outside of it: it has no version.
    """
    torch = torch_of(x)
    if torch is None:
        return
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)
    elif not torch.is_inference_mode_enabled():
        allowed = f"a normal tensor, such as {argument}.clone(), or a call in inference mode"
        raise ArgumentError(argument, "a tensor made in inference mode, outside of it", allowed)


@functools.cache
def outside_of_transforms(torch: Any) -> Callable[[], bool]:
    """The question whether PyTorch's tensors mean their elements now, as they are.

    They do not inside a tracer, a transform, a mode or autocast. What it asks is looked up here, once: it is asked in
    each call.
    """
    core, forward = torch._C, torch.autograd.forward_ad
    modes, transform = core._len_torch_dispatch_stack, core._functorch.peek_interpreter_stack
    traced, casts = core._get_tracing_state, core._is_any_autocast_enabled

    def outside() -> bool:
        return not (
            modes() or casts() or transform() is not None or traced() is not None or forward._current_level >= 0
        )

    return outside


def _dual_level(torch: Any) -> int:
    """Number of the innermost level of forward differentiation; -1 outside."""
    level: int = torch.autograd.forward_ad._current_level
    return level


def _mode(torch: Any) -> str | None:
    """What PyTorch is doing instead of computing, or None."""
    core = torch._C
    if core._get_tracing_state() is not None:
        return "torch.jit.trace"
    if not core._len_torch_dispatch_stack():
        return None
    keys = core._TorchDispatchModeKey
    names = {keys.FAKE: "FakeTensorMode", keys.PROXY: "a tracer (make_fx, torch.export)", keys.FUNCTIONAL: "a tracer"}
    return next((name for key, name in names.items() if core._get_dispatch_mode(key) is not None), None)


def is_causal_bias(x: Any) -> bool:
    """Whether it is a mask of PyTorch's that says how queries and keys are aligned, and has no elements."""
    biases: Any = sys.modules.get("torch.nn.attention.bias")  # loaded where there is one
    return biases is not None and isinstance(x, biases.CausalBias)


def _without_elements(torch: Any, x: Any) -> tuple[str, str] | None:
    """What was given and what is allowed of ``{}``, where x stands for elements that are not there."""
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "a tensor inside a transform of torch.func (vmap, grad, jvp, functionalize)", _EAGER
    mode = _mode(torch)
    if mode is not None:
        return f"a tensor inside {mode}, where results are not computed", _EAGER
    if computes_itself(torch, x):
        kind = type(x)
        words = f"a {kind.__module__}.{kind.__qualname__}, a subclass that says itself what its elements are"
        return words, "the plain torch.Tensor in it, or one made of it (a fake tensor has no elements)"
    if is_causal_bias(x):
        return "a CausalBias, whose elements are not there", "None, and causal='top_left' or 'bottom_right'"
    if isinstance(x, torch.nn.parameter.UninitializedTensorMixin):
        return "a parameter that is not initialized yet", "a module that was called once, or parameters with a shape"
    return ON_META if x.device.type == "meta" else None


def _elsewhere(torch: Any, x: Any) -> tuple[str, str] | None:
    """The same where the elements are not what lies at the address, as PyTorch computes them when it reads."""
    if x.is_nested:
        return (
            "a nested tensor",
            "a padded one with a mask, torch.nested.to_padded_tensor({}, 0.0), or packed sequences",
        )
    if x.is_quantized:
        return "a quantized tensor", "a tensor of floats: {}.dequantize()"
    if x.layout is not torch.strided:
        return f"a tensor of layout {x.layout}", "a strided tensor: {}.to_dense()"
    if x.is_neg() or x.is_conj():
        # DLPack does not carry these flags: what it hands over has the wrong sign.
        return _LAZY_SIGN
    if x._is_zerotensor():
        return "a tensor of zeros without memory", "a tensor with memory: {}.clone()"
    if x.numel() and not x.data_ptr():
        return "a tensor whose memory was given back", "a tensor with memory (sharded training gives it back after use)"
    return None
