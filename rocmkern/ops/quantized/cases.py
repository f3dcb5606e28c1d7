"""Quantized formats: `dequantize`, `quantize`, `quantized_linear`, `dequantize_rms_norm`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.matrix.common import itemsize, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along
from rocmkern.matrix.inputs import repeated_axis
from rocmkern.matrix.layouts import repeats
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output
from rocmkern.ops.quantized.reference import BLOCKS

LEAD = Dim("lead", "l", default=(), many=True)
ROWS = Dim("rows", "r", default=1)
COUNT = Dim("blocks", "b")

FORMAT = Feature("format", tuple(BLOCKS), default="q4_0")
ORDER = Feature("order", ("ocp",), default="ggml")
# "codes": every code in turn, also NaN and infinity. "scales": every scale in turn, or every 256th bit pattern of a
# float16. "special": ordinary blocks, and in the first row one whose scale is NaN.
CONTENT = Feature("content", ("codes", "scales", "special"), default="ordinary")
ACTIVATION = Feature("activation", ("silu", "gelu", "gelu_tanh", "relu"))

#: Where the float16 scales of a ggml block lie.
_HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q4_k": (0, 2), "q5_k": (0, 2),
    "q6_k": (208,),
}  # fmt: skip
_EXPONENT_OF_ONE = 127
#: First and last byte that is a small scale: of an MX block, and twice as a float16.
_SMALL_EXPONENTS, _SMALL_HALVES = (0x74, 0x7B), (0x20, 0x37)


def _blocks(draw: Draw, shape: tuple[int, ...], per_row: int) -> np.ndarray:
    """Blocks ``[*shape, per_row blocks]`` of the row's format and content."""
    nbytes = BLOCKS[draw.features["format"]][1]
    return draw.made((*shape, per_row * nbytes), np.uint8, lambda: _filled_blocks(draw, shape, per_row))


def _filled_blocks(draw: Draw, shape: tuple[int, ...], per_row: int) -> np.ndarray:
    name, content = draw.features["format"], draw.features["content"]
    _, nbytes = BLOCKS[name]
    rng = draw.rng("blocks")
    blocks = rng.integers(0, 256, (*shape, per_row, nbytes), dtype=np.uint8)
    number = np.arange(int(np.prod(shape)) * per_row).reshape(*shape, per_row)
    halves = _HALVES.get(name, ())
    if content == "codes":
        blocks[...] = np.arange(blocks.size).reshape(blocks.shape) % 256
    elif name.startswith("mxfp8"):
        # No NaN and no infinity: the largest exponent becomes the one below.
        largest = blocks[..., 1:] & 0x7C == 0x7C
        blocks[..., 1:] = np.where(largest, blocks[..., 1:] & 0xFB, blocks[..., 1:])
    if content == "scales":
        scales = number % 256
    else:
        scales = _EXPONENT_OF_ONE + rng.integers(-6, 7, number.shape)
    if not halves:
        blocks[..., 0] = scales
    for i, place in enumerate(halves):
        if content == "scales":
            halves_of = (number * 256 + 77 * i).astype("<u2").view(np.float16)
        else:
            halves_of = (rng.standard_normal(number.shape) / 8).astype("<f2")
        blocks[..., place : place + 2] = halves_of[..., None].view(np.uint8)
    if content == "special" and blocks.size:
        # A float16 NaN other than that of bits of ones, which fill memory under test and would look untouched.
        scale = np.array([np.nan], "<f2").view(np.uint8) if halves else np.array([255], np.uint8)
        place = halves[0] if halves else 0
        blocks.reshape(-1, nbytes)[0, place : place + scale.size] = scale
        if name.startswith("mxfp8"):
            # In the second row an element that is NaN, in both formats.
            blocks.reshape(-1, nbytes)[per_row : per_row + 1, 6] = 0x7F
    if content == "ordinary" and per_row and _bytes_are_repeated(draw, (*shape, per_row * nbytes)):
        # The first byte of a row is all of them: as a scale it may be NaN, or make numbers that float16 does not hold.
        lowest, highest = _SMALL_HALVES if halves else _SMALL_EXPONENTS
        blocks[..., 0, 0] = rng.integers(lowest, highest, shape, endpoint=True)
    return blocks.reshape(*shape, per_row * nbytes)


def _bytes_are_repeated(draw: Draw, shape: tuple[int, ...]) -> bool:
    """Whether the memory layout of blocks of this shape repeats a byte along their last axis."""
    layout = draw.case.memory_of("blocks")
    return repeats(layout) and repeated_axis(shape, layout) == len(shape) - 1


def _options(draw: Draw, *names: str) -> dict[str, Any]:
    options = options_of(draw.features, *names)
    if draw.features["order"] != "ggml":
        options["order"] = draw.features["order"]
    return {"format": draw.features["format"], **options}


def _elements(draw: Draw) -> int:
    blocks: int = draw.dims["blocks"]
    return blocks * BLOCKS[draw.features["format"]][0]


def _shape(draw: Draw) -> tuple[int, ...]:
    return (*draw.dims["lead"], draw.dims["rows"])


def _dequantize_call(draw: Draw) -> Call:
    arrays = {"blocks": _blocks(draw, _shape(draw), draw.dims["blocks"])}
    return Call(arrays, {**_options(draw), "dtype": draw.dtype}, ((*_shape(draw), _elements(draw)),))


