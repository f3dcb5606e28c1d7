"""A small kernel that the tests of the targets launch, in this process and in others."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import numpy as np

from rocmkern import tile as T
from rocmkern.targets import current_target, using


@dataclass(frozen=True)
class Config(T.Config):
    m: int = 4
    n: int = 32


@T.kernel
def square(cfg, x: T.Tensor[2], out: T.Tensor[2]):
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < x.shape[0]
    t = T.load_tile(cfg, x, (row,), 0, cfg.n, valid)
    T.store_tile(out, (row,), 0, t * T.rowsum(t), valid)


def data(rows=301):
    return np.random.default_rng(11).standard_normal((rows, 32)).astype(np.float32)


def run(x=None, target="cpu"):
    """The result on a target."""
    x = data() if x is None else x
    out = np.full_like(x, np.nan)
    with using(target):
        t = current_target()
        t.launch(square, Config(arch=t.arch), (-(-len(x) // 4), 1, 1), [x, out])
    return out


def expected(x=None):
    x = data() if x is None else x
    return (x.astype(np.float64) * x.sum(1, dtype=np.float64)[:, None]).astype(np.float32)


def is_right(out, x=None):
    return bool(np.allclose(out, expected(x), rtol=1e-5, atol=1e-5))


def compilations():
    """How many variants this process compiled, how many are kept for the next one, and whether it has a compiler."""
    from rocmkern.targets import cpu

    compiler = sorted({"numba", "llvmlite"} & sys.modules.keys())
    return {"compiled": cpu.compiled(), "compiler": compiler}


def other():
    """The result of another variant of the kernel."""
    x = data()
    out = np.full_like(x, np.nan)
    with using("cpu"):
        t = current_target()
        t.launch(square, Config(arch=t.arch, m=8), (-(-len(x) // 8), 1, 1), [x, out])
    return out


def report(out=None, **more):
    """Run, unless there is a result already, and print what happened."""
    out = run() if out is None else out
    print(json.dumps({"right": is_right(out), "digest": out.tobytes().hex()[:4096], **compilations(), **more}))
