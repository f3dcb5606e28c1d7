"""AMD intrinsics through numba-hip on the virtual GPU:  intrinsics_suite.py [gfx1100] [filter]"""

import os, sys, math, struct, warnings

arch = sys.argv[1] if len(sys.argv) > 1 else "gfx1100"
os.environ["VGPU_DEVICES"] = f"{arch}:8GiB"
warnings.simplefilter("ignore")
os.environ.setdefault("VGPU_CODEGEN", "own")  # numba-hip's own kernels, whatever comgr is installed
import vgpu

vgpu.install()
import numpy as np
from numba import hip, types, float32, int32, uint32
from numba.core import cgutils
from numba.core.typing import signature
from numba.hip.extending import intrinsic
from llvmlite import ir

W = 64 if arch.startswith("gfx9") else 32
rng = np.random.default_rng(1)
i32, f32, f16, i1, i16, i64, i8 = (
    ir.IntType(32),
    ir.FloatType(),
    ir.HalfType(),
    ir.IntType(1),
    ir.IntType(16),
    ir.IntType(64),
    ir.IntType(8),
)
V = ir.VectorType


def bc(b, v, t):
    return v if v.type == t else b.bitcast(v, t)


def op(name, ret, args, post=(), pre=()):
    """32-bit intrinsic taking uint32 values (bitcast to `args`), constants `post` after them; result bitcast to uint32."""
    n = len(args)

    def gen(context, bld, sig, a):
        cs = [ir.Constant(t, v) for t, v in post]
        ps = [ir.Constant(t, v) for t, v in pre]
        xs = [bc(bld, x, t) if t != i16 else bld.trunc(x, i16) for x, t in zip(a, args)]
        fn = cgutils.get_or_insert_function(
            bld.module, ir.FunctionType(ret, [c.type for c in ps] + [x.type for x in xs] + [c.type for c in cs]), name
        )
        r = bld.call(fn, ps + xs + cs)
        return bld.zext(r, i32) if r.type in (i1, i16) else bc(bld, r, i32)

    U = types.uint32
    if n == 1:

        @intrinsic
        def f(tc, a):
            return signature(U, U), gen

        @hip.jit
        def k(a, b, c, o):
            i = hip.grid(1)
            o[i] = f(a[i])
    elif n == 2:

        @intrinsic
        def f(tc, a, b):
            return signature(U, U, U), gen

        @hip.jit
        def k(a, b, c, o):
            i = hip.grid(1)
            o[i] = f(a[i], b[i])
    else:

        @intrinsic
        def f(tc, a, b, c):
            return signature(U, U, U, U), gen

        @hip.jit
        def k(a, b, c, o):
            i = hip.grid(1)
            o[i] = f(a[i], b[i], c[i])

    return k


def go(k, a, b=None, c=None):
    z = np.zeros(64, "u4")
    o = hip.device_array(64, "u4")
    k[1, 64](*[hip.to_device(np.ascontiguousarray(x if x is not None else z).view("u4")) for x in (a, b, c)], o)
    return o.copy_to_host()


U = lambda: rng.integers(0, 2**32, 64, dtype="u4")
F = lambda: rng.standard_normal(64).astype("f4")
H2 = lambda: rng.standard_normal(128).astype("f2")


def eq(got, ref, tol=0, dt="u4"):
    g, r = got.view(dt), np.asarray(ref)
    assert (
        np.array_equal(g, r.astype(dt)) if tol == 0 else np.allclose(g.astype("f8"), r.astype("f8"), rtol=tol, atol=tol)
    ), (g[:4], r[:4])


C = {}


def case(f):
    C[f.__name__] = f
    return f


lanes = np.arange(64)


@case
def rcp():
    a = F()
    eq(go(op("llvm.amdgcn.rcp.f32", f32, [f32]), a), 1 / a, 1e-6, "f4")


@case
def rsq():
    a = abs(F()) + 0.1
    eq(go(op("llvm.amdgcn.rsq.f32", f32, [f32]), a), 1 / np.sqrt(a), 1e-6, "f4")


