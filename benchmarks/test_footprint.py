"""Memory and start-up: what an attention costs beside its arithmetic. Run by hand: ``pytest benchmarks``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MIB = 1 << 20

PEAK = """
import resource
import numpy as np
import rocmkern

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

rng = np.random.default_rng(0)
small = rng.standard_normal((1, 8, 128, 64), dtype=np.float32)
rocmkern.use("cpu")
rocmkern.flash_attention(small, small, small, causal=CAUSAL)
q, k, v = (rng.standard_normal((1, 8, 16384, 64), dtype=np.float32) for _ in range(3))
before = peak()
out = rocmkern.flash_attention(q, k, v, causal=CAUSAL)
print(peak() - before - out.nbytes)
"""

FIRST = """
import time
start = time.perf_counter()
import numpy as np
import rocmkern
rocmkern.use("cpu")
x = np.zeros((1, 8, 512, 64), np.float32)
rocmkern.flash_attention(x, x, x, causal=True)
print(time.perf_counter() - start)
"""


def run(code: str, **environ: str) -> float:
    """The number that a script prints in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return float(done.stdout.split()[-1])


@pytest.mark.parametrize("causal", [False, True])
def test_sixteen_thousand_keys_need_no_square_array(causal):
    extra = run(PEAK.replace("CAUSAL", str(causal)))
    assert extra <= 64 * MIB, f"{extra / MIB:.0f} MiB beside inputs and output"


def test_the_first_call_of_a_process(tmp_path):
    cold = run(FIRST, ROCMKERN_CACHE_DIR=str(tmp_path))
    warm = run(FIRST, ROCMKERN_CACHE_DIR=str(tmp_path))
    assert cold < 12.0, f"{cold:.1f} s with an empty cache"
    assert warm < 1.5, f"{warm:.2f} s with a full cache"


def test_the_import_is_cheap():
    code = "import numpy, time; start = time.perf_counter(); import rocmkern; print(time.perf_counter() - start)"
    assert run(code) < 0.2
