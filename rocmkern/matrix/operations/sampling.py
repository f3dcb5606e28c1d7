"""Sampling."""

from __future__ import annotations

import numpy as np

from rocmkern.matrix.inputs import Draw
from rocmkern.matrix.operations._common import options_of
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output


def _sample_call(draw: Draw) -> Call:
    dims = draw.dims
    logits = draw.array("logits", (dims["batch"], dims["vocabulary"]))
    hidden = draw.features["hidden"]
    if hidden == "most":
        logits[:, np.arange(dims["vocabulary"]) % 7 != 3] = -np.inf
    elif hidden == "first_half":
        logits[:, : dims["vocabulary"] // 2] = -np.inf
    options = options_of(draw.features, "top_k", "top_p", "seed", "offset")
    return Call({"logits": logits}, options | {"temperature": draw.features["temperature"]}, ((dims["batch"],),))


OPERATIONS = (
    Operation(
        "sample",
        function="rocmkern:sample",
        reference="rocmkern.reference:sample",
        call=_sample_call,
        dims=(Dim("batch", "b"), Dim("vocabulary", "v")),
        arrays=("logits",),
        features=(
            Feature("temperature", (float,), default=1.0),
            Feature("top_k", (int,)),
            Feature("top_p", (float,)),
            Feature("seed", (int,), default=42),
            Feature("offset", (int,), default=0),
            Feature("hidden", ("most", "first_half")),
        ),
        outputs=(Output("out", dtype="i32"),),
        exact=True,
        flops=lambda case: 3.0 * case.dims["batch"] * case.dims["vocabulary"],
        nbytes=lambda case: float(case.dims["batch"] * case.dims["vocabulary"] * (4 if case.dtype == "f32" else 2)),
        domain=Domain(
            {"batch": (0, 4), "vocabulary": (1, 300)},
            {
                "temperature": (0.0, 0.3, 2.0),
                "top_k": (1, 5, 1000),
                "top_p": (0.1, 0.9, 1.0),
                "seed": (0, 2**62 + 1),
                "offset": (3, 2**40),
                # A broadcast layout repeats the first logit: were that hidden, nothing would be left to draw.
                "hidden": (),
            },
        ),
    ),
)
