"""Other implementations that benchmark rows are compared with, on the same inputs.

Each is imported only when a row that names it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.matrix.registry import Call, Peer, PeerUnavailable


def _torch() -> Any:
    # OpenMP workers that wait for more work spin by default, and that CPU time would count against whatever runs next.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import torch
    except ImportError:
        raise PeerUnavailable("torch is not installed (pip install torch)") from None
    return torch


def _device(torch: Any, target: str) -> str:
    """PyTorch's name of the device of a target."""
    if target not in ("hip", "cuda"):
        return "cpu"
    if not torch.cuda.is_available() or (target == "hip") != bool(torch.version.hip):
        raise PeerUnavailable(f"this torch ({torch.__version__}) cannot use the device of the target {target}")
    return "cuda"


def _tensor(torch: Any, array: np.ndarray, device: str) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(np.array(array)).to(device)


def _prepare_sdpa(call: Call, case: Any, target: str) -> Callable[[], Any]:
    """`torch.nn.functional.scaled_dot_product_attention`, with the flags that reach its fast paths."""
    torch = _torch()
    device, features, dims = _device(torch, target), case.features, case.dims
    for name in ("softcap", "alibi", "sinks"):
        if features.get(name):
            raise PeerUnavailable(f"scaled_dot_product_attention has no {name}")
    q, k, v = (_tensor(torch, call.arguments[name], device) for name in "qkv")
    if features["layout"] == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    options: dict[str, Any] = {}
    if features["scale"] is not None:
        options["scale"] = features["scale"]
    if dims["kv_heads"] != dims["heads"]:
        options["enable_gqa"] = True
    square = dims["seq_q"] == dims["seq_k"]
    if features["window"] is None and (square or features["causal"] == "top_left"):
        # is_causal aligns top-left, which for square shapes is the same.
        options["is_causal"] = bool(features["causal"])
    elif features["window"] is not None or (features["causal"] and dims["seq_q"] > 1):
        from rocmkern import reference

        visible = reference.causal_mask(
            dims["seq_q"], dims["seq_k"], causal=features["causal"], window=call.options.get("window")
        )
        options["attn_mask"] = torch.from_numpy(visible == 0).to(device)
    attention = torch.nn.functional.scaled_dot_product_attention

    def run() -> Any:
        with torch.no_grad():
            return attention(q, k, v, **options)

    return run


def _prepare_softmax(call: Call, case: Any, target: str) -> Callable[[], Any]:
    torch = _torch()
    x = _tensor(torch, call.arguments["x"], _device(torch, target))
    return lambda: torch.softmax(x, dim=-1)


TORCH_SDPA = Peer("torch", _prepare_sdpa)
TORCH_SOFTMAX = Peer("torch", _prepare_softmax)
