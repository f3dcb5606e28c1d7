"""Gradients of operations that move elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rocmkern.calls.view import view_of
from rocmkern.matrix.common import itemsize, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.peers import gradients
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Peer
from rocmkern.ops.rows.cases import embedding_call


def _embedding_call(draw: Draw) -> Call:
    call = embedding_call(draw)
    (shape,) = call.out_shapes
    table = call.arrays["table"]
    assert table is not None
    return Call({"dout": draw.array("dout", shape), **call.arrays}, {}, (table.shape,))


def _order_on_device(arrays: Mapping[str, Any]) -> None:
    """Indices in device memory are put in order there."""
    # deferred: start-up
    from rocmkern.ops.rows.backward.launch import ordered_indices

    dout, table, indices = (view_of(arrays[name]) for name in ("dout", "table", "indices"))
    with ordered_indices(indices.reshape((1, 1, 1, indices.size)), dout, table.shape[0], None):
        pass


def _torch_embedding(torch: Any, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    return torch.nn.functional.embedding(tensors["indices"], tensors["table"])


def _bytes(case: Any) -> float:
    dims = case.dims
    return float((dims["rows"] + np.prod(dims["tokens"])) * dims["columns"] * itemsize(case))


OPERATIONS = (
    Operation(
        "embedding_backward",
        **oracles("embedding_backward"),
        gradient_of="embedding",
        call=_embedding_call,
        dims=(Dim("rows", "v"), Dim("columns", "n"), Dim("tokens", "t", many=True)),
        arrays=("dout", "table", "indices"),
        only_on_device=_order_on_device,
        features=(Feature("indices", ("int32",), default="int64"),),
        nbytes=_bytes,
        peers=(Peer("torch", gradients(("table",), _torch_embedding)),),
        domain=Domain({"rows": (1, 40), "tokens": (0, 12)}),
    ),
)
