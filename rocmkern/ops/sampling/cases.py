"""Sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.matrix.common import itemsize, options_of
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output

#: Arguments that may be an array of one number for each row.
NUMBERS = ("temperature", "top_k", "top_p", "seed", "offset")


def _sample_call(draw: Draw) -> Call:
    dims = draw.dims
    logits = draw.array("logits", (dims["batch"], dims["vocabulary"]))
    hidden = draw.features["hidden"]
    if hidden == "most":
        logits[:, np.arange(dims["vocabulary"]) % 7 != 3] = -np.inf
    elif hidden == "first_half":
        logits[:, : dims["vocabulary"] // 2] = -np.inf
    options = options_of(draw.features, "top_k", "top_p", "seed", "offset")
    options["temperature"] = draw.features["temperature"]
    arrays: dict[str, np.ndarray | None] = {"logits": logits, **dict.fromkeys(NUMBERS)}
    for name, array in _numbers_of_rows(draw, dims["batch"]).items():
        options.pop(name, None)
        arrays[name] = array
    return Call(arrays, options, ((dims["batch"],),))


def _numbers_of_rows(draw: Draw, rows: int) -> dict[str, np.ndarray]:
    """Arrays of one number for each row: those of the row's features beside others."""
    chosen, features = draw.features["per_row"], draw.features
    if chosen is None:
        return {}
    row = np.arange(rows, dtype=np.uint64)
    # A seed and the next one in one batch, and seeds and offsets that differ in their high words only.
    numbers = {
        "seed": np.uint64(features["seed"]) + row // 2 + (row % 3 << np.uint64(32)),
        "offset": np.uint64(features["offset"]) + row % 2 + (row // 2 << np.uint64(32)),
    }
    if chosen == "all":
        rng, vocabulary = draw.rng("numbers"), draw.dims["vocabulary"]
        numbers["temperature"] = np.where(row % 4 == 3, 0, rng.uniform(0.3, 3.0, rows)).astype(np.float32)
        numbers["top_k"] = rng.integers(1, vocabulary + 2, rows)
        numbers["top_p"] = np.where(row % 3 == 1, 1, rng.uniform(0.05, 1.0, rows)).astype(np.float32)
    return numbers


def _sample_bytes(case: Any) -> float:
    """Logits, the numbers of each row, and its token."""
    numbers = {"counters": 16, "all": 32}.get(case.features["per_row"], 0)
    return float(case.dims["batch"] * (case.dims["vocabulary"] * itemsize(case) + numbers + 4))


OPERATIONS = (
    Operation(
        "sample",
        function="rocmkern:sample",
        reference="rocmkern.reference:sample",
        call=_sample_call,
        excerpts=along(dict.fromkeys(("logits", *NUMBERS), 0), 0, many=11),
        dims=(Dim("batch", "b"), Dim("vocabulary", "v")),
        arrays=("logits", *NUMBERS),
        features=(
            Feature("temperature", (float,), default=1.0),
            Feature("top_k", (int,)),
            Feature("top_p", (float,)),
            Feature("seed", (int,), default=42),
            Feature("offset", (int,), default=0),
            Feature("hidden", ("most", "first_half")),
            Feature("per_row", ("counters", "all")),
        ),
        outputs=(Output("out", dtype="i32"),),
        exact=True,
        flops=lambda case: 3.0 * case.dims["batch"] * case.dims["vocabulary"],
        nbytes=_sample_bytes,
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
