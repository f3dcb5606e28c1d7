"""rocmkern: attention and MLP kernels for AMD GPUs, written in Python and compiled by Numba.

The public names are loaded when they are first used, so that ``import rocmkern`` stays cheap and never touches a
driver. ``__init__.pyi`` tells type checkers where they come from.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "rocmkern.checkpoint": ("Checkpoint", "FileTensor", "open_checkpoint"),
    "rocmkern.ops.activations.api": ("geglu", "swiglu"),
    "rocmkern.ops.attention.api": ("decode_attention", "flash_attention", "merge_attention"),
    "rocmkern.ops.rows.api": ("embedding", "transpose"),
    "rocmkern.ops.linear.api": ("linear", "matmul"),
    "rocmkern.ops.mlp.api": ("mlp",),
    "rocmkern.ops.norm.api": ("add_residual", "layer_norm", "rms_norm"),
    "rocmkern.ops.paged.api": ("paged_attention",),
    "rocmkern.ops.rotary.scaling": ("LinearScaling", "Llama3Scaling", "YarnScaling"),
    "rocmkern.ops.rotary.api": ("rope", "rope_append_kv"),
    "rocmkern.ops.quantized.api": ("dequantize", "dequantize_rms_norm", "quantize", "quantized_linear"),
    "rocmkern.ops.sampling.api": ("sample",),
    "rocmkern.ops.steps.api": (
        "apply_mask", "causal_mask", "qk_scores", "repeat_kv", "scale", "softmax", "weighted_values",
    ),
    "rocmkern.runtime.errors": (
        "ArgumentError", "ArgumentTypeError", "CheckpointError", "ClosedError", "DeadlineError", "DeviceMemoryError",
        "DeviceUnavailableError", "GuardBandError", "IndexOutOfRangeError", "LeakError", "MatrixError",
        "OutOfBlocksError", "RocmkernError", "TargetError", "TileError",
    ),
    "rocmkern.runtime.kv_cache": ("KVCache",),
    "rocmkern.runtime.manager": ("DeviceTensor", "ResourceManager", "default_manager"),
    "rocmkern.runtime.probe": ("gpu_available", "gpu_status", "require_gpu"),
    "rocmkern.targets": ("TargetInfo", "target", "use", "using"),
}  # fmt: skip
_SUBMODULES = ("reference", "tile")
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"rocmkern.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rocmkern' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, *_SUBMODULES})
