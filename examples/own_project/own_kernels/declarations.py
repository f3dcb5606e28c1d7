"""What the matrix must know about the operations of this project."""

import numpy as np

from rocmkern.matrix import Call, Dim, Domain, Edit, Fault, Operation, Peer, Registry


def reference(x):
    """The float64 oracle: the formula, on a whole array, with the maximum taken out first."""
    if x.shape[1] == 0:
        return np.full(x.shape[0], -np.inf)
    largest = x.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(x - largest).sum(axis=1)) + largest[:, 0]


def baseline(x):
    """The same in float32, rounded once: its error is the unit of the tolerance."""
    return reference(x.astype(np.float32)).astype(x.dtype)


def call(draw):
    """Arguments of a case."""
    rows, columns = draw.dims["rows"], draw.dims["columns"]
    return Call({"x": draw.array("x", (rows, columns))}, out_shapes=((rows,),))


def numpy_peer(call, case, target):
    """NumPy on the same input, for benchmark rows."""
    x = call.arguments["x"]
    return lambda: baseline(x)


def elements(case):
    """Numbers that a case reads."""
    return case.dims["rows"] * case.dims["columns"]


OPERATIONS = Registry(
    Operation(
        "log_sum_exp",
        function="own_kernels:log_sum_exp",
        reference=reference,
        baseline=baseline,
        call=call,
        dims=(Dim("rows", "r"), Dim("columns", "n")),
        arrays=("x",),
        flops=lambda case: 4.0 * elements(case),
        nbytes=lambda case: elements(case) * (4.0 if case.dtype == "f32" else 2.0),
        peers=(Peer("numpy", numpy_peer),),
        domain=Domain({"rows": (0, 40), "columns": (0, 200)}),
    ),
    faults=(
        Fault(
            "sum_not_rescaled",
            "the sum keeps its scale when the maximum grows",
            ("log_sum_exp",),
            edits=(Edit("own_kernels.log_sum_exp:log_sum_exp_kernel", "l * T.exp2((m - base) * LOG2_E)", "l"),),
        ),
    ),
)