@case
def exp2():
    a = F()
    eq(go(op("llvm.amdgcn.exp2.f32", f32, [f32]), a), np.exp2(a), 1e-6, "f4")


@case
def log():
    a = abs(F()) + 0.1
    eq(go(op("llvm.amdgcn.log.f32", f32, [f32]), a), np.log2(a), 1e-6, "f4")


@case
def fence():  # cache invalidation / write-back instructions
    @intrinsic
    def f(tc, a):
        def gen(ctx, bld, sig, x):
            bld.fence("seq_cst", "agent")
            return x[0]

        return signature(types.uint32, types.uint32), gen

    @hip.jit
    def k(a, b, c, o):
        i = hip.grid(1)
        o[i] = a[i]
        o[i] += f(b[i])

    a, b = U(), U()
    eq(go(k, a, b), a + b)


@case
def fmed3():
    a, b, c = F(), F(), F()
    eq(go(op("llvm.amdgcn.fmed3.f32", f32, [f32] * 3), a, b, c), np.median([a, b, c], 0), 0, "f4")


@case
def fma():
    a, b, c = F(), F(), F()
    eq(go(op("llvm.fma.f32", f32, [f32] * 3), a, b, c), a.astype("f8") * b + c, 1e-6, "f4")


@case
def sudot4():
    a, b, c = U(), U(), U()
    s = lambda x: x.view("i1").reshape(64, 4).astype("i8")
    eq(go(opsu("llvm.amdgcn.sudot4"), a, b, c), ((s(a) * s(b)).sum(1) + c) & 0xFFFFFFFF)


@case
def sdot4():
    a, b, c = U(), U(), U()
    s = lambda x: x.view("i1").reshape(64, 4).astype("i8")
    eq(go(op("llvm.amdgcn.sdot4", i32, [i32] * 3, post=[(i1, 0)]), a, b, c), ((s(a) * s(b)).sum(1) + c) & 0xFFFFFFFF)


@case
def udot4():
    a, b, c = U(), U(), U() >> 2
    s = lambda x: x.view("u1").reshape(64, 4).astype("i8")
    eq(go(op("llvm.amdgcn.udot4", i32, [i32] * 3, post=[(i1, 0)]), a, b, c), ((s(a) * s(b)).sum(1) + c) & 0xFFFFFFFF)


@case
def udot8():
    a, b, c = U(), U(), U() >> 2
    n = lambda x: ((x[:, None] >> (4 * np.arange(8))) & 15).astype("i8")
    eq(go(op("llvm.amdgcn.udot8", i32, [i32] * 3, post=[(i1, 0)]), a, b, c), ((n(a) * n(b)).sum(1) + c) & 0xFFFFFFFF)


def opsu(nm):
    U_ = types.uint32

    @intrinsic
    def f(tc, a, b, c):
        def gen(ctx, bld, sig, x):
            fn = cgutils.get_or_insert_function(bld.module, ir.FunctionType(i32, [i1, i32, i1, i32, i32, i1]), nm)
            return bld.call(fn, [i1(1), x[0], i1(1), x[1], x[2], i1(0)])

        return signature(U_, U_, U_, U_), gen

    @hip.jit
    def k(a, b, c, o):
        i = hip.grid(1)
        o[i] = f(a[i], b[i], c[i])

    return k


@case
def fdot2():
    a, b, c = H2(), H2(), F()
    eq(
        go(op("llvm.amdgcn.fdot2", f32, [V(f16, 2), V(f16, 2), f32], post=[(i1, 0)]), a, b, c),
        (a.astype("f4") * b.astype("f4")).reshape(64, 2).sum(1) + c,
        2e-6,
        "f4",
    )


@case
def pk_fma_f16():
    a, b, c = H2(), H2(), H2()
    eq(go(op("llvm.fma.v2f16", V(f16, 2), [V(f16, 2)] * 3), a, b, c), (a.astype("f8") * b + c).astype("f2"), 0, "f2")


