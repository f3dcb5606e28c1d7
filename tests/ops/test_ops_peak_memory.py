"""Attention never holds an array of scores: 16384 keys need no more memory than inputs, output and a few tiles."""

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
rocmkern.flash_attention(small, small, small, causal=True)
q, k, v = (rng.standard_normal((1, 8, 16384, 64), dtype=np.float32) for _ in range(3))
before = peak()
out = rocmkern.flash_attention(q, k, v, causal=True)
print(peak() - before - out.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_sixteen_thousand_keys_need_no_square_array():
    done = subprocess.run(
        [sys.executable, "-c", PEAK], env=dict(os.environ), capture_output=True, text=True, timeout=600, check=True
    )
    extra = int(done.stdout.split()[-1])
    assert extra <= 64 * MIB, f"{extra / MIB:.0f} MiB beside inputs and output"
