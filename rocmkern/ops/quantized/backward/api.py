"""Gradients of linear layers with quantized weights, which have none themselves: those of what they multiply."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls.arguments import UINT8, accept
from rocmkern.calls.gradients import Wanted
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Activation, Array, ArrayLike, BlockOrder, QuantizedFormat, Stream
from rocmkern.ops.inner import Inner
from rocmkern.ops.quantized.api import columns_of, format_name, rows_of_bytes
from rocmkern.ops.quantized.backward.products import quantized_gradients
from rocmkern.runtime.errors import ArgumentError


@planned
def quantized_linear_backward(
    dout: Array,
    x: ArrayLike,
    blocks: ArrayLike,
    format: QuantizedFormat = "q4_0",
    bias: ArrayLike | None = None,
    activation: Activation = None,
    *,
    order: BlockOrder = "ggml",
    needs: Sequence[str] | None = None,
    accumulate: bool = False,
    out: Array | tuple[Array, ...] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, ...]:
    """Gradients of `rocmkern.quantized_linear` for the gradient of its result: of x, and of the bias.

    With ``dz = dout * activation'(x @ dequantize(blocks)^T + bias)`` that of x is ``dz @ dequantize(blocks)``. The
    weights are decoded inside the product, a window at a time; there is never a decoded copy of them.

    Parameters
    ----------
    dout : array, ``[..., out]``
        Of the shape of the result, and the dtype of x; with any strides.
    x, blocks, format, bias, activation, order
        As `rocmkern.quantized_linear` was given them.
    needs : sequence of str, optional
        Arguments whose gradients are wanted: some of "x" and "bias". All that are given by default.
    accumulate : bool
        Add the gradients to what `out` holds; the sums are rounded once.
    out : array, or tuple of arrays, optional
        As in `rocmkern.linear_backward`.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, or tuple of arrays
        The gradients of x and bias that are wanted, in this order, of the kind of dout. Summed in float32, rounded
        once; on GPUs weights are rounded to the dtype of x before half-precision products. The same bits every time.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rocmkern.quantized_linear`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> weights = rocmkern.quantize(np.ones((2, 32), np.float32), "q8_0")
    >>> dout, x = np.ones((1, 2), np.float32), np.ones((1, 32), np.float32)
    >>> rocmkern.quantized_linear_backward(dout, x, weights, "q8_0")[0, :2].round(2)
    array([2., 2.], dtype=float32)
    """
    # Checks
    stream, activation = _checks.stream(stream), _checks.activation(activation)
    name = format_name(format, order)
    dout, x, blocks = accept("dout", dout), accept("x", x), accept("blocks", blocks, UINT8)
    given_bias = None if bias is None else accept("bias", bias)
    inputs = [dout, x, blocks] if given_bias is None else [dout, x, blocks, given_bias]
    _arguments.same_place(dout, inputs[1:])
    _arguments.same_dtype(dout, [x])
    _checks.some_axes(x)
    _checks.rank(blocks, "out bytes")
    columns = columns_of(blocks, name)
    if columns != x.shape[-1]:
        given_words = f"{columns} elements a row in shape {blocks.shape}"
        raise ArgumentError("blocks", given_words, f"{x.shape[-1]} elements, the length of the last axis of x")
    bias_row = _checks.bias(given_bias, blocks.shape[0], "the number of rows of blocks")
    _checks.same_shape(dout, (*x.shape[:-1], blocks.shape[0]), "the shape of the result")
    wanted: Wanted[Array] = Wanted(needs, {"x": x, "bias": given_bias})
    accumulate = wanted.place(out, accumulate, inputs)

    # Launch
    if not wanted.empty:
        rows = math.prod(x.shape[:-1])
        with Inner(x.view, stream) as inner:
            matrix, of_result = (inner.reshaped(a.aligned(), (rows, a.shape[-1])) for a in (x, dout))
            dx = wanted.view("x")
            dx = None if dx is None else inner.written(dx, (rows, columns), filled=accumulate)
            weights, dbias = rows_of_bytes(blocks), wanted.view("bias")
            quantized_gradients(inner, of_result, matrix, weights, bias_row, name, activation, dx, dbias, accumulate)
    return wanted.sources
