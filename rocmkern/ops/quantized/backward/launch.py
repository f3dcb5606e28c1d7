"""Launches of the gradient of linear layers with quantized weights."""

from __future__ import annotations

from dataclasses import replace

from rocmkern.calls.launch import target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.linear.launch import launch_product
from rocmkern.ops.quantized import tuning


def launch_quantized_gradient(dz: View, blocks: View, dx: View, name: str, accumulate: bool, stream: Stream) -> None:
    """``kernels.matmul`` of rows ``dz`` [M, out] with quantized weights ``[out, bytes]``, in ``dx`` [M, in].

    Weights are its right side as they lie, so windows of them are decoded and multiplied as they are.
    """
    target = target_for(dz)
    rows = dz.shape[0]
    cfg = replace(tuning.quantized_product(target.arch, rows, dz.itemsize, name), transposed=False)
    before = dx if accumulate else None
    launch_product(target, cfg, dz[None, None], blocks[None, None], before, dx[None, None], None, stream, rows)