@case
def cvt_pkrtz():
    a, b = F(), F()
    eq(go(op("llvm.amdgcn.cvt.pkrtz", V(f16, 2), [f32, f32]), a, b), np.stack([a, b], 1).ravel(), 1e-3, "f2")


@case
def perm():
    a, b, c = U(), U(), U() & 0x07070707
    by = np.concatenate([b.view("u1").reshape(64, 4), a.view("u1").reshape(64, 4)], 1)
    sel = c.view("u1").reshape(64, 4)
    eq(
        go(op("llvm.amdgcn.perm", i32, [i32] * 3), a, b, c),
        np.take_along_axis(by, sel.astype("i8"), 1).copy().view("u4").ravel(),
    )


@case
def alignbit():
    a, b, c = U(), U(), U() & 31
    eq(
        go(op("llvm.fshr.i32", i32, [i32] * 3), a, b, c),
        (((a.astype(object) << 32 | b.astype(object)) >> c.astype(object)) & 0xFFFFFFFF).astype("u4"),
    )


@case
def ubfe():
    a, b, c = U(), U() & 15, U() & 15
    eq(go(op("llvm.amdgcn.ubfe.i32", i32, [i32] * 3), a, b, c), (a >> b) & ((1 << c) - 1))


@case
def sad_u8():
    a, b, c = U(), U(), U() >> 4
    s = lambda x: x.view("u1").reshape(64, 4).astype("i8")
    eq(go(op("llvm.amdgcn.sad.u8", i32, [i32] * 3), a, b, c), abs(s(a) - s(b)).sum(1) + c)


@case
def mbcnt():
    k = op("llvm.amdgcn.mbcnt.lo", i32, [i32, i32])
    m, c = U(), U() >> 8
    ref = [bin(int(x) & ((1 << min(l % W, 32)) - 1)).count("1") + int(y) for l, (x, y) in enumerate(zip(m, c))]
    eq(go(k, m, c), ref)


@case
def readfirstlane():
    a = U()
    eq(go(op("llvm.amdgcn.readfirstlane.i32", i32, [i32]), a), np.repeat(a[::W], W))


