"""A GPU target made of host memory: everything of a launch is real but the device and the machine code.

Launch words reach the kernel through the parameter buffer, as a driver reads it, and the kernel runs in the interpreter
on whatever lies at the addresses in it.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from rocmkern.runtime.views import memory_view
from rocmkern.targets.gpu import GpuTarget, LoadedVariant
from rocmkern.targets.python import PythonTarget
from rocmkern.tile import entry

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from fake_device import FakeDevice

END = 7


class StandInTarget(GpuTarget):
    """Counts launches that were prepared by the ordinary way, and notes (kernel, stream) of everything that runs."""

    def __init__(self, device: FakeDevice):
        super().__init__(device)
        self.arch = "python"
        self.ran: list[tuple[str, int]] = []
        self.ordinary = 0
        self.fail = False

    def launch(self, *args, **kwargs):
        self.ordinary += 1
        super().launch(*args, **kwargs)

    def _obtained(self, kernel, cfg, dtypes):
        return self._variants.setdefault((kernel, cfg, dtypes), StandInVariant(self, kernel, cfg, dtypes))

    def load(self, entry):
        raise AssertionError("nothing is loaded")

    def compile_entry(self, kernel, cfg, dtypes):
        raise AssertionError("nothing is compiled")

    def versions(self):
        raise AssertionError("nothing is kept on disk")


class StandInVariant(LoadedVariant):
    def __init__(self, target: StandInTarget, kernel, cfg, dtypes):
        super().__init__(kernel.__name__, sum(entry.words_of(p) for _, p in kernel.parameters), END)
        self.target, self.kernel, self.cfg, self.dtypes = target, kernel, cfg, dtypes

    def _call(self, grid, stream, parameters):
        return lambda: self.run(grid, stream, parameters.address)

    def run(self, grid, stream, parameters):
        if self.target.fail:
            return (1,)
        extra = (ctypes.c_void_p * 5).from_address(parameters)
        assert (extra[0], extra[2], extra[4]) == (1, 2, END)
        count = ctypes.c_size_t.from_address(extra[3]).value // 8
        words = iter((ctypes.c_int64 * count).from_address(extra[1])[:])
        dtypes, args = iter(self.dtypes), []
        for _, parameter in self.kernel.parameters:
            if parameter.kind == "tensor":
                address, *rest = (next(words) for _ in range(1 + 2 * parameter.ndim))
                shape, strides = tuple(rest[: parameter.ndim]), tuple(rest[parameter.ndim :])
                args.append(memory_view(address, shape, strides, np.dtype(next(dtypes)), self, False))
            elif parameter.kind == "int":
                args.append(next(words))
            else:
                args.append(float(np.int32(next(words)).view(np.float32)))
        assert next(words, None) is None
        self.target.device.submit(stream)
        PythonTarget().launch(self.kernel, self.cfg, grid, args)
        self.target.ran.append((self.kernel.__name__, stream))
        return (0,)

    def _fail(self, status):
        from rocmkern.runtime.errors import TargetError

        raise TargetError(f"kernel {self.kernel.__name__}: the stand-in reports {status}")
