"""Gradients of linear layers with quantized weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rocmkern.matrix.common import itemsize, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.registry import Call, Operation, Output
from rocmkern.ops.quantized import cases as _forward
from rocmkern.ops.quantized.reference import BLOCKS

_LINEAR: Operation = next(each for each in _forward.OPERATIONS if each.name == "quantized_linear")


def _call(draw: Draw) -> Call:
    made = _LINEAR.call(draw)
    arrays = {"dout": np.asarray(draw.array("dout", made.out_shapes[0])), **made.arrays}
    shapes = tuple(x.shape for x in (made.arrays.get(name) for name in ("x", "bias")) if x is not None)
    return Call(arrays, made.options, shapes)


def _flops(case: Any) -> float:
    assert _LINEAR.flops is not None
    return _LINEAR.flops(case) * (2.0 if case.features["activation"] else 1.0)


def _nbytes(case: Any) -> float:
    dims, (elements, nbytes) = case.dims, BLOCKS[case.features["format"]]
    rows = int(np.prod([*dims["lead"], dims["rows"]], dtype=np.int64))
    biases = 2 * dims["n"] if case.features["bias"] else 0
    floats = rows * (dims["n"] + 2 * dims["blocks"] * elements) + biases
    return float(dims["n"] * dims["blocks"] * nbytes + floats * itemsize(case))


OPERATIONS = (
    replace(
        _LINEAR,
        name="quantized_linear_backward",
        **oracles("quantized_linear_backward"),
        gradient_of="quantized_linear",
        call=_call,
        excerpts=None,
        arrays=("dout", *_LINEAR.arrays),
        features=tuple(feature for feature in _LINEAR.features if feature.name != "bias_dtype"),
        outputs=(Output("dx"), Output("dbias", feature="bias")),
        flops=_flops,
        nbytes=_nbytes,
        peers=(),
    ),
)