@case
def readlane():
    a = U()
    eq(go(op("llvm.amdgcn.readlane.i32", i32, [i32], post=[(i32, 5)]), a), np.repeat(a[5::W][: 64 // W], W))


@case
def ds_bpermute():
    a, idx = U(), (rng.permutation(W).astype("u4"))
    ii = np.tile(idx, 64 // W)
    r = np.concatenate([a[s : s + W][idx] for s in range(0, 64, W)])
    eq(go(op("llvm.amdgcn.ds.bpermute", i32, [i32, i32]), ii * 4, a), r)


@case
def ds_swizzle_xor1():
    a = U()
    eq(go(op("llvm.amdgcn.ds.swizzle", i32, [i32], post=[(i32, 0x1F | 1 << 10)]), a), a[lanes ^ 1])


@case
def dpp_row_shr1():
    a = U()
    r = np.where(lanes % 16 == 0, a, a[np.maximum(lanes - 1, 0)])
    eq(
        go(op("llvm.amdgcn.update.dpp.i32", i32, [i32, i32], post=[(i32, 0x111), (i32, 15), (i32, 15), (i1, 0)]), a, a),
        r,
    )


@case
def dpp_quad_perm():
    a = U()
    eq(
        go(op("llvm.amdgcn.update.dpp.i32", i32, [i32, i32], post=[(i32, 0xB1), (i32, 15), (i32, 15), (i1, 0)]), a, a),
        a[lanes ^ 1],
    )


@case
def dpp_row_xmask8():
    a = U()
    eq(
        go(op("llvm.amdgcn.update.dpp.i32", i32, [i32, i32], post=[(i32, 0x168), (i32, 15), (i32, 15), (i1, 0)]), a, a),
        a[lanes ^ 8],
    )


@case
def dpp_row_share3():
    a = U()
    eq(
        go(op("llvm.amdgcn.update.dpp.i32", i32, [i32, i32], post=[(i32, 0x153), (i32, 15), (i32, 15), (i1, 0)]), a, a),
        np.repeat(a[3::16], 16),
    )


@case
def dpp_row_bcast15():
    a = U()
    eq(
        go(op("llvm.amdgcn.update.dpp.i32", i32, [i32, i32], post=[(i32, 0x142), (i32, 15), (i32, 15), (i1, 0)]), a, a),
        np.where(lanes < 16, a, a[(lanes & ~15) - 1]),
    )


@case
def dpp_row_ror4():
    a = U()
    eq(
        go(op("llvm.amdgcn.update.dpp.i32", i32, [i32, i32], post=[(i32, 0x124), (i32, 15), (i32, 15), (i1, 0)]), a, a),
        a.reshape(4, 16)[:, (np.arange(16) - 4) % 16].ravel(),
    )


@case
def dpp8():
    a = U()
    sel = sum(((7 - i) & 7) << (3 * i) for i in range(8))
    eq(go(op("llvm.amdgcn.mov.dpp8.i32", i32, [i32], post=[(i32, sel)]), a), a[lanes ^ 7])


@case
def permlanex16():
    a = U()
    eq(
        go(
            op(
                "llvm.amdgcn.permlanex16.i32",
                i32,
                [i32, i32],
                post=[(i32, 0x76543210), (i32, -0x01234568 & 0xFFFFFFFF), (i1, 0), (i1, 0)],
            ),
            a,
            a,
        ),
        a[lanes ^ 16],
    )


@case
def permlane64():
    a = U()
    eq(go(op("llvm.amdgcn.permlane64.i32", i32, [i32]), a), a if W == 32 else a[lanes ^ 32])


@case
def ballot_i32():
    a = U()
    k = op("llvm.ctpop.i32", i32, [i32])
    eq(go(k, a), [bin(x).count("1") for x in a])


@case
def bf16_round():
    a = F()
    k = op("llvm.amdgcn.ubfe.i32", i32, [i32, i32], post=[(i32, 16)])
    eq(go(k, a, np.full(64, 16, "u4")), a.view("u4") >> 16)


@case
def cvt_pk_fp8():
    a, b = F(), F()
    k = op("llvm.amdgcn.cvt.pk.fp8.f32", i32, [f32, f32], post=[(i32, 0), (i1, 0)])
    r = go(k, a, b)
    k2 = op("llvm.amdgcn.cvt.f32.fp8", f32, [i32], post=[(i32, 0)])
    eq(go(k2, r), a, 0.13, "f4")


def asm(text, cons):
    """Kernel o[i] = inline assembly of a[i], b[i] ($0 = result, $1, $2 = arguments)."""
    U_ = types.uint32

    @intrinsic
    def f(tc, a, b):
        def gen(ctx, bld, sig, x):
            return bld.asm(ir.FunctionType(i32, [i32, i32]), text.replace(";", "\n"), cons, x, True)

        return signature(U_, U_, U_), gen

    @hip.jit
    def k(a, b, c, o):
        i = hip.grid(1)
        o[i] = f(a[i], b[i])

    return k


@intrinsic
def dirty(tc, a):
    """Garbage in v128-v135 and v240-v248: what a constant operand names if it is mistaken for a register number."""
    regs = [*range(128, 136), *range(240, 249)]

    def gen(ctx, bld, sig, x):
        bld.asm(
            ir.FunctionType(ir.VoidType(), [i32]),
            "\n".join(f"v_mov_b32 v{r}, $0" for r in regs),
            "v,~{memory}," + ",".join(f"~{{v{r}}}" for r in regs),
            x,
            True,
        )
        return x[0]

    return signature(types.uint32, types.uint32), gen


def tile(name, ret, at, bt, ct, nin, nout, kind, const=None):
    """matrix intrinsic: per lane nin dwords of A and B, nout dwords of C/D; const: C is this constant in every element."""
    UA, UC = types.UniTuple(types.uint32, nin), types.UniTuple(types.uint32, nout)

    @intrinsic
    def f(tc, a, b, c):
        def gen(ctx, bld, sig, x):
            def pk(t, n, vt):
                if n == 1:
                    return bc(bld, bld.extract_value(t, 0), vt)
                v = ir.Constant(V(i32, n), ir.Undefined)
                for i in range(n):
                    v = bld.insert_element(v, bld.extract_value(t, i), i32(i))
                return bc(bld, v, vt)

            A, B, Cc = pk(x[0], nin, at), pk(x[1], nin, bt), pk(x[2], nout, ct)
            if const is not None:
                Cc = ir.Constant(ct, [const] * ct.count)
            args = {
                "f": [A, B, Cc],
                "iu": [i1(1), A, i1(1), B, Cc, i1(0)],
                "mfma": [A, B, Cc, i32(0), i32(0), i32(0)],
                "f16o": [A, B, Cc, i1(0)],
                "asm": None,
            }[kind]
            if kind == "asm":
                r = bld.asm(ir.FunctionType(ret, [A.type, B.type]), name, "=&v,v,v", [A, B], False)
            else:
                r = bld.call(
                    cgutils.get_or_insert_function(bld.module, ir.FunctionType(ret, [q.type for q in args]), name), args
                )
            r = bc(bld, r, V(i32, nout))
            return cgutils.pack_array(bld, [bld.extract_element(r, i32(i)) for i in range(nout)])

        return signature(UC, UA, UA, UC), gen

    ns = {"hip": hip, "f": f, "uint32": uint32, "dirty": dirty}
    exec(
        f"def k(A,B,O):\n l=hip.threadIdx.x\n z={'dirty(uint32(0x42280000))' if const is not None else 'uint32(0)'}\n r=f(({''.join(f'A[l,{i}],' for i in range(nin))}),({''.join(f'B[l,{i}],' for i in range(nin))}),({'z,' * nout}))\n for i in range({nout}): O[l,i]=r[i]",
        ns,
    )
    return hip.jit(ns["k"])


def gomat(k, A, B, nout, dt):
    o = hip.device_array((W, nout), "u4")
    k[1, W](hip.to_device(np.ascontiguousarray(A).view("u4")), hip.to_device(np.ascontiguousarray(B).view("u4")), o)
    return o.copy_to_host().view(dt)


def unpack11(r):  # gfx11: lane l, element i -> row 2*i + l//16, column l%16
    D = np.zeros((16, 16), r.dtype)
    for l in range(32):
        for i in range(8):
            D[2 * i + l // 16, l % 16] = r[l, i]
    return D


def unpack12(r):  # gfx12: row i + 8*(l//16)
    D = np.zeros((16, 16), r.dtype)
    for l in range(32):
        for i in range(8):
            D[i + 8 * (l // 16), l % 16] = r[l, i]
    return D


BF = lambda x: (x.astype("u4") << 16).view("f4")
bfr = lambda: (rng.standard_normal((16, 16)).astype("f4").view("u4") >> 16).astype("u2")
hf = lambda: rng.standard_normal((16, 16)).astype("f2")
if not arch.startswith("gfx9"):  # C is an inline constant
    g11 = arch.startswith("gfx11")
    sp = (
        (lambda X: X[lanes[:32] % 16])
        if g11
        else (lambda X: np.stack([X[l % 16, 8 * (l // 16) : 8 * (l // 16) + 8] for l in range(32)]))
    )
    un = lambda r: (unpack11 if g11 else unpack12)(r)
    nA = 16 if g11 else 8

    def wconst(ty, et, con, op=None):
        mk_, val = (hf, lambda x: x.astype("f4")) if ty == "f16" else (bfr, BF)
        A, B = mk_(), mk_()
        vt = V(f16 if et == "f16" else i16, nA)
        for kind, nm in (
            ("f", f"llvm.amdgcn.wmma.f32.16x16x16.{ty}.v8f32.v{nA}{et}"),
            ("asm", f"v_wmma_f32_16x16x16_{ty} $0, $1, $2, {con}"),
        ):  # gfx11 compilers may put the constant in registers: also as written
            k = tile(
                nm,
                V(f32, 8),
                *([V(i32, nA // 2)] * 2 if kind == "asm" else [vt] * 2),
                V(f32, 8),
                nA // 2,
                8,
                kind,
                const=con,
            )
            eq(un(gomat(k, sp(A), sp(B), 8, "f4")), val(A) @ val(B).T + con, 1e-4, "f4")

    @case
    def wmma_f16_c0():
        wconst("f16", "f16", 0.0)

    @case
    def wmma_f16_c1():
        wconst("f16", "f16", 1.0)

    @case
    def wmma_bf16_c0():
        wconst("bf16", "i16", 0.0)

    @case
    def wmma_iu8_c0():
        A, B = rng.integers(-128, 128, (16, 16)).astype("i1"), rng.integers(-128, 128, (16, 16)).astype("i1")
        n = nA // 4
        k = tile(
            f"llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v{n}i32",
            V(i32, 8),
            V(i32, n),
            V(i32, n),
            V(i32, 8),
            n,
            8,
            "iu",
            const=5,
        )
        eq(un(gomat(k, sp(A), sp(B), 8, "i4")), A.astype("i4") @ B.astype("i4").T + 5, 0, "i4")

    @case
    def wmma_f16_out():  # f16 accumulator: gfx11 low half of 8 registers, gfx12 packed in 4
        A, B = hf(), hf()
        ref = (A.astype("f4") @ B.astype("f4").T).astype("f2")
        if g11:
            k = tile(
                "llvm.amdgcn.wmma.f16.16x16x16.f16.v16f16.v16f16",
                V(f16, 16),
                V(f16, 16),
                V(f16, 16),
                V(f16, 16),
                8,
                8,
                "f16o",
            )
            r = gomat(k, sp(A), sp(B), 8, "f2").reshape(32, 8, 2)[:, :, 0]
        else:
            k = tile(
                "llvm.amdgcn.wmma.f16.16x16x16.f16.v8f16.v8f16",
                V(f16, 8),
                V(f16, 8),
                V(f16, 8),
                V(f16, 8),
                4,
                4,
                "f16o",
            )
            r = gomat(k, sp(A), sp(B), 4, "f2")
        eq(un(r), ref, 2e-3, "f2")


if arch.startswith("gfx12"):

    def e4m3(b):
        b = b.astype("i4")
        e, m = b >> 3 & 15, b & 7
        return np.where(b & 128, -1, 1) * np.where(e, (1 + m / 8) * 2.0 ** (e - 7), m * 2.0**-9)

    @case
    def wmma_fp8():
        A, B = (rng.integers(0, 127, (16, 16)) | rng.integers(0, 2, (16, 16)) << 7 for _ in range(2))
        A, B = A.astype("u1"), B.astype("u1")
        k = tile(
            "llvm.amdgcn.wmma.f32.16x16x16.fp8.fp8.v8f32.v2i32", V(f32, 8), V(i32, 2), V(i32, 2), V(f32, 8), 2, 8, "f"
        )
        ref = e4m3(A) @ e4m3(B).T
        eq((un(gomat(k, sp(A), sp(B), 8, "f4")) / abs(ref).max()).astype("f4"), ref / abs(ref).max(), 1e-5, "f4")

    @case
    def wmma_iu4():
        for K, n in ((16, 1), (32, 2)):
            A, B = rng.integers(-8, 8, (16, K)), rng.integers(-8, 8, (16, K))
            p = lambda x: ((x[:, 0::2] & 15) | (x[:, 1::2] & 15) << 4).astype("u1")
            h = lambda X: np.stack([X[l % 16, K // 4 * (l // 16) : K // 4 * (l // 16) + K // 4] for l in range(32)])
            k = tile(
                f"llvm.amdgcn.wmma.i32.16x16x{K}.iu4.v8i32." + ("i32" if n == 1 else "v2i32"),
                V(i32, 8),
                *([i32 if n == 1 else V(i32, 2)] * 2),
                V(i32, 8),
                n,
                8,
                "iu",
            )
            eq(un(gomat(k, h(p(A)), h(p(B)), 8, "i4")), A @ B.T, 0, "i4")


if arch.startswith("gfx9"):  # 16-bit operations on registers of 128 and above: no ".h" halves on this architecture
    HI = ",~{v128},~{v129},~{v200},~{v201},~{vcc}"

    @case
    def hi16_dst():
        a, b = U(), U()
        eq(
            go(
                asm(
                    "v_mov_b32 v72, $2;v_mov_b32 v200, -1;v_add_u16_e32 v200, $1, v72;v_mov_b32 $0, v200",
                    "=v,v,v,~{v72}" + HI,
                ),
                a,
                b,
            ),
            (a + b) & 0xFFFF,
        )

    @case
    def hi16_src():
        a, b = U(), U()
        eq(
            go(
                asm(
                    "v_mov_b32 v72, 0;v_mov_b32 v73, 0;v_mov_b32 v200, $1;v_mov_b32 v201, $2;v_add_u16_e32 $0, v200, v201",
                    "=&v,v,v,~{v72},~{v73}" + HI,
                ),
                a,
                b,
            ),
            (a + b) & 0xFFFF,
        )

    @case
    def hi16_all_f16():
        a, b = H2(), H2()
        eq(
            go(
                asm(
                    "v_mov_b32 v0, 0;v_mov_b32 v1, 0;v_mov_b32 v128, $1;v_mov_b32 v129, $2;v_mul_f16_e32 v128, v128, v129;v_mov_b32 $0, v128",
                    "=&v,v,v,~{v0},~{v1}" + HI,
                ),
                a,
                b,
            ).astype("u2"),
            (a[::2] * b[::2]).astype("f2").view("u2"),
            0,
            "u2",
        )

    @case
    def hi16_cvt():
        a, b = H2(), H2()
        eq(
            go(asm("v_mov_b32 v72, 0;v_mov_b32 v200, $1;v_cvt_f32_f16_e32 $0, v200", "=&v,v,v,~{v72}" + HI), a, b),
            a[::2].astype("f4"),
            0,
            "f4",
        )

    @case
    def hi16_cmp():
        a, b = U(), U()
        eq(
            go(
                asm(
                    "v_mov_b32 v72, 0;v_mov_b32 v73, 0;v_mov_b32 v200, $1;v_mov_b32 v201, $2;v_cmp_lt_u16_e32 vcc, v200, v201;v_cndmask_b32_e64 $0, 0, 1, vcc",
                    "=&v,v,v,~{v72},~{v73}" + HI,
                ),
                a,
                b,
            ),
            (a & 0xFFFF) < (b & 0xFFFF),
        )


if arch.startswith("gfx11"):

    @case
    def wmma_f16():
        A, B = rng.standard_normal((16, 16)).astype("f2"), rng.standard_normal((16, 16)).astype("f2")
        k = tile(
            "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16", V(f32, 8), V(f16, 16), V(f16, 16), V(f32, 8), 8, 8, "f"
        )
        eq(
            unpack11(gomat(k, A[lanes[:32] % 16], B[lanes[:32] % 16], 8, "f4")),
            A.astype("f4") @ B.astype("f4").T,
            1e-4,
            "f4",
        )

    @case
    def wmma_bf16():
        A, B = (rng.standard_normal((16, 16)).astype("f4").view("u4") >> 16 for _ in range(2))
        f = lambda x: (x.astype("u4") << 16).view("f4")
        k = tile(
            "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16", V(f32, 8), V(i16, 16), V(i16, 16), V(f32, 8), 8, 8, "f"
        )
        eq(
            unpack11(gomat(k, A.astype("u2")[lanes[:32] % 16], B.astype("u2")[lanes[:32] % 16], 8, "f4")),
            f(A) @ f(B).T,
            1e-4,
            "f4",
        )

    @case
    def wmma_iu8():
        A, B = rng.integers(-128, 128, (16, 16)).astype("i1"), rng.integers(-128, 128, (16, 16)).astype("i1")
        k = tile(
            "llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v4i32", V(i32, 8), V(i32, 4), V(i32, 4), V(i32, 8), 4, 8, "iu"
        )
        eq(
            unpack11(gomat(k, A[lanes[:32] % 16], B[lanes[:32] % 16], 8, "i4")),
            A.astype("i4") @ B.astype("i4").T,
            0,
            "i4",
        )

    @case
    def wmma_iu4():
        A, B = rng.integers(-8, 8, (16, 16)), rng.integers(-8, 8, (16, 16))
        p = lambda x: ((x[:, 0::2] & 15) | (x[:, 1::2] & 15) << 4).astype("u1")
        k = tile(
            "llvm.amdgcn.wmma.i32.16x16x16.iu4.v8i32.v2i32", V(i32, 8), V(i32, 2), V(i32, 2), V(i32, 8), 2, 8, "iu"
        )
        eq(unpack11(gomat(k, p(A)[lanes[:32] % 16], p(B)[lanes[:32] % 16], 8, "i4")), A @ B.T, 0, "i4")


if arch.startswith("gfx12"):
    half = lambda X: np.stack([X[l % 16, 8 * (l // 16) : 8 * (l // 16) + 8] for l in range(32)])

    @case
    def wmma_f16():
        A, B = rng.standard_normal((16, 16)).astype("f2"), rng.standard_normal((16, 16)).astype("f2")
        k = tile("llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v8f16", V(f32, 8), V(f16, 8), V(f16, 8), V(f32, 8), 4, 8, "f")
        eq(unpack12(gomat(k, half(A), half(B), 8, "f4")), A.astype("f4") @ B.astype("f4").T, 1e-4, "f4")

    @case
    def wmma_iu8():
        A, B = rng.integers(-128, 128, (16, 16)).astype("i1"), rng.integers(-128, 128, (16, 16)).astype("i1")
        k = tile(
            "llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v2i32", V(i32, 8), V(i32, 2), V(i32, 2), V(i32, 8), 2, 8, "iu"
        )
        eq(unpack12(gomat(k, half(A), half(B), 8, "i4")), A.astype("i4") @ B.astype("i4").T, 0, "i4")


if arch.startswith("gfx9"):

    @case
    def mfma_16x16x16_f16():
        A, B = rng.standard_normal((16, 16)).astype("f2"), rng.standard_normal((16, 16)).astype("f2")
        q = lambda X: np.stack([X[l % 16, 4 * (l // 16) : 4 * (l // 16) + 4] for l in range(64)])
        k = tile("llvm.amdgcn.mfma.f32.16x16x16f16", V(f32, 4), V(f16, 4), V(f16, 4), V(f32, 4), 2, 4, "mfma")
        r = gomat(k, q(A), q(B), 4, "f4")
        D = np.zeros((16, 16), "f4")
        for l in range(64):
            for i in range(4):
                D[4 * (l // 16) + i, l % 16] = r[l, i]
        eq(D, A.astype("f4") @ B.astype("f4").T, 1e-4, "f4")


NA = {
    "gfx11": ["sdot4", "cvt_pk_fp8", "dpp_row_bcast15"],
    "gfx12": ["sdot4", "dpp_row_bcast15"],
    "gfx90a": ["cvt_pk_fp8"],
    "gfx9": ["sudot4", "dpp_row_xmask8", "dpp8", "permlanex16", "permlane64"],
}
if __name__ == "__main__":
    flt = sys.argv[2] if len(sys.argv) > 2 else ""
    ok, na, bad = [], [], []
    for n, f in C.items():
        if flt not in n:
            continue
        if any(arch.startswith(p) and n in l for p, l in NA.items()):
            na.append(n)
            continue
        try:
            f()
            ok.append(n)
        except BaseException as e:
            bad.append(n)
            print(f"FAIL {n}: {type(e).__name__}: {' | '.join(str(e).splitlines()[:2])[:200]}", flush=True)
    print(f"{arch}: {len(ok)} passed, {len(bad)} failed ({' '.join(bad)}), {len(na)} not on this architecture")