def _quantize_call(draw: Draw) -> Call:
    x = draw.array("x", (*_shape(draw), _elements(draw)))
    if draw.features["zeros"] and x.size:
        x[..., : _elements(draw) // draw.dims["blocks"]] = 0
    nbytes = BLOCKS[draw.features["format"]][1]
    return Call({"x": x}, _options(draw, "nan"), ((*_shape(draw), draw.dims["blocks"] * nbytes),))


def _linear_call(draw: Draw) -> Call:
    dims = draw.dims
    lead, columns = (*dims["lead"], dims["rows"]), dims["n"]
    shape, divisor = (*lead, _elements(draw)), np.float64(max(_elements(draw), 1) ** 0.5)
    arrays: dict[str, np.ndarray | None] = {
        "x": draw.made(shape, draw.dtype, lambda: (draw.array("x", shape) / divisor).astype(draw.dtype)),
        "blocks": _blocks(draw, (columns,), dims["blocks"]),
    }
    if draw.features["bias"]:
        arrays["bias"] = draw.array("bias", (columns,))
    return Call(arrays, _options(draw, "activation"), ((*lead, columns),))


def _rms_norm_call(draw: Draw) -> Call:
    arrays = {
        "blocks": _blocks(draw, _shape(draw), draw.dims["blocks"]),
        "weight": draw.array("weight", (_elements(draw),)),
    }
    options = _options(draw, "eps", "weight_offset")
    return Call(arrays, options, ((*_shape(draw), _elements(draw)),))


def _rows(case: Any) -> int:
    return int(np.prod([*case.dims["lead"], case.dims["rows"]], dtype=np.int64))


def _size(case: Any) -> tuple[int, int]:
    """Elements and bytes of a row of blocks."""
    elements, nbytes = BLOCKS[case.features["format"]]
    return case.dims["blocks"] * elements, case.dims["blocks"] * nbytes


def _streamed_bytes(case: Any) -> float:
    elements, nbytes = _size(case)
    return float(_rows(case) * (elements * itemsize(case) + nbytes))


def _streamed_flops(case: Any) -> float:
    return 2.0 * _rows(case) * _size(case)[0]


def _linear_flops(case: Any) -> float:
    return float(2.0 * _rows(case) * case.dims["n"] * _size(case)[0])


def _linear_bytes(case: Any) -> float:
    """The packed bytes of the weights count."""
    elements, nbytes = _size(case)
    return float(case.dims["n"] * nbytes + _rows(case) * (elements + case.dims["n"]) * itemsize(case))


def _order_fits(dims: Any, features: Any) -> bool:
    """Whether a format has an order of its elements."""
    return bool(features["order"] == "ggml" or features["format"] == "mxfp4")


# Contents are for rows that say what they expect of them.
_DRAWN = {"content": ("ordinary",), "eps": (1e-6, 0.5), "weight_offset": (0.0, 1.0)}
_SIZES = {"lead": (0, 3), "rows": (0, 20), "blocks": (1, 5)}


def _domain(*features: str, **sizes: tuple[int, int]) -> Domain:
    drawn = {name: _DRAWN[name] for name in features}
    return Domain({**_SIZES, **sizes}, drawn, accepts=_order_fits)


OPERATIONS = (
    Operation(
        "dequantize",
        function="rocmkern:dequantize",
        reference="rocmkern.reference:dequantize",
        call=_dequantize_call,
        excerpts=along({"blocks": 0}, 0),
        dims=(LEAD, ROWS, COUNT),
        arrays=("blocks",),
        features=(FORMAT, ORDER, CONTENT),
        exact=True,
        flops=_streamed_flops,
        nbytes=_streamed_bytes,
        domain=_domain("content"),
        dense_on_device=("blocks",),
    ),
    Operation(
        "quantize",
        function="rocmkern:quantize",
        reference="rocmkern.reference:quantize",
        call=_quantize_call,
        excerpts=along({"x": 0}, 0),
        dims=(LEAD, ROWS, COUNT),
        arrays=("x",),
        features=(
            Feature("format", tuple(name for name in BLOCKS if name not in ("q4_k", "q5_k", "q6_k")), default="q4_0"),
            ORDER,
            Feature("nan", ("propagate",)),
            Feature("zeros", (True,), default=False),
        ),
        on_device=False,
        outputs=(Output("blocks", "u8"),),
        exact=True,
        flops=_streamed_flops,
        nbytes=_streamed_bytes,
        domain=_domain(),
    ),
    Operation(
        "quantized_linear",
        **oracles("quantized_linear"),
        call=_linear_call,
        excerpts=along({"x": -2}, -2),
        dims=(LEAD, ROWS, Dim("n", "n"), COUNT),
        arrays=("x", "blocks", "bias"),
        features=(FORMAT, ORDER, CONTENT, Feature("bias", (True,), default=False), ACTIVATION),
        flops=_linear_flops,
        nbytes=_linear_bytes,
        domain=_domain("content", n=(0, 70)),
        dense_on_device=("blocks",),
    ),
    Operation(
        "dequantize_rms_norm",
        **oracles("dequantize_rms_norm"),
        call=_rms_norm_call,
        excerpts=along({"blocks": 0}, 0),
        dims=(LEAD, ROWS, COUNT),
        arrays=("blocks", "weight"),
        features=(FORMAT, ORDER, CONTENT, Feature("eps", (float,)), Feature("weight_offset", (float,))),
        flops=_streamed_flops,
        nbytes=_streamed_bytes,
        domain=_domain("content", "eps", "weight_offset"),
        dense_on_device=("blocks",),
    ),
)
