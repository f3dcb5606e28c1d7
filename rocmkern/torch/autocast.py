"""What ``torch.autocast`` does to the operators: what it does to PyTorch's own of the same kind.

* Products and attention take their operands in autocast's dtype, on every device: those that have to be of one dtype.
  What may be float32 beside halves (a bias, sinks, log-sum-exps) stays as it is.
* Norms and softmax compute and give float32 where PyTorch's do: on GPUs, and `torch.rms_norm` from some version on.
* Sums and products of elements take operands of several dtypes, which become the one that holds them all.
* All others take what they get. So do overloads that write to ``out``, as in PyTorch.

float64 is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

#: Arguments that are cast to autocast's dtype.
LOWER: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("flash_attention", "decode_attention"), ("q", "k", "v")),
    **dict.fromkeys(("linear", "linear_cross_entropy"), ("x", "weight")),
    "matmul": ("a", "b"),
    "mlp": ("x", "w_gate", "w_up", "w_down"),
    "qk_scores": ("q", "k"),
    "quantized_linear": ("x",),
    "weighted_values": ("p", "v"),
}
#: PyTorch's own operator, and arguments that are cast to float32 where that is.
FLOAT32: dict[str, tuple[str, tuple[str, ...]]] = {
    "layer_norm": ("aten::layer_norm", ("x", "weight", "bias")),
    "rms_norm": ("aten::rms_norm", ("x", "weight", "residual")),
    "softmax": ("aten::softmax.int", ("x",)),
}
#: Arguments that are cast to the widest of their dtypes.
WIDEST: dict[str, tuple[str, ...]] = {
    "add_residual": ("x", "residual"),
    **dict.fromkeys(("swiglu", "geglu"), ("gate", "up")),
    "merge_attention": ("o1", "o2"),
    "rms_norm": ("x", "residual"),
}
# ROCm's devices are "cuda" to PyTorch.
_KEYS = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}


def register(library: torch.library.Library, name: str, op: Any) -> None:
    """Register the rule of an operator for one of its overloads, if it has any."""
    for device in _KEYS:
        rule = _rule(name, device)
        if rule is not None:
            library.impl(op, _casting(op, device, *rule), f"Autocast{device.upper()}")


#: From the dtypes of the arguments that are cast to the one that they get.
Choice = Callable[[Iterable[torch.dtype]], torch.dtype]


def _rule(name: str, device: str) -> tuple[tuple[str, ...], Choice] | None:
    """The arguments of an operator that are cast, and to what."""
    if name in LOWER:
        return LOWER[name], lambda _: torch.get_autocast_dtype(device)
    if name in FLOAT32:
        own, arguments = FLOAT32[name]
        if torch._C._dispatch_has_kernel_for_dispatch_key(own, f"Autocast{device.upper()}"):
            return arguments, lambda _: torch.float32
    if name in WIDEST:
        return WIDEST[name], lambda dtypes: functools.reduce(torch.promote_types, dtypes)
    return None


def _casting(op: Any, device: str, names: tuple[str, ...], choice: Choice) -> Callable[..., Any]:
    """The kernel of an overload under autocast on a device."""
    order = [argument.name for argument in op._schema.arguments]
    keys = torch._C.DispatchKeySet(_KEYS[device])

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values = dict(zip(order, args, strict=False), **kwargs)
        cast = [n for n in names if is_cast(values.get(n), device)]
        if cast:
            wanted = choice([values[n].dtype for n in cast])
            for name in cast:
                values[name] = values[name].to(wanted)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(**values)

    return kernel


def is_cast(x: Any, device: str) -> bool:
    """Whether an argument is a tensor that autocast casts: float64 is not."""
    return (
        isinstance(x, torch.Tensor) and x.device.type == device and x.is_floating_point() and x.dtype != torch.float64
    )
