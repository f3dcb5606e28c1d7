"""The float32 peak of this processor: multiply-adds of its vector units on numbers that stay in registers.

No product of matrices can be faster, so it is a roof; the speed of a library's product would only be another product.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from rocmkern.architectures import architecture

# Independent sums: more than latency times units of any processor, and few enough for the registers of all.
SUMS = 12
# A burst takes some milliseconds: longer than threads need to start, short enough to find a moment without neighbours.
STEPS = 500_000
BURSTS = 10


class VectorPeak:
    """Measures the peak, again whenever it is asked; the best so far counts.

    Parameters
    ----------
    threads : int
        As many as kernels use.
    """

    threads: int
    flop_per_s: float

    def __init__(self, threads: int):
        self.threads, self.flop_per_s = threads, 0.0

    def measure(self) -> float:
        """FLOP/s of the best burst of all measurements until now."""
        burst, width = _burst()
        burst(1)
        together = threading.Barrier(self.threads)

        def timed(_: int) -> tuple[float, float]:
            together.wait()
            start = time.perf_counter()
            burst(STEPS)
            return start, time.perf_counter()

        flops = 2 * SUMS * width * STEPS * self.threads
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in range(BURSTS):
                spans = list(pool.map(timed, range(self.threads)))
                seconds = max(stop for _, stop in spans) - min(start for start, _ in spans)
                self.flop_per_s = max(self.flop_per_s, flops / seconds)
        return self.flop_per_s


@cache
def _burst() -> tuple[Any, int]:
    """A compiled function of a number of steps, each `SUMS` vector multiply-adds, and the numbers in a vector."""
    # deferred: start-up
    import numba
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    # deferred: start-up (the compiler)
    from rocmkern.targets.cpu import host_architecture

    width = architecture(host_architecture()).vector_lanes
    vector = ir.VectorType(ir.FloatType(), width)

    @intrinsic
    def multiply_add(typing_context: Any, steps: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            # 0.5 x + 1 settles at 2: no overflow, no subnormal numbers, and no step that could be left out.
            half, one = (ir.Constant(vector, [value] * width) for value in (0.5, 1.0))
            name = f"llvm.fmuladd.v{width}f32"
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
            sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [float(i)] * width)) for i in range(SUMS)]
            with cgutils.for_range(builder, arguments[0]):
                for place in sums:
                    builder.store(builder.call(function, [builder.load(place), half, one]), place)
            total = builder.load(sums[0])
            for place in sums[1:]:
                total = builder.fadd(total, builder.load(place))
            return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

        return types.float32(types.intp), generate

    @numba.njit(nogil=True)
    def burst(steps: int) -> float:
        return multiply_add(steps)

    return burst, width
