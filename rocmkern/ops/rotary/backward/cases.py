"""Gradients of rotary embeddings."""

from __future__ import annotations

from typing import Any

from rocmkern.matrix.common import HEAD_DIM, HEADS, itemsize, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation
from rocmkern.ops.rotary.cases import TOKENS, rope_call


def _call(draw: Draw) -> Call:
    return rope_call(draw, "dout")


def _elements(case: Any) -> float:
    dims = case.dims
    batch = 1 if case.features["rows"] == "one" else dims["batch"]
    return float(batch * dims["seq"] * dims["heads"] * dims["head_dim"])


OPERATIONS = (
    Operation(
        "rope_backward",
        **oracles("rope_backward"),
        gradient_of="rope",
        call=_call,
        dims=(Dim("batch", "b", default=1), TOKENS, HEADS, HEAD_DIM),
        arrays=("dout", "positions", "block_positions"),
        # The others are those of `rope`, whose kernel it is.
        features=(
            Feature("variant", ("interleaved",), default="half"),
            Feature("rotary_dim", (int,)),
            Feature("scaling", ("yarn",)),
            Feature("freq_factors", (True,), default=False),
            Feature("positions", (list,)),
            Feature("rows", ("one", "per_batch"), default="shared"),
            Feature("block_positions", (True,), default=False),
            Feature("inverse", (True,), default=False),
            Feature("layout", ("hsd",), default="shd"),
        ),
        in_place="dout",
        flops=lambda case: 3 * _elements(case),
        nbytes=lambda case: 2 * _elements(case) * itemsize(case),
        domain=Domain(
            {"batch": (0, 2), "seq": (0, 20), "heads": (0, 5), "head_dim": (1, 70)},
            {"rotary_dim": (2, 8), "positions": ([131071, 0, 5], [-3])},
            accepts=lambda dims, features: (
                (features["rotary_dim"] or dims["head_dim"]) <= dims["head_dim"]
                and (features["rotary_dim"] or dims["head_dim"]) % (4 if features["block_positions"] else 2) == 0
            ),
        ),
    ),
)
