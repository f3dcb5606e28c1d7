"""Operations whose kernels are broken on purpose, each in a way of its own: a project for the matrix.

All of them double an array of one axis, which one block does; ``fine`` is right.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern import tile as T
from rocmkern.calls import launch as _launch
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import accept, accept_out
from rocmkern.matrix import Call, Dim, Operation, Registry


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: a block takes ``block_m`` elements."""

    block_m: int = 16


@T.kernel
def fine_kernel(cfg, x: T.Tensor[1], out: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m)
    valid = row < x.shape[0]
    T.store_rows(out, (row,), T.load_rows(x, (row,), valid) * 2.0, valid)


@T.kernel
def past_the_end_kernel(cfg, x: T.Tensor[1], out: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m)
    valid = row < x.shape[0]
    T.store_rows(out, (row,), T.load_rows(x, (row,), valid) * 2.0, row < x.shape[0] + 1)


@T.kernel
def before_the_start_kernel(cfg, x: T.Tensor[1], out: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m)
    valid = row < x.shape[0]
    T.store_rows(out, (row,), T.load_rows(x, (row,), valid) * 2.0, valid)
    T.store_rows(out, (row - 1,), T.load_rows(x, (row,), valid), row < 1)


@T.kernel
def unwritten_kernel(cfg, x: T.Tensor[1], out: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m)
    valid = row < x.shape[0] - 1
    T.store_rows(out, (row,), T.load_rows(x, (row,), valid) * 2.0, valid)


@T.kernel
def changed_input_kernel(cfg, x: T.InOut[1], out: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m)
    valid = row < x.shape[0]
    T.store_rows(out, (row,), T.load_rows(x, (row,), valid) * 2.0, valid)
    T.store_rows(x, (row,), T.load_rows(out, (row,), valid), row < 1)


@T.kernel
def hanging_kernel(cfg, x: T.Tensor[1], out: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m)
    valid = row < x.shape[0]
    step = x.shape[0] // 1000  # 0 for what the rows have
    n0 = 0
    while n0 < x.shape[0]:
        T.store_rows(out, (row,), T.load_rows(x, (row,), valid) * 2.0, valid)
        n0 += step


@T.kernel
def crashing_kernel(cfg, x: T.Tensor[1], out: T.Out[1]):
    row = T.row_index(cfg, cfg.block_m)
    valid = row < x.shape[0]
    T.store_rows(out, (row * 0 + (1 << 30),), T.load_rows(x, (row,), valid) * 2.0, valid)


KERNELS = {
    "fine": fine_kernel,
    "past_the_end": past_the_end_kernel,
    "before_the_start": before_the_start_kernel,
    "unwritten": unwritten_kernel,
    "changed_input": changed_input_kernel,
    "leaking": fine_kernel,
    "hanging": hanging_kernel,
    "crashing": crashing_kernel,
}
kept = []


def _doubling(name):
    def double(x, *, out=None):
        x = accept("x", x)
        given = None if out is None else accept_out(out, x.shape, x.dtype, [x])
        result = given or _results.allocate("out", x.shape, x.dtype, x)
        target = _launch.target_for(result.view)
        if name == "leaking":
            from rocmkern.runtime.manager import default_manager

            kept.append(default_manager(target.device).zeros(x.shape))
        args = {"x": x.view, "out": result.view}
        _launch.launch(target, KERNELS[name], Config(arch=target.arch), (1, 1, 1), args, None)
        return result.source

    return double


def _call(draw):
    shape = (draw.dims["elements"],)
    return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))


OPERATIONS = Registry(
    *(
        Operation(
            name,
            function=_doubling(name),
            reference=lambda x: 2 * x,
            call=_call,
            dims=(Dim("elements", "n"),),
            arrays=("x",),
            exact=True,
        )
        for name in KERNELS
    )
)

#: A matrix file with one row for each, and the right one again behind those that end a process.
MATRIX = "version: 1\nregistry: broken_kernels\ngroups:\n" + "".join(
    f"  {name}: {{why: to be found, operation: {operation}, rows: [{{shape: {{elements: 5}}{more}}}]}}\n"
    for name, operation, more in (
        *((name, name, "") for name in KERNELS if name not in ("hanging", "crashing")),
        ("crashing", "crashing", ""),
        ("after_crash", "fine", ""),
        ("hanging", "hanging", ", deadline_s: DEADLINE"),
        ("after_hang", "fine", ""),
    )
)
