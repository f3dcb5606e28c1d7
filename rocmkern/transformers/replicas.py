"""Small copies of a module, to see what its class computes before something else is put in its place.

A class is known by what it does, not by its name: a replica has the module's class and settings, and parameters of a
few random numbers on the CPU, so that its forward can be held against a formula. Nothing of the module is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

#: What a replica in float32 and its formula in float64 may differ by; the numbers are of size 1.
CLOSE = 1e-5


def replica(
    module: torch.nn.Module,
    *,
    parameters: dict[str, torch.Tensor] | None = None,
    buffers: dict[str, torch.Tensor] | None = None,
    modules: dict[str, torch.nn.Module] | None = None,
) -> Callable[..., Any]:
    """The forward of a module of the same class and settings with other tensors and parts, without hooks.

    Parameters
    ----------
    module : torch.nn.Module
    parameters, buffers : dict of tensors, optional
    modules : dict of modules, optional
        Instead of those of the same names; parts of other names stay.

    Returns
    -------
    callable
    """
    copy = object.__new__(type(module))
    copy.__dict__ = {**module.__dict__, "training": False}
    copy.__dict__["_parameters"] = {
        n: torch.nn.Parameter(p, requires_grad=False) for n, p in (parameters or {}).items()
    }
    copy.__dict__["_buffers"] = {**module._buffers, **(buffers or {})}
    copy.__dict__["_modules"] = {**module._modules, **(modules or {})}
    return MethodType(type(module).forward, copy)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers in float32 on the CPU, always the same; the state of PyTorch's generator stays."""
    with torch.device("cpu"):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def difference(found: Any, wanted: torch.Tensor) -> float:
    """Largest difference of a result and its formula, relative to the size of that; infinite for another shape."""
    if not isinstance(found, torch.Tensor) or found.shape != wanted.shape:
        return float("inf")
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def why(error: Exception) -> str:
    """One line about a replica that cannot be run."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:120]
