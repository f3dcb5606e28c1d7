"""The operation `new_operation`."""

from __future__ import annotations

from rocmkern.matrix.common import elementwise, moved_bytes, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.registry import Call, Dim, Domain, Operation


def _new_operation_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    return Call({"x": draw.array("x", shape)}, {}, (shape,))


OPERATIONS = (
    Operation(
        "new_operation",
        **oracles("new_operation"),
        call=_new_operation_call,
        dims=(Dim("size", "n", many=True),),
        arrays=("x",),
        in_place="x",
        flops=elementwise(1),
        nbytes=moved_bytes(2),
        domain=Domain({"size": (0, 30)}),
    ),
)
