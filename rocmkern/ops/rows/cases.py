"""Operations that move elements and change none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rocmkern.matrix.common import moved_bytes, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import Excerpt, along
from rocmkern.matrix.peers import torch_on, with_triton
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Peer


def embedding_call(draw: Draw) -> Call:
    """Some rows, the last one and the first one among them."""
    rows, columns, shape = draw.dims["rows"], draw.dims["columns"], tuple(draw.dims["tokens"])
    dtype = np.int32 if draw.features["indices"] == "int32" else np.int64
    indices = draw.rng("indices").integers(0, max(rows, 1), shape).astype(dtype)
    if indices.size > 1:
        indices.flat[0], indices.flat[-1] = rows - 1, 0
    return Call({"table": draw.array("table", (rows, columns)), "indices": indices}, {}, ((*shape, columns),))


def _transpose_call(draw: Draw) -> Call:
    shape, axes = tuple(draw.dims["size"]), draw.features["axes"]
    order = tuple(reversed(range(len(shape)))) if axes is None else tuple(axes)
    options = {} if axes is None else {"axes": order}
    return Call({"x": draw.array("x", shape)}, options, (tuple(shape[axis] for axis in order),))


def _transpose_excerpts(call: Call) -> Iterator[Excerpt]:
    """Entries of the first axis, wherever it goes."""
    ndim = call.arguments["x"].ndim
    order = call.options.get("axes", tuple(reversed(range(ndim))))
    yield from along({"x": 0}, order.index(0))(call)


def _torch_embedding(call: Call, case: Any, target: str) -> Callable[[], Any]:
    torch, bring = torch_on(target)
    table, indices = (bring(call.arguments[name]) for name in ("table", "indices"))
    return lambda: torch.nn.functional.embedding(indices, table)


def _torch_transpose(call: Call, case: Any, target: str) -> Callable[[], Any]:
    _, bring = torch_on(target)
    x = bring(call.arguments["x"])
    axes = call.options.get("axes") or tuple(reversed(range(x.ndim)))
    return lambda: x.permute(axes).contiguous()


OPERATIONS = (
    Operation(
        "embedding",
        **oracles("embedding"),
        call=embedding_call,
        excerpts=along({"indices": 0}, 0),
        dims=(Dim("rows", "v"), Dim("columns", "n"), Dim("tokens", "t", many=True)),
        arrays=("table", "indices"),
        features=(Feature("indices", ("int32",), default="int64"),),
        exact=True,
        nbytes=lambda case: (
            2.0 * case.dims["columns"] * np.prod(case.dims["tokens"]) * (4 if case.dtype == "f32" else 2)
        ),
        peers=with_triton(Peer("torch", _torch_embedding)),
        domain=Domain({"rows": (1, 40), "tokens": (0, 12)}),
    ),
    Operation(
        "transpose",
        **oracles("transpose"),
        call=_transpose_call,
        excerpts=_transpose_excerpts,
        dims=(Dim("size", "n", many=True),),
        arrays=("x",),
        features=(Feature("axes", (list,)),),
        exact=True,
        nbytes=moved_bytes(2),
        peers=with_triton(Peer("torch", _torch_transpose)),
        # Which orders there are depends on the number of axes; they have rows of their own.
        domain=Domain({"size": (0, 30)}, {"axes": ()}),
    ),
)
