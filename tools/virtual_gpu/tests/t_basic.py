import time, math

T = time.time()
import os

os.environ.setdefault("VGPU_CODEGEN", "own")  # numba-hip's own kernels, whatever comgr is installed
import vgpu

vgpu.install()
import numpy as np
from numba import hip, float32

print("import", time.time() - T)
print(hip.gpus, hip.gpus[0].name, hip.gpus[0].amdgpu_arch, hip.current_context().get_memory_info())


@hip.jit
def vadd(a, b, c):
    i = hip.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


n = 1000
a = np.random.rand(n).astype("f4")
b = np.random.rand(n).astype("f4")
da = hip.to_device(a)
db = hip.to_device(b)
dc = hip.device_array(n, "f4")
print("poisoned:", dc.copy_to_host()[:2].view("u4"))
t = time.time()
vadd[(n + 127) // 128, 128](da, db, dc)
print("vadd first launch", time.time() - t)
t = time.time()
vadd[(n + 127) // 128, 128](da, db, dc)
print("vadd 2nd launch", time.time() - t)
assert np.array_equal(dc.copy_to_host(), a + b)


@hip.jit
def softmax(x, y):
    s = hip.shared.array(256, dtype=float32)
    r = hip.blockIdx.x
    t = hip.threadIdx.x
    W = x.shape[1]
    m = float32(-3e38)
    for j in range(t, W, 256):
        m = max(m, x[r, j])
    s[t] = m
    hip.syncthreads()
    k = 128
    while k > 0:
        if t < k:
            s[t] = max(s[t], s[t + k])
        hip.syncthreads()
        k >>= 1
    m = s[0]
    hip.syncthreads()
    acc = float32(0)
    for j in range(t, W, 256):
        acc += math.exp(x[r, j] - m)
    s[t] = acc
    hip.syncthreads()
    k = 128
    while k > 0:
        if t < k:
            s[t] += s[t + k]
        hip.syncthreads()
        k >>= 1
    z = s[0]
    for j in range(t, W, 256):
        y[r, j] = math.exp(x[r, j] - m) / z


x = np.random.randn(4, 1000).astype("f4")
dx = hip.to_device(x)
dy = hip.device_array(x.shape, "f4")
t = time.time()
softmax[4, 256](dx, dy)
hip.synchronize()
print("softmax", time.time() - t)
t = time.time()
softmax[4, 256](dx, dy)
hip.synchronize()
print("softmax 2", time.time() - t)
e = np.exp(x - x.max(1, keepdims=True))
ref = e / e.sum(1, keepdims=True)
print("max err", abs(dy.copy_to_host() - ref).max())
assert abs(dy.copy_to_host() - ref).max() < 1e-6
print(vgpu.kernels())
print(vgpu.speed())
print(vgpu.report()["calls"])
print(vgpu.problems())
