"""Quantized formats: numbers in blocks of bytes with shared scales, from OCP MX and from ggml.

``format`` is one of ``"mxfp4"``, ``"mxfp6_e2m3"``, ``"mxfp6_e3m2"``, ``"mxfp8_e4m3"``, ``"mxfp8_e5m2"`` (blocks of 32
numbers), ``"q4_0"``, ``"q4_1"``, ``"q5_0"``, ``"q5_1"``, ``"q8_0"`` (32), ``"q4_k"``, ``"q5_k"``, ``"q6_k"`` (256).
Blocks are uint8 arrays whose last axis holds whole blocks side by side, as they lie in a file. The layouts are in
`rocmkern.tile.formats`, the meaning in `rocmkern.reference.dequantize`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, overload

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import axes as _axes
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import UINT8, Argument, accept, accept_out
from rocmkern.calls.axes import four_axes
from rocmkern.calls.plan import planned, unplanned
from rocmkern.calls.types import Activation, Array, ArrayLike, BlockOrder, FloatDType, QuantizedFormat, Stream
from rocmkern.calls.view import View
from rocmkern.runtime.errors import ArgumentError, TargetError

FORMATS: tuple[QuantizedFormat, ...] = get_args(QuantizedFormat)
#: Largest number that the float16 scales of a format, and its float16 minima, can express.
_LARGEST = {
    "q4_0": 65504.0 * 8, "q4_1": 65504.0, "q5_0": 65504.0 * 16, "q5_1": 65504.0, "q8_0": 65504.0 * 127,
    "q4_k": 65504.0 * 63, "q5_k": 65504.0 * 63, "q6_k": 65504.0 * 32 * 127,
}  # fmt: skip


@overload
def dequantize(
    blocks: np.ndarray,
    format: QuantizedFormat = ...,
    dtype: FloatDType = ...,
    *,
    order: BlockOrder = ...,
    out: np.ndarray | None = ...,
    stream: Stream = ...,
) -> np.ndarray: ...
@overload
def dequantize(
    blocks: Array,
    format: QuantizedFormat = ...,
    dtype: FloatDType = ...,
    *,
    order: BlockOrder = ...,
    out: Array | None = ...,
    stream: Stream = ...,
) -> Array: ...
@planned
def dequantize(
    blocks: Array,
    format: QuantizedFormat = "q4_0",
    dtype: FloatDType = np.float32,
    *,
    order: BlockOrder = "ggml",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Numbers of quantized blocks.

    In float32 the result is exact, subnormal numbers included, but that q4_1, q5_1 and the formats of 256 numbers round
    once, to nearest. A scale of an MX block that is NaN (255) makes the block NaN.

    Parameters
    ----------
    blocks : array, ``[..., n_blocks * block_bytes]``
        uint8. The last axis must be contiguous in device memory; NumPy arrays may have any strides.
    format : str
        See `rocmkern.ops.quantized.api`.
    dtype : dtype
        Of the result: float32 by default, float16 or bfloat16 (rounded to nearest even), or one of these of PyTorch.
    order : {"ggml", "ocp"}
        For mxfp4: byte j of a block holds the elements j (low nibble) and j + 16, or 2j and 2j + 1.
    out : array, ``[..., n]``, optional
        Where to write the result: exact shape and dtype, apart from `blocks`.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., n_blocks * block_elements]``
        Of the kind of `blocks`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    References
    ----------
    OCP Microscaling Formats (MX) Specification, version 1.0; ggml, ``ggml-quants.c``.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> block = np.array([[128] + [0x21] * 16], np.uint8)  # scale 2, codes 1 (0.5) and 2 (1.0)
    >>> rocmkern.dequantize(block, "mxfp4")[0, [0, 16]]
    array([1., 2.], dtype=float32)
    """
    # Checks
    stream, name = _checks.stream(stream), format_name(format, order)
    blocks = accept("blocks", blocks, UINT8)
    wanted = _checks.float_dtype(dtype)
    shape = (*blocks.shape[:-1], columns_of(blocks, name))
    given = None if out is None else accept_out(out, shape, wanted, [blocks])

    # Configuration
    result = given or _results.allocate("out", shape, wanted, blocks)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.quantized.launch import launch_dequantize

        for some, into in four_axes(rows_of_bytes(blocks), result.view, row_axes=1):
            launch_dequantize(some, into, name, stream)
    return result.source


