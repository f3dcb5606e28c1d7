"""Launches of operations on quantized blocks, whose last axis is contiguous."""

from __future__ import annotations

from rocmkern.calls import invariance as _invariance
from rocmkern.calls.launch import target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.linear.launch import launch_product, launch_row
from rocmkern.ops.linear.tuning import one_row
from rocmkern.ops.quantized import tuning
from rocmkern.ops.quantized.kernels import dequantize, dequantize_rms_norm
from rocmkern.ops.streaming import by_rows


def launch_dequantize(blocks: View, out: View, name: str, stream: Stream) -> None:
    """``kernels.dequantize``."""
    by_rows(dequantize.dequantize, dequantize.Config, out, {"blocks": blocks, "out": out}, stream, format=name)


def launch_dequantize_rms_norm(
    blocks: View, weight: View, out: View, name: str, eps: float, offset: float, stream: Stream
) -> None:
    """``kernels.dequantize_rms_norm``."""
    args = {"blocks": blocks, "weight": weight, "out": out, "offset": offset}
    args |= {"root_eps": eps**0.5, "inverse_length": 1 / out.shape[3]}
    kernel = dequantize_rms_norm
    by_rows(kernel.dequantize_rms_norm, kernel.Config, out, args, stream, format=name)


def launch_quantized_linear(
    x: View, blocks: View, bias: View | None, out: View, name: str, activation: str | None, stream: Stream, rows: int
) -> None:
    """``kernels.matmul``, or ``kernels.row_product``, with a quantized right side ``[N, bytes]``.

    ``rows`` as in `launch_matmul`.
    """
    target = target_for(x)
    weights = blocks.broadcast_to((*x.shape[:2], *blocks.shape))
    invariant = _invariance.active()
    if not invariant and one_row(target.arch, rows, blocks.shape[0], x.shape[3]):
        bits = blocks.address | blocks.strides[0] if blocks.on_device else 1
        alignment = next(n for n in (16, 8, 1) if bits % n == 0)
        row_cfg = tuning.quantized_row(target.arch, x.shape[3], name, alignment, x.dtype.name)
        launch_row(target, row_cfg, x, weights, bias, out, activation, stream)
        return
    cfg = tuning.quantized_product(target.arch, rows, x.itemsize, name, invariant)
    launch_product(target, cfg, x, weights, bias, out, activation, stream, rows)
