import time, sys
import os

os.environ.setdefault("VGPU_CODEGEN", "own")  # numba-hip's own kernels, whatever comgr is installed
import vgpu

vgpu.install()
import numpy as np
from numba import hip, float32

hip.config = None
M = int(sys.argv[1]) if len(sys.argv) > 1 else 128


@hip.jit
def mm(A, B, Cm):
    sa = hip.shared.array((16, 16), dtype=float32)
    sb = hip.shared.array((16, 16), dtype=float32)
    tx = hip.threadIdx.x
    ty = hip.threadIdx.y
    x = hip.blockIdx.x * 16 + tx
    y = hip.blockIdx.y * 16 + ty
    acc = float32(0)
    for k in range(A.shape[1] // 16):
        sa[ty, tx] = A[y, k * 16 + tx]
        sb[ty, tx] = B[k * 16 + ty, x]
        hip.syncthreads()
        for j in range(16):
            acc += sa[ty, j] * sb[j, tx]
        hip.syncthreads()
    Cm[y, x] = acc


A = np.random.rand(M, M).astype("f4")
B = np.random.rand(M, M).astype("f4")
dA = hip.to_device(A)
dB = hip.to_device(B)
dC = hip.device_array((M, M), "f4")
t = time.time()
mm[(M // 16, M // 16), (16, 16)](dA, dB, dC)
hip.synchronize()
print("first", round(time.time() - t, 3))
vgpu.reset()
t = time.time()
mm[(M // 16, M // 16), (16, 16)](dA, dB, dC)
hip.synchronize()
dt = time.time() - t
assert abs(dC.copy_to_host() - A @ B).max() < 1e-3
s = vgpu.speed()
print(
    f"matmul {M}: {dt:.3f}s  {s['insts']} wave-insts  {s['insts_per_s'] / 1e6:.2f} M wave-insts/s  {2 * M**3 / dt / 1e6:.1f} MFLOP/s"
)
