"""Run many small kernels on one virtual device and check each against NumPy:  kernels_suite.py [gfx1100] [filter]"""

import os, sys, math, time, traceback

arch = sys.argv[1] if len(sys.argv) > 1 else "gfx1100"
os.environ["VGPU_DEVICES"] = f"{arch}:8GiB"
import warnings

warnings.simplefilter("ignore")
os.environ.setdefault("VGPU_CODEGEN", "own")  # numba-hip's own kernels, whatever comgr is installed
import vgpu

vgpu.install()
import numpy as np
from numba import hip, float32, float64, int32, uint32, int64, uint64, types
import numba

float16 = types.float16
rng = np.random.default_rng(0)
N = 300
T = []


def case(f):
    T.append(f)
    return f


f4 = lambda n=N: rng.standard_normal(n).astype("f4")


def run1(k, *arrs, out="f4", n=N, grid=None, block=128, tol=1e-6, ref=None, stream=0, shmem=0):
    d = [hip.to_device(a) if isinstance(a, np.ndarray) else a for a in arrs]
    o = hip.device_array(n, out)
    k[grid or (n + block - 1) // block, block, stream, shmem](*d, o)
    r = o.copy_to_host()
    assert np.allclose(r, ref, rtol=tol, atol=tol), (
        f"max err {np.max(np.abs(r.astype('f8') - np.asarray(ref).astype('f8')))}"
    )


@case
def vadd():
    @hip.jit
    def k(a, b, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = a[i] + b[i]

    a, b = f4(), f4()
    run1(k, a, b, ref=a + b, tol=0)


def unary(name, fn, ref, x=None, dt="f4", tol=3e-6):
    def t():
        @hip.jit
        def k(a, o):
            i = hip.grid(1)
            if i < o.size:
                o[i] = fn(a[i])

        a = (f4() if x is None else x()).astype(dt)
        run1(k, a, out=dt, ref=ref(a), tol=tol)

    t.__name__ = name
    T.append(t)


pos = lambda: np.abs(f4()) + 0.01
for nm, fn, ref, x in [
    ("exp", math.exp, np.exp, None),
    ("log", math.log, np.log, pos),
    ("sin", math.sin, np.sin, None),
    ("cos", math.cos, np.cos, None),
    ("sqrt", math.sqrt, np.sqrt, pos),
    ("tanh", math.tanh, np.tanh, None),
    ("erf", math.erf, lambda a: np.array([math.erf(v) for v in a]), None),
    ("floor", math.floor, np.floor, None),
    ("fabs", math.fabs, np.abs, None),
    ("log2", math.log2, np.log2, pos),
    ("log1p", math.log1p, np.log1p, pos),
    ("expm1", math.expm1, np.expm1, None),
]:
    unary(nm, fn, ref, x)
for nm, fn, ref, x in [
    ("exp_f64", math.exp, np.exp, None),
    ("sqrt_f64", math.sqrt, np.sqrt, pos),
    ("sin_f64", math.sin, np.sin, None),
]:
    unary(nm, fn, ref, x, "f8", 1e-12)
unary("sin_big", math.sin, lambda a: np.sin(a.astype("f8")), lambda: f4() * 1e4, tol=1e-5)


@case
def f64_fma():
    @hip.jit
    def k(a, b, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = a[i] * b[i] + a[i] / b[i]

    a, b = f4().astype("f8"), f4().astype("f8") + 5
    run1(k, a, b, out="f8", ref=a * b + a / b, tol=1e-14)


@case
def f32_div():
    @hip.jit
    def k(a, b, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = a[i] / b[i]

    a, b = f4(), f4() + 5
    run1(k, a, b, ref=a / b, tol=2e-7)


@case
def denormals():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = a[i] * float32(0.5)

    a = np.full(N, 1e-39, "f4")
    run1(k, a, ref=a * np.float32(0.5), tol=0)


@case
def int_divmod():
    @hip.jit
    def k(a, b, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = a[i] // b[i] * 1000 + a[i] % b[i]

    a = rng.integers(-9999, 9999, N).astype("i4")
    b = rng.integers(1, 99, N).astype("i4")
    run1(k, a, b, out="i8", ref=(a // b).astype("i8") * 1000 + a % b, tol=0)


@case
def int64_mul_shift():
    @hip.jit
    def k(a, b, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = (a[i] * b[i]) ^ (a[i] >> 7) ^ (b[i] << 3)

    a = rng.integers(-(2**40), 2**40, N)
    b = rng.integers(-(2**20), 2**20, N)
    run1(k, a, b, out="i8", ref=(a * b) ^ (a >> 7) ^ (b << 3), tol=0)


@case
def uint8_bytes():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = (a[i] & 15) * 3 + (a[i] >> 4)

    a = rng.integers(0, 255, N).astype("u1")
    run1(k, a, out="u1", ref=(a & 15) * 3 + (a >> 4), tol=0)


@case
def i16_arith():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = a[i] * 3 - (a[i] >> 2)

    a = rng.integers(-3000, 3000, N).astype("i2")
    run1(k, a, out="i2", ref=a * 3 - (a >> 2), tol=0)


from numba.core import cgutils
from numba.core.typing import signature
from numba.hip.extending import intrinsic
from llvmlite import ir


@intrinsic
def h2f(tc, a):
    def cg(context, bld, sig, args):
        return bld.fpext(bld.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return signature(types.float32, types.uint16), cg


@intrinsic
def f2h(tc, a):
    def cg(context, bld, sig, args):
        return bld.bitcast(bld.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return signature(types.uint16, types.float32), cg


@intrinsic
def hfma(tc, a, b, c):
    def cg(context, bld, sig, args):
        h = ir.HalfType()
        x = [bld.bitcast(v, h) for v in args]
        fn = cgutils.get_or_insert_function(bld.module, ir.FunctionType(h, [h, h, h]), "llvm.fma.f16")
        return bld.bitcast(bld.call(fn, x), ir.IntType(16))

    return signature(types.uint16, types.uint16, types.uint16, types.uint16), cg


def rmw(op, nm):
    @intrinsic
    def f(tc, arr, idx, val):
        def cg(context, bld, sig, args):
            aty = sig.args[0]
            a = context.make_array(aty)(context, bld, args[0])
            ptr = cgutils.get_item_pointer(
                context, bld, aty, a, [context.cast(bld, args[1], sig.args[1], types.intp)], wraparound=False
            )
            return bld.atomic_rmw(op, ptr, context.cast(bld, args[2], sig.args[2], aty.dtype), "monotonic")

        return signature(arr.dtype, arr, idx, val), cg

    return f


at_add, at_fadd, at_max, at_xchg = rmw("add", "a"), rmw("fadd", "b"), rmw("max", "c"), rmw("xchg", "d")


@case
def f16_convert():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = f2h(h2f(a[i]) * float32(1.5))

    a = f4().astype("f2")
    run1(k, a.view("u2"), out="u2", ref=(a.astype("f4") * np.float32(1.5)).astype("f2").view("u2"), tol=0)


@case
def f16_fma():
    @hip.jit
    def k(a, b, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = hfma(a[i], b[i], a[i])

    a, b = f4().astype("f2"), f4().astype("f2")
    run1(k, a.view("u2"), b.view("u2"), out="u2", ref=(a.astype("f8") * b + a).astype("f2").view("u2"), tol=0)


@case
def grid3d():
    @hip.jit
    def k(o):
        x, y, z = hip.grid(3)
        if x < o.shape[0] and y < o.shape[1] and z < o.shape[2]:
            o[x, y, z] = x * 10000 + y * 100 + z

    o = hip.device_array((10, 6, 5), "i4")
    k[(3, 2, 3), (4, 4, 2)](o)
    i = np.indices((10, 6, 5))
    assert (o.copy_to_host() == i[0] * 10000 + i[1] * 100 + i[2]).all()


@case
def strided2d():
    @hip.jit
    def k(a, o):
        i, j = hip.grid(2)
        if i < a.shape[0] and j < a.shape[1]:
            o[i, j] = a[i, j] * 2

    a = f4(600).reshape(20, 30)
    d = hip.to_device(a)
    o = hip.to_device(np.zeros((20, 15), "f4"))
    k[(2, 2), (16, 16)](d[:, ::2], o)
    assert (o.copy_to_host() == a[:, ::2] * 2).all()


@case
def divergence():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < o.size:
            n = a[i]
            c = 0
            while n != 1:
                if n & 1:
                    n = 3 * n + 1
                else:
                    n >>= 1
                c += 1
                if c > 500:
                    break
            o[i] = c

    a = rng.integers(1, 200, N).astype("i4")

    def col(n):
        c = 0
        while n != 1:
            n = 3 * n + 1 if n & 1 else n >> 1
            c += 1
        return c

    run1(k, a, out="i4", ref=[col(int(v)) for v in a], tol=0)


@case
def local_array():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        t = hip.local.array(16, float32)
        if i < o.size:
            for j in range(16):
                t[j] = a[i] * j
            s = float32(0)
            q = int(a[i] * 100) & 15
            for j in range(16):
                s += t[(j + q) & 15] * t[j]
            o[i] = s

    a = f4()
    q = (a * np.float32(100)).astype("i8") & 15
    j = np.arange(16)
    ref = [(np.float32(v) ** 2 * (((j + int(s)) & 15) * j)).sum() for v, s in zip(a, q)]
    run1(k, a, ref=ref, tol=1e-3)


@case
def scratch_across_waves():
    @hip.jit
    def k(o):
        t = hip.local.array(40, int32)
        i = hip.threadIdx.x
        for j in range(40):
            t[(j * 7 + i) % 40] = i * 40 + j
        hip.syncthreads()
        s = 0
        for j in range(40):
            s += t[(j * 3 + i) % 40]
        o[i] = s

    run1(k, out="i8", n=128, grid=1, ref=[sum(i * 40 + j for j in range(40)) for i in range(128)], tol=0)


@case
def atomics_i32():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < a.size:
            at_add(o, a[i] & 7, 1)

    a = rng.integers(0, 1000, N).astype("i4")
    o = hip.to_device(np.zeros(8, "i4"))
    k[3, 128](hip.to_device(a), o)
    assert (o.copy_to_host() == np.bincount(a & 7, minlength=8)).all()


@case
def atomics_f32():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < a.size:
            at_fadd(o, 0, a[i])

    a = f4()
    o = hip.to_device(np.zeros(1, "f4"))
    k[3, 128](hip.to_device(a), o)
    assert abs(o.copy_to_host()[0] - a.astype("f8").sum()) < 1e-3


@case
def atomics_shared_max():
    @hip.jit
    def k(a, o):
        s = hip.shared.array(1, int32)
        t = hip.threadIdx.x
        if t == 0:
            s[0] = 0
        hip.syncthreads()
        at_max(s, 0, a[t])
        hip.syncthreads()
        if t == 0:
            o[0] = s[0]

    a = rng.integers(0, 99999, 128).astype("i4")
    run1(k, a, out="i4", n=1, grid=1, ref=[a.max()], tol=0)


@case
def atomic_rtn_unique():
    @hip.jit
    def k(c, o):
        i = hip.grid(1)
        o[i] = at_add(c, 0, 1)

    c = hip.to_device(np.zeros(1, "i4"))
    o = hip.device_array(256, "i4")
    k[2, 128](c, o)
    assert (np.sort(o.copy_to_host()) == np.arange(256)).all()


@case
def shfl_xor():
    @hip.jit
    def k(a, o):
        i = hip.threadIdx.x
        v = a[i]
        m = 16
        while m > 0:
            v += hip.shfl_xor(v, m, 32)
            m >>= 1
        o[i] = v

    a = rng.integers(0, 99, 64).astype("i4")
    run1(k, a, out="i4", n=64, block=64, grid=1, ref=np.repeat(a.reshape(2, 32).sum(1), 32), tol=0)


@case
def shfl_down_f32():
    @hip.jit
    def k(a, o):
        i = hip.threadIdx.x
        v = a[i]
        v += hip.shfl_down(v, 1, 32)
        o[i] = v

    a = f4(32)
    r = a.copy()
    r[:-1] += a[1:]
    r[-1] += a[-1]
    run1(k, a, n=32, block=32, grid=1, ref=r, tol=0)


@case
def ballot_popc():
    @hip.jit
    def k(a, o):
        i = hip.threadIdx.x
        o[i] = hip.popc(hip.ballot(a[i] > 50))

    a = rng.integers(0, 99, 32).astype("i4")
    run1(k, a, out="i4", n=32, block=32, grid=1, ref=[(a > 50).sum()] * 32, tol=0)


@case
def clz_brev_ffs():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = hip.clz(a[i]) * 100 + hip.popc(a[i])

    a = rng.integers(1, 2**31, N).astype("i4")
    run1(k, a, out="i4", ref=[(32 - int(v).bit_length()) * 100 + bin(int(v)).count("1") for v in a], tol=0)


@case
def device_call():
    @hip.jit(device=True)
    def g(x):
        return x * x + 1

    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = g(g(a[i]))

    a = f4()
    q = a * a + 1
    run1(k, a, ref=q * q + 1, tol=1e-6)


@case
def record_array():
    dt = np.dtype([("a", "i4"), ("b", "f8"), ("c", "u1")], align=True)

    @hip.jit
    def k(r, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = r[i].a + r[i].b + r[i].c

    r = np.zeros(N, dt)
    r["a"] = np.arange(N)
    r["b"] = 0.5
    r["c"] = 3
    run1(k, r, out="f8", ref=np.arange(N) + 3.5, tol=0)


@case
def complex64():
    @hip.jit
    def k(a, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = (a[i] * a[i]).real

    a = (f4() + 1j * f4()).astype("c8")
    run1(k, a, ref=(a * a).real, tol=1e-5)


@case
def const_array():
    tab = np.arange(16, dtype="f4") ** 2

    @hip.jit
    def k(a, o):
        c = hip.const.array_like(tab)
        i = hip.grid(1)
        if i < o.size:
            o[i] = c[a[i] & 15]

    a = rng.integers(0, 99, N).astype("i4")
    run1(k, a, ref=tab[a & 15], tol=0)


@case
def mixed_args():
    @hip.jit
    def k(s, b, a, f, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = a[i] * s + f + (1 if b else 0)

    a = f4()
    run1(k, np.int8(3), True, a, np.float64(0.25), ref=a * 3 + 1.25, tol=1e-6)


@case
def big_block():
    @hip.jit
    def k(a, o):
        s = hip.shared.array(1024, float32)
        t = hip.threadIdx.x
        s[t] = a[t]
        hip.syncthreads()
        o[t] = s[(t + 512) % 1024]

    a = f4(1024)
    run1(k, a, n=1024, block=1024, grid=1, ref=np.roll(a, 512), tol=0)


@case
def min_max_select():
    @hip.jit
    def k(a, b, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = min(max(a[i], b[i]), float32(1.0)) if a[i] > 0 else -b[i]

    a, b = f4(), f4()
    run1(k, a, b, ref=np.where(a > 0, np.minimum(np.maximum(a, b), 1), -b), tol=0)


@case
def intr_dot4():
    from numba.core import cgutils
    from numba.core.typing import signature
    from numba.hip.extending import intrinsic
    from llvmlite import ir

    @intrinsic
    def dot4(tc, a, b, c):
        def cg(context, bld, sig, args):
            i32, i1 = ir.IntType(32), ir.IntType(1)
            fn = cgutils.get_or_insert_function(
                bld.module, ir.FunctionType(i32, [i1, i32, i1, i32, i32, i1]), "llvm.amdgcn.sudot4"
            )
            return bld.call(fn, [i1(1), args[0], i1(1), args[1], args[2], i1(0)])

        return signature(types.int32, types.int32, types.int32, types.int32), cg

    if arch.startswith("gfx9"):
        return "skip"

    @hip.jit
    def k(a, b, o):
        i = hip.grid(1)
        if i < o.size:
            o[i] = dot4(a[i], b[i], int32(5))

    a, b = rng.integers(-128, 128, (N, 4)).astype("i1"), rng.integers(-128, 128, (N, 4)).astype("i1")
    run1(k, a.view("i4").ravel(), b.view("i4").ravel(), out="i4", ref=(a.astype("i4") * b).sum(1) + 5, tol=0)


@case
def wmma_f16():
    if not arch.startswith("gfx11"):
        return "skip"
    from numba.core import cgutils
    from numba.core.typing import signature
    from numba.hip.extending import intrinsic
    from llvmlite import ir

    F8 = types.UniTuple(types.float32, 8)
    U8 = types.UniTuple(types.uint32, 8)

    @intrinsic
    def wm(tc, a, b, c):
        def cg(context, bld, sig, args):
            i32v, h16, f8 = (
                ir.VectorType(ir.IntType(32), 8),
                ir.VectorType(ir.HalfType(), 16),
                ir.VectorType(ir.FloatType(), 8),
            )
            I = lambda i: ir.Constant(ir.IntType(32), i)

            def pk(t, vt):
                v = ir.Constant(vt, ir.Undefined)
                for i in range(8):
                    v = bld.insert_element(v, bld.extract_value(t, i), I(i))
                return v

            fn = cgutils.get_or_insert_function(
                bld.module, ir.FunctionType(f8, [h16, h16, f8]), "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16"
            )
            r = bld.call(
                fn, [bld.bitcast(pk(args[0], i32v), h16), bld.bitcast(pk(args[1], i32v), h16), pk(args[2], f8)]
            )
            return cgutils.pack_array(bld, [bld.extract_element(r, I(i)) for i in range(8)])

        return signature(F8, U8, U8, F8), cg

    @hip.jit
    def k(A, B, C_):
        l = hip.threadIdx.x & 15
        z = float32(0)
        h = hip.threadIdx.x >> 4
        r = wm(
            (A[l, 0], A[l, 1], A[l, 2], A[l, 3], A[l, 4], A[l, 5], A[l, 6], A[l, 7]),
            (B[l, 0], B[l, 1], B[l, 2], B[l, 3], B[l, 4], B[l, 5], B[l, 6], B[l, 7]),
            (z, z, z, z, z, z, z, z),
        )
        for i in range(8):
            C_[2 * i + h, l] = r[i]

    A, B = f4(256).reshape(16, 16).astype("f2"), f4(256).reshape(16, 16).astype("f2")
    o = hip.device_array((16, 16), "f4")
    k[1, 32](hip.to_device(A.view("u4")), hip.to_device(B.view("u4")), o)
    assert abs(o.copy_to_host() - A.astype("f4") @ B.astype("f4").T).max() < 1e-4


if __name__ == "__main__":
    ok = bad = sk = 0
    flt = sys.argv[2] if len(sys.argv) > 2 else ""
    for t in T:
        if flt and flt not in t.__name__:
            continue
        try:
            r = t()
            sk += r == "skip"
            ok += r != "skip"
        except Exception as e:
            bad += 1
            msg = [l for l in str(e).splitlines() if l.strip()]
            print(f"FAIL {t.__name__}: {type(e).__name__}: {' | '.join(msg[:2])[:260]}", flush=True)
            if flt:
                traceback.print_exc()
    s = vgpu.speed()
    print(
        f"{arch}: {ok} passed, {bad} failed, {sk} skipped; {s['insts']} wave-insts; compiled {s['insn_compiled']} loaded {s['insn_hits']}; problems {len(vgpu.problems())}"
    )
