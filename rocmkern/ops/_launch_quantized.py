"""Launches of operations on quantised blocks, whose last axis is contiguous."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.kernels import dequantize, dequantize_rms_norm
from rocmkern.ops import _configs
from rocmkern.ops._launch import by_lines, target_for
from rocmkern.ops._launch_linear import launch_product


def launch_dequantize(blocks: Any, out: Any, name: str, stream: Any) -> None:
    """``kernels.dequantize``."""
    by_lines(dequantize.dequantize, dequantize.Config, out, [blocks, out], stream, format=name)


def launch_dequantize_rms_norm(
    blocks: Any, weight: Any, out: Any, name: str, eps: float, offset: float, stream: Any
) -> None:
    """``kernels.dequantize_rms_norm``."""
    args = [blocks, weight, out, eps**0.5, 1 / out.shape[3], offset]
    kernel = dequantize_rms_norm
    by_lines(kernel.dequantize_rms_norm, kernel.Config, out, args, stream, format=name)


def launch_quantized_linear(
    x: Any, blocks: Any, bias: Any, out: Any, name: str, activation: str | None, stream: Any
) -> None:
    """``kernels.matmul`` with a quantised right side ``[N, bytes]``."""
    target = target_for(x)
    cfg = _configs.quantised_product(target.arch, x.shape[2], x.itemsize, name)
    weights = np.broadcast_to(blocks, (*x.shape[:2], *blocks.shape), subok=True)
    launch_product(target, cfg, x, weights, bias, out, activation, stream)
