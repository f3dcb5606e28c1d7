"""Launches of the norms and of the residual sum: ``[..., ..., row, column]`` views."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rocmkern.calls.launch import target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops import streaming
from rocmkern.ops.norm import tuning
from rocmkern.ops.norm.kernels import add_residual, layer_norm, rms_norm
from rocmkern.ops.streaming import by_rows


def launch_rms_norm(
    x: View,
    residual: View | None,
    sums: View | None,
    weight: View,
    out: View,
    eps: float,
    weight_offset: float,
    stream: Stream,
) -> None:
    """``kernels.rms_norm``."""
    moderate = x.dtype == np.float16
    args: dict[str, Any] = {"x": x, "residual": residual, "weight": weight[None], "out": out, "sums": sums}
    args |= numbers(x, eps, moderate) | {"weight_offset": weight_offset}
    arch = target_for(x).arch
    kernel, config, how = rms_norm.rms_norm, rms_norm.Config, {"along_lanes": True, "whole": True}
    resident = tuning.resident_rms(arch, x.shape[3], x.dtype.itemsize)
    single = streaming.is_single(arch, x.shape[3], x.dtype.itemsize)
    if residual is not None or not (single or moderate):
        resident = 0  # more registers are needed than that leaves
    features = {"with_residual": residual is not None, "with_offset": weight_offset != 0, "moderate": moderate}
    by_rows(kernel, config, out, args, stream, resident=resident, **how, **features)


def launch_layer_norm(x: View, weight: View | None, bias: View | None, out: View, eps: float, stream: Stream) -> None:
    """``kernels.layer_norm``."""
    arch = target_for(x).arch
    resident = tuning.resident_layer(arch, x.shape[3], x.dtype.itemsize)
    stepping = tuning.stepping(arch)
    kernel, config = layer_norm.layer_norm, layer_norm.Config
    single = streaming.is_single(arch, x.shape[3], x.dtype.itemsize)
    features = {"with_weight": weight is not None, "with_bias": bias is not None, "keeps_weights": stepping > 0}
    features["shifted"] = single and x.dtype.itemsize == 2
    features["moderate"] = moderate = single and x.dtype == np.float16
    parameters = {"weight": weight, "bias": bias}
    args: dict[str, Any] = {name: None if p is None else p[None] for name, p in parameters.items()}
    args |= {"x": x, "out": out} | numbers(x, eps, moderate)
    how: dict[str, Any] = {"along_lanes": True, "whole": True, "stepping": stepping, "resident": resident}
    by_rows(kernel, config, out, args, stream, **how, **features)


def numbers(x: View, eps: float, moderate: bool) -> dict[str, float]:
    """The numbers that both norms take; ``moderate`` are values whose squares need no scale."""
    scale = 1.0 if moderate else _first_scale(eps)
    return {"root_eps": math.sqrt(eps), "first_scale": scale, "inverse_n": 1 / x.shape[-1]}


def _first_scale(eps: float) -> float:
    """The largest power of two by which values are scaled: what is smaller than ``sqrt(eps)`` does not count."""
    return 2.0 ** min(100, math.floor(-math.log2(math.sqrt(eps)))) if eps else 2.0**100


def launch_add_residual(x: View, residual: View | None, out: View, stream: Stream) -> None:
    """``kernels.add_residual``."""
    args: dict[str, Any] = {"x": x, "residual": residual, "out": out}
    by_rows(add_residual.add_residual, add_residual.Config, out, args, stream, along_lanes=True)
