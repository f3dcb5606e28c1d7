"""Time of the first call in a new process, with an empty and with a full kernel cache, and of the import.

Prints seconds of wall clock; decides nothing. Run by hand: ``python benchmarks/startup.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from statistics import median

FIRST_CALL = """
import time
start = time.perf_counter()
import numpy as np
import rocmkern
rocmkern.use("cpu")
x = np.zeros((1, 8, 512, 64), np.float32)
rocmkern.flash_attention(x, x, x, causal=True)
print(time.perf_counter() - start)
"""

IMPORT = "import numpy, time; start = time.perf_counter(); import rocmkern; print(time.perf_counter() - start)"


def seconds(code: str, **environ: str) -> float:
    """The number that a script prints in a new process."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure and print; the cold call once, the others five times (median)."""
    with tempfile.TemporaryDirectory() as cache:
        print(f"first call, empty cache: {seconds(FIRST_CALL, ROCMKERN_CACHE_DIR=cache):.2f} s")
        warm = [seconds(FIRST_CALL, ROCMKERN_CACHE_DIR=cache) for _ in range(5)]
    print(f"first call, full cache:  {median(warm):.2f} s")
    print(f"import rocmkern, beside NumPy: {median(seconds(IMPORT) for _ in range(5)):.4f} s")


if __name__ == "__main__":
    main()