@overload
def quantize(
    x: np.ndarray,
    format: QuantizedFormat,
    *,
    order: BlockOrder = ...,
    nan: Literal["error", "propagate"] = ...,
    out: np.ndarray | None = ...,
    stream: Stream = ...,
) -> np.ndarray: ...
@overload
def quantize(
    x: Array,
    format: QuantizedFormat,
    *,
    order: BlockOrder = ...,
    nan: Literal["error", "propagate"] = ...,
    out: Array | None = ...,
    stream: Stream = ...,
) -> Array: ...
@unplanned
def quantize(
    x: Array,
    format: QuantizedFormat,
    *,
    order: BlockOrder = "ggml",
    nan: Literal["error", "propagate"] = "error",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Quantized blocks of numbers. Runs on the host, on host arrays: weights are quantized once.

    MX formats: the scale of a block is ``2 ** (floor(log2(max|x|)) - emax)``, within the range of E8M0, with emax the
    exponent of the largest element; elements are rounded to nearest even and saturate, so a block whose largest number
    is 6.1 to 7.99 has 6 for it in mxfp4. A block of zeros has the scale 2 ** -127. q4_0, q4_1, q5_0, q5_1 and q8_0 give
    the same bytes as ggml. q4_k, q5_k and q6_k fit their scales to the numbers; other encoders may give other bytes.

    Parameters
    ----------
    x : array, ``[..., n]``
        float32, float16 or bfloat16 in host memory, with any strides; n is a multiple of the block's elements.
    format, order : str
        As in `dequantize`.
    nan : {"error", "propagate"}
        What to do with NaN and infinity: refuse, or make all of the block NaN.
    out : array, ``[..., n_blocks * block_bytes]``, optional
        uint8; where to write the result, apart from x.
    stream : optional
        Has no effect on the host.

    Returns
    -------
    array, ``[..., n_blocks * block_bytes]``
        uint8, of the kind of x.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above, or x holds a number too large for the float16 scale of a ggml format.
    TargetError
        x lies in device memory: quantize a host copy.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> blocks = rocmkern.quantize(np.full((1, 32), 6.1, np.float32), "mxfp4")
    >>> rocmkern.dequantize(blocks, "mxfp4")[0, :2]
    array([6., 6.], dtype=float32)
    """
    # Checks
    _checks.stream(stream)
    name = format_name(format, order)
    if not isinstance(nan, str) or nan not in ("error", "propagate"):
        raise ArgumentError("nan", repr(nan), '"error" or "propagate"')
    x = accept("x", x)
    _checks.some_axes(x)
    if x.on_device:
        raise TargetError(f"x: an array in {x.place}; quantize runs on the host: copy it to host memory first")
    elements, nbytes = _block(name)
    count = _whole_blocks(x, elements, f"a multiple of {elements}, the elements of a block of {format}")
    shape = (*x.shape[:-1], count * nbytes)
    given = None if out is None else accept_out(out, shape, UINT8[0], [x])
    numbers = x.view.numpy().astype(np.float32)
    if nan == "error":
        _finite(numbers, format)

    # Configuration
    result = given or _results.allocate("out", shape, UINT8[0], x)

    # Encoding
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.quantized.encode import encode

        packed = np.empty(shape, np.uint8)
        encode(numbers, name, packed)
        _results.assign(result.view, packed, None)
    return result.source


@planned
def quantized_linear(
    x: Array,
    blocks: ArrayLike,
    format: QuantizedFormat = "q4_0",
    bias: ArrayLike | None = None,
    activation: Activation = None,
    *,
    order: BlockOrder = "ggml",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Linear layer with quantized weights: ``activation(x @ dequantize(blocks)^T + bias)``.

    The weights are decoded inside the product, a window at a time; there is never a decoded copy of them.

    Parameters
    ----------
    x : array, ``[..., in]``
        float32, float16 or bfloat16, with any strides.
    blocks : array, ``[out, n_blocks * block_bytes]``
        uint8, with n_blocks * block_elements = in. Strides as in `dequantize`.
    format, order : str
        As in `dequantize`.
    bias : array, ``[out]``, optional
        float32, float16 or bfloat16, whatever x is: files keep biases in float32.
    activation : {None, "silu", "gelu", "gelu_tanh", "relu"}
        As in `rocmkern.linear`.
    out : array, ``[..., out]``, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., out]``
        Of the kind and the dtype of x; summed in float32, rounded once. On GPUs, with more than one row of
        half-precision x, weights are rounded to the dtype of x before they are multiplied: one beyond the range of
        float16 becomes infinite. With one row, scales and minima are applied to the sums of a block; so an infinity
        in x may give NaN with the formats that have a minimum (Q4_1, Q5_1, Q4_K, Q5_K), and on NVIDIA GPUs what is
        smaller than 2^-38 of the largest number of a block of bfloat16 x is not seen.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `dequantize`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> weights = rocmkern.quantize(np.ones((2, 32), np.float32), "q8_0")
    >>> rocmkern.quantized_linear(np.ones(32, np.float32), weights, "q8_0").round(2)
    array([32., 32.], dtype=float32)
    """
    # Checks
    stream, activation = _checks.stream(stream), _checks.activation(activation)
    name = format_name(format, order)
    x, blocks = accept("x", x), accept("blocks", blocks, UINT8)
    given_bias = None if bias is None else accept("bias", bias)
    floats = [] if given_bias is None else [given_bias]
    _arguments.same_place(x, [blocks, *floats])
    _checks.some_axes(x)
    _checks.rank(blocks, "out bytes")
    columns = columns_of(blocks, name)
    if columns != x.shape[-1]:
        given_words = f"{columns} elements a row in shape {blocks.shape}"
        raise ArgumentError("blocks", given_words, f"{x.shape[-1]} elements, the length of the last axis of x")
    bias_row = _checks.bias(given_bias, blocks.shape[0], "the number of rows of blocks")
    shape = (*x.shape[:-1], blocks.shape[0])
    given = None if out is None else accept_out(out, shape, x.dtype, [x, blocks, *floats])

    # Configuration
    result = given or _results.allocate("out", shape, x.dtype, x)
    rows, into = _checks.at_least_2d(x.aligned()), _checks.at_least_2d(result.view)
    together = _axes.rows_together(rows)
    rows, into = _axes.joined_rows(rows, into)

    # Launch
    if into.size:
        # deferred: start-up
        from rocmkern.ops.quantized.launch import launch_quantized_linear

        weights = rows_of_bytes(blocks)
        for some, some_out in four_axes(rows, into, row_axes=2):
            launch_quantized_linear(some, weights, bias_row, some_out, name, activation, stream, together)
    return result.source


@overload
def dequantize_rms_norm(
    blocks: np.ndarray,
    weight: ArrayLike,
    format: QuantizedFormat = ...,
    eps: float = ...,
    *,
    weight_offset: float = ...,
    order: BlockOrder = ...,
    out: np.ndarray | None = ...,
    stream: Stream = ...,
) -> np.ndarray: ...
@overload
def dequantize_rms_norm(
    blocks: Array,
    weight: ArrayLike,
    format: QuantizedFormat = ...,
    eps: float = ...,
    *,
    weight_offset: float = ...,
    order: BlockOrder = ...,
    out: Array | None = ...,
    stream: Stream = ...,
) -> Array: ...
@planned
def dequantize_rms_norm(
    blocks: Array,
    weight: ArrayLike,
    format: QuantizedFormat = "q4_0",
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    order: BlockOrder = "ggml",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """RMS normalisation of quantized rows: `rms_norm` of `dequantize`, without the numbers in between.

    ``x * (weight + weight_offset) / sqrt(mean(x^2) + eps)`` over the last axis of ``x = dequantize(blocks)``; for
    embeddings and activations that are kept quantized.

    Parameters
    ----------
    blocks : array, ``[..., n_blocks * block_bytes]``
        As in `dequantize`.
    weight : array, ``[n]``
        float32, float16 or bfloat16; n = n_blocks * block_elements.
    format, order : str
        As in `dequantize`.
    eps : float
        At least 0; inside the root.
    weight_offset : float
        Added to the weights; 1 for models that keep their difference from 1.
    out : array, ``[..., n]``, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., n]``
        Of the kind of `blocks` and the dtype of `weight`. Computed in float32, where neither squares nor their sum
        overflow or vanish, and rounded once. A row of zeros gives zeros.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `dequantize`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> blocks = rocmkern.quantize(np.full((1, 32), 2.0, np.float32), "mxfp8_e4m3")
    >>> rocmkern.dequantize_rms_norm(blocks, np.ones(32, np.float32), "mxfp8_e4m3")[0, :2].round(4)
    array([1., 1.], dtype=float32)
    """
    # Checks
    stream, name = _checks.stream(stream), format_name(format, order)
    blocks, weight = accept("blocks", blocks, UINT8), accept("weight", weight)
    _arguments.same_place(blocks, [weight])
    eps, offset = _checks.epsilon(eps), _checks.number("weight_offset", weight_offset)
    shape = (*blocks.shape[:-1], columns_of(blocks, name))
    _checks.rank(weight, "n")
    _checks.extent(weight, 0, shape[-1], "the elements of a row of blocks")
    given = None if out is None else accept_out(out, shape, weight.dtype, [blocks, weight])

    # Configuration
    result = given or _results.allocate("out", shape, weight.dtype, blocks)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.quantized.launch import launch_dequantize_rms_norm

        for some, into in four_axes(rows_of_bytes(blocks), result.view, row_axes=1):
            launch_dequantize_rms_norm(some, weight.aligned()[None], into, name, eps, offset, stream)
    return result.source


# ----------------------------------------------------------------------------------------------- checks of this family


def format_name(format: Any, order: Any) -> str:
    """Name of a format in the tile language."""
    if not isinstance(format, str) or format not in FORMATS:
        raise ArgumentError("format", repr(format), ", ".join(map(repr, FORMATS)))
    if not isinstance(order, str) or order not in ("ggml", "ocp"):
        raise ArgumentError("order", repr(order), '"ggml" or "ocp"')
    if order == "ggml":
        return format
    if format != "mxfp4":
        raise ArgumentError("order", f'"ocp" with format {format!r}', 'an order of "mxfp4" only')
    return "mxfp4_ocp"


def _block(name: str) -> tuple[int, int]:
    """Elements and bytes of a block."""
    # deferred: start-up
    from rocmkern.tile.formats import FORMATS as kinds

    return kinds[name].elements, kinds[name].nbytes


def _whole_blocks(x: Argument, length: int, meaning: str) -> int:
    """Number of blocks along the last axis."""
    count, rest = divmod(x.shape[-1], length)
    if rest:
        raise ArgumentError(x.name, f"{x.shape[-1]} as the last extent of shape {x.shape}", meaning)
    return count


def columns_of(blocks: Argument, name: str) -> int:
    """Elements of a row of blocks."""
    _checks.some_axes(blocks)
    elements, nbytes = _block(name)
    return elements * _whole_blocks(blocks, nbytes, f"a multiple of {nbytes}, the bytes of a block")


def rows_of_bytes(blocks: Argument) -> View:
    """View of blocks whose last axis is contiguous; a copy where a host array has another stride."""
    array = blocks.aligned()
    if array.strides[-1] == 1 or array.shape[-1] <= 1:
        return array
    if blocks.on_device:
        raise ArgumentError("blocks", f"a last axis with stride {array.strides[-1]} in device memory", "stride 1")
    return blocks.converted(np.ascontiguousarray).view


def _finite(x: np.ndarray, format: str) -> None:
    """Refuse what a format cannot express."""
    if not x.size:
        return
    largest = float(np.abs(x).max())
    if not np.isfinite(largest):
        raise ArgumentError("x", "NaN or infinity", 'finite numbers, or nan="propagate"')
    if largest > _LARGEST.get(format, np.inf):
        raise ArgumentError("x", f"a number of size {largest:g}", f"at most {_LARGEST[format]:g} in format {format}")
