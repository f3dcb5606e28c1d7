"""What ``torch.autocast`` does to the operators: what it does to PyTorch's own of the same kind.

* Products and attention take their operands in autocast's dtype, on every device: those that have to be of one dtype.
  What may be float32 beside halves (a bias, sinks, log-sum-exps) stays as it is.
* Norms and softmax compute and give float32 where PyTorch's do: on GPUs, and `torch.rms_norm` from some version on.
* All others take what they get. So do overloads that write to ``out``, as in PyTorch.

float64 is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Arguments that are cast to autocast's dtype.
LOWER: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("flash_attention", "decode_attention"), ("q", "k", "v")),
    "linear": ("x", "weight"),
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
# ROCm's devices are "cuda" to PyTorch.
_KEYS = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}


def register(library: torch.library.Library, name: str, op: Any) -> None:
    """Register the rules of an operator for one of its overloads, if it has any."""
    if name in LOWER:
        for device in _KEYS:
            library.impl(op, _casting(op, device, LOWER[name], None), f"Autocast{device.upper()}")
    if name in FLOAT32:
        own, arguments = FLOAT32[name]
        for device in _KEYS:
            if torch._C._dispatch_has_kernel_for_dispatch_key(own, f"Autocast{device.upper()}"):
                library.impl(op, _casting(op, device, arguments, torch.float32), f"Autocast{device.upper()}")


def _casting(op: Any, device: str, names: tuple[str, ...], dtype: torch.dtype | None) -> Callable[..., Any]:
    """The kernel of an overload under autocast on a device; ``dtype=None`` stands for autocast's own."""
    order = [argument.name for argument in op._schema.arguments]
    keys = torch._C.DispatchKeySet(_KEYS[device])

    def kernel(*args: Any, **kwargs: Any) -> Any:
        wanted = torch.get_autocast_dtype(device) if dtype is None else dtype
        values = dict(zip(order, args, strict=False), **kwargs)
        for name in names:
            x = values.get(name)
            if x is not None and x.device.type == device and x.is_floating_point() and x.dtype != torch.float64:
                values[name] = x.to(wanted)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return op(**values)

    return kernel
