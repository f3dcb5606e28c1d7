"""VGPU_CHECK: each check against kernels with a seeded fault, and the same kernels without it.
TINYGRAD=... VGPU_DEVICES=gfx1100:4GiB,gfx1201:4GiB,gfx942:4GiB,gfx90a:4GiB enter -b $PWD:/proj -C /proj python -m pytest -q tests/test_checks.py
(with other devices: one test that runs these in a process of their own)"""

import os, subprocess, sys

DEVICES = "gfx1100:4GiB,gfx1201:4GiB,gfx942:4GiB,gfx90a:4GiB"
import vgpu

vgpu.install(patch_numba=False)
import numpy as np, pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checks_util import compile_cl, listing, patch
import vgpu_checks

OWN = len(vgpu.device_list()) == 4


@pytest.fixture(autouse=True)
def own(request):
    if OWN == (request.node.name == "test_in_own_process"):
        pytest.skip("see test_in_own_process")


def test_in_own_process():
    r = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "VGPU_DEVICES": DEVICES},
        capture_output=True,
        text=True,
    )
    assert r.returncode == 0 and " passed" in r.stdout, r.stdout[-4000:]


ARCHS = ("gfx1100", "gfx1201", "gfx942", "gfx90a")
f4 = lambda n, x=1: np.full(n, x, np.float32)
i4 = lambda n, x=0: np.full(n, x, np.int32)
pytestmark = pytest.mark.filterwarnings("ignore")


def problems(what, co, kernel, grid, block, args, **cfg):
    """Problems that the checks report for one launch."""
    vgpu.reset()
    vgpu.check_code(what)
    try:
        vgpu.run_code_object(co, kernel, grid, block, args)
        return vgpu.problems()
    finally:
        vgpu.check_code("")


def expect(p, *words):
    assert p, "nothing was reported"
    assert any(all(w in x for w in words) for x in p), p


BASIC = """
kernel void add(global float *a, global float *o) { o[TID] = a[TID] + a[TID + 64] * 2.0f; }
kernel void swap(global float *a, global float *o) { local float t[256]; t[TID] = a[TID]; LOCAL_BARRIER o[TID] = t[255 - TID]; }
kernel void reuse(global float *a, global float *o) { local float t[256]; t[255 - TID] = a[TID]; LOCAL_BARRIER float x = t[TID]; LOCAL_BARRIER t[(TID * 5 + 70) & 255] = x + 1; LOCAL_BARRIER o[TID] = t[TID]; }
"""


def mem(arch):
    return r"s_wait_loadcnt" if arch == "gfx1201" else r"s_waitcnt vmcnt"


def lgkm(arch):
    return r"s_wait_dscnt" if arch == "gfx1201" else r"s_waitcnt lgkmcnt"


def scal(arch):
    return r"s_wait_kmcnt" if arch == "gfx1201" else r"s_waitcnt lgkmcnt"


def add(a, arch, *p, **k):
    return problems("waits", patch(a, "add", arch, *p, **k) if p else a, "add", 1, 64, [f4(128), f4(64)])


def swap(a, arch, *p, kernel="swap", **k):
    return problems("waits", patch(a, kernel, arch, *p, **k) if p else a, kernel, 1, 256, [f4(256), f4(256)])


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_clean(arch):
    co = compile_cl(BASIC, arch)
    assert not add(co, arch) and not swap(co, arch) and not swap(co, arch, kernel="reuse")


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_load_not_waited_for(arch):
    expect(add(compile_cl(BASIC, arch), arch, mem(arch) + r"(cnt)?.*0", which=None), "waits", " reads v", "global_load")


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_scalar_load_not_waited_for(arch):
    expect(add(compile_cl(BASIC, arch), arch, scal(arch)), "waits", " reads s", "s_load")


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_lds_read_not_waited_for(arch):
    expect(swap(compile_cl(BASIC, arch), arch, lgkm(arch), which=-1), "waits", " reads v", "ds_")


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_lds_write_not_waited_for_before_barrier(arch):
    expect(
        swap(compile_cl(BASIC, arch), arch, lgkm(arch), before="s_barrier"),
        "reads LDS byte",
        "not waited for before a barrier",
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_no_barrier(arch):
    expect(swap(compile_cl(BASIC, arch), arch, "s_barrier", which=None), "LDS byte", "no barrier")


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_lds_reused_without_barrier(arch):
    """Second barrier of `reuse` (data read, then overwritten by another wave)."""
    co = compile_cl(BASIC, arch)
    if arch == "gfx1201":
        co = patch(co, "reuse", arch, "s_barrier_wait", which=1)
    expect(
        swap(co, arch, "s_barrier_signal" if arch == "gfx1201" else "s_barrier", which=1, kernel="reuse"),
        "writes LDS byte",
        "another wave reads",
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_counts(arch):
    """Two loads in flight, the first used after a wait for all but one: right; for all but two: wrong."""
    ld = "global_load_b32" if arch.startswith("gfx1") else "global_load_dword"
    w = "s_wait_loadcnt {}" if arch == "gfx1201" else "s_waitcnt vmcnt({})"

    def run(n, dst="v9"):
        src = f'kernel void k(global float *a, global float *o) {{ float x; __asm volatile("{ld} v8, %1, off\\n\\t{ld} {dst}, %1, off offset:4\\n\\t{w.format(n)}\\n\\tv_mov_b32 %0, v8\\n\\t{w.format(0)}" : "=&v"(x) : "v"(a + TID) : "v8", "v9", "memory"); o[TID] = x; }}'
        return problems("waits", compile_cl(src, arch), "k", 1, 64, [f4(128), f4(64)])

    assert not run(1)
    expect(run(2), "reads v8")
    expect(run(1, "v8"), "reads v8")
    assert not run(0, "v8")


@pytest.mark.parametrize("arch", ARCHS)
def test_waits_overwritten_destination(arch):
    ld = "global_load_b32" if arch.startswith("gfx1") else "global_load_dword"
    w = "s_wait_loadcnt 0" if arch == "gfx1201" else "s_waitcnt vmcnt(0)"

    def run(a, b):
        return problems(
            "waits",
            compile_cl(
                f'kernel void k(global float *a, global float *o) {{ float x; __asm volatile("{ld} v8, %1, off\\n\\t{a}\\n\\tv_mov_b32 v8, 1.0\\n\\t{b}\\n\\tv_mov_b32 %0, v8" : "=&v"(x) : "v"(a + TID) : "v8", "memory"); o[TID] = x; }}',
                arch,
            ),
            "k",
            1,
            64,
            [f4(128), f4(64)],
        )

    assert not run(w, "s_nop 0")
    expect(run("s_nop 0", w), "overwrites v8")


def matrix(arch, body, n=64):
    return problems(
        "waits",
        compile_cl(
            f'kernel void k(global float *o) {{ __asm volatile("{body}" ::: {", ".join(chr(34) + "v" + str(i) + chr(34) for i in range(8, 48))}); o[TID] = 1; }}',
            arch,
        ),
        "k",
        1,
        32 if arch.startswith("gfx1") else 64,
        [f4(n)],
    )


@pytest.mark.parametrize("arch", ("gfx1100", "gfx1201"))
def test_waits_wmma_result_as_operand(arch):
    ab = ("v[16:23]", "v[24:31]", "v[8:15]") if arch == "gfx1100" else ("v[16:19]", "v[20:23]", "v[8:11]")
    one = f"v_wmma_f32_16x16x16_f16 v[8:15], {ab[0]}, {ab[1]}, v[8:15]"
    two = f"v_wmma_f32_16x16x16_f16 v[32:39], {ab[2]}, {ab[1]}, v[32:39]"
    assert not matrix(arch, f"{one}\\n\\tv_nop\\n\\t{two}") and not matrix(
        arch, f"{one}\\n\\t{one}\\n\\tv_mov_b32 v40, 0\\n\\t{two}"
    )
    expect(matrix(arch, f"{one}\\n\\t{two}"), "as A or B")
    expect(matrix(arch, f"{one}\\n\\ts_nop 4\\n\\t{two}"), "as A or B")


@pytest.mark.parametrize("arch", ("gfx942", "gfx90a"))
def test_waits_mfma_wait_states(arch):
    one, need = (
        ("v_mfma_f32_16x16x16_f16 v[8:11], v[16:17], v[18:19], v[8:11]", 7)
        if arch == "gfx942"
        else ("v_mfma_f32_16x16x16f16 v[8:11], v[16:17], v[18:19], v[8:11]", 11)
    )
    b = "s_nop 7\\n\\t"
    for use, word in (
        ("v_add_f32 v20, v9, v9", "reads the result"),
        ("v_mov_b32 v8, 0", "overwrites the result"),
        (one.replace("v[8:11], v[16:17]", "v[24:27], v[10:11]", 1).replace("v[8:11]", "v[24:27]"), "reads the result"),
    ):
        assert not matrix(arch, f"{b}{one}\\n\\ts_nop {need - 1}\\n\\t{use}")
        expect(
            matrix(arch, f"{b}{one}\\n\\ts_nop {need - 2}\\n\\t{use}"),
            word,
            f"after {need - 1} wait states, needs {need}",
        )
    assert not matrix(arch, f"{b}{one}\\n\\t{one}\\n\\t{one}")  # C of the next: interlocked
    assert not matrix(arch, f"v_mov_b32 v16, 0\\n\\ts_nop 1\\n\\t{one}")
    expect(matrix(arch, f"v_mov_b32 v16, 0\\n\\ts_nop 0\\n\\t{one}"), "wait states before, needs 2")


@pytest.mark.parametrize("arch", ("gfx942", "gfx90a"))
def test_waits_other_wait_states(arch):
    """Between vector instructions of gfx9: name, first, second, wait states needed (gfx942 only where the last is 1)."""
    for a, b, need, only in (
        ("v_readfirstlane_b32 s20, v8", "v_readlane_b32 s21, v9, s20", 4, 0),
        ("v_mov_b32 v8, 0", "v_mov_b32 v9, v8 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", 2, 0),
        ("v_cmp_gt_u32 vcc, v8, v9", "v_cndmask_b32 v10, v11, v12, vcc", 2, 1),
        ("v_exp_f32 v8, v9", "v_add_f32 v10, v8, v8", 1, 1),
        ("v_mov_b32 v8, 0", "v_readfirstlane_b32 s20, v8", 1, 1),
    ):

        def run(n):
            return problems(
                "waits",
                compile_cl(
                    f'kernel void k(global float *o) {{ __asm volatile("s_nop 7\\n\\t{a}\\n\\t{("s_nop " + str(n - 1)) if n else ""}\\n\\t{b}\\n\\ts_nop 7" ::: "v8", "v9", "v10", "v11", "v12", "s20", "s21", "s22", "vcc"); o[TID] = 1; }}',
                    arch,
                ),
                "k",
                1,
                64,
                [f4(64)],
            )

        assert not run(need), (a, b)
        if only and arch == "gfx90a":
            assert not run(0), (a, b)
        else:
            expect(run(need - 1), f"{need - 1} wait states before, needs {need}")


@pytest.mark.parametrize("arch", ARCHS)
def test_order_guess_of_a_compare_and_swap_loop(arch):
    """A plain first read is fine where a compare-and-swap of that word follows, and only there."""
    src = """kernel void sum(global uint *p, global float *o) { uint a = p[0], b; for (;;) { uint e = a; if (__opencl_atomic_compare_exchange_strong((global atomic_uint *)p, &e, a + 1, memory_order_relaxed, memory_order_relaxed, memory_scope_device)) break; a = e; } o[TID] = 1; }
kernel void look(global uint *p, global uint *o) { if (BID == 0) __opencl_atomic_fetch_add((global atomic_uint *)p, 1, memory_order_relaxed, memory_scope_device); else o[BID * 64 + TID] = p[0]; }"""
    co = compile_cl(src, arch)
    assert not problems("order", co, "sum", 3, 1, [i4(4), f4(64)])
    expect(problems("order", co, "look", 2, 1, [i4(4), i4(256)]), "order", "no atomic with acquire")


LAST = """
kernel void last(global int *a, global int *cnt, global int *part, global int *o, int nb) {
  local int l; part[BID * 256 + TID] = a[BID * 256 + TID] + 1; __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent"); LOCAL_BARRIER
  if (TID == 0) l = __opencl_atomic_fetch_add((global atomic_int *)cnt, 1, memory_order_relaxed, memory_scope_device) == nb - 1; LOCAL_BARRIER
  if (l) { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent"); int s = 0; for (int b = 0; b < nb; b++) s += part[b * 256 + (TID ^ 64)]; o[TID] = s; } }
kernel void behind(global int *part, global int *o) { part[BID * 64 + TID] = TID; o[BID * 64 + TID] = part[(BID ? BID - 1 : 0) * 64 + TID]; }
kernel void apart(global int *part, global int *o) { part[BID * 64 + TID] = TID; o[BID * 64 + TID] = part[BID * 64 + TID]; }
kernel void sums(global int *part, global int *o) { for (int i = 0; i < 4; i++) __opencl_atomic_fetch_add((global atomic_int *)&part[(TID + i) & 15], 1, memory_order_relaxed, memory_scope_device); o[BID * 64 + TID] = 1; }
kernel void halves(global short *part, global short *o) { part[BID] = 3; o[BID] = part[BID]; }
"""


def last(arch, *p, **k):
    co = compile_cl(LAST, arch)
    o = i4(256)
    r = problems(
        "order", patch(co, "last", arch, *p, **k) if p else co, "last", 4, 256, [i4(1024, 1), i4(1), i4(1024), o, 4]
    )
    return r


@pytest.mark.parametrize("arch", ARCHS)
def test_order_clean(arch):
    co = compile_cl(LAST, arch)
    assert not last(arch)
    assert not problems("order", co, "apart", 4, 64, [i4(256), i4(256)])
    assert not problems("order", co, "sums", 4, 64, [i4(16), i4(256)])
    assert not problems("order", co, "halves", 8, 1, [np.zeros(8, np.int16), np.zeros(8, np.int16)])


@pytest.mark.parametrize("arch", ARCHS)
def test_order_no_synchronisation(arch):
    expect(
        problems("order", compile_cl(LAST, arch), "behind", 4, 64, [i4(256), i4(256)]),
        "order",
        "no atomic with acquire",
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_order_store_not_waited_for(arch):
    expect(
        last(
            arch,
            {"gfx1100": "s_waitcnt_vscnt", "gfx1201": "s_wait_storecnt"}.get(arch, "s_waitcnt.*vmcnt"),
            before="s_barrier",
        ),
        "order",
        "not waited for",
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_order_no_acquire(arch):
    expect(
        last(
            arch,
            {
                "gfx1100": "buffer_gl1_inv",
                "gfx1201": "global_inv scope:SCOPE_DEV",
                "gfx942": "buffer_inv",
                "gfx90a": "buffer_wbinvl1",
            }[arch],
            which=None,
        ),
        "order",
        "not followed by an acquire",
    )


def test_order_no_write_back():
    expect(last("gfx942", "buffer_wbl2"), "order", "write its cache back")


def test_order_one_l0_for_two():
    expect(
        last("gfx1100", "buffer_gl0_inv", which=-1), "order", "not followed by an acquire"
    )  # WGP mode: each wave needs its own


STRIDE = (
    "kernel void k(global float *o) { local volatile float t[64 * %d + 64]; t[TID * %d] = TID; o[TID] = t[TID * %d]; }"
)


def lds(src, arch, block=64):
    vgpu.reset()
    vgpu.check_code("lds")
    n = vgpu.run_code_object(compile_cl(src, arch), "k", 1, block, [f4(64 * 4)])
    r = vgpu.lds_report(show=False)
    vgpu.check_code("")
    return next(k for k in r if k["arch"] == arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_lds_by_code_adds_up(arch):
    import vgpu_checks

    report = lds(STRIDE % (8, 8, 8), arch)
    code = {v["code_sha256"] for v in vgpu.loaded() if v["kernels"] == ["k"]}
    by_code = {c: v for c, v in vgpu_checks.lds_by_code().items() if v["arch"] == arch}
    assert by_code and by_code.keys() <= code
    ins = [i for v in by_code.values() for i in v["instructions"].values()]
    for name in ("executed", "ideal"):
        assert sum(i[name] for i in ins) == report[name] > 0
    assert [sum(i["cycles"][e] for i in ins) for e in (0, 1)] == list(report["cycles"])


@pytest.mark.parametrize("arch", ARCHS)
def test_lds_strides(arch):
    w = 2 if arch.startswith("gfx1") else 1
    for s, f in ((1, 1), (2, 2), (8, 8), (33, 1), (32, 32)):
        r = lds(STRIDE % (s, s, s), arch)
        assert r["factor"] == (f, f) and r["executed"] == 2 * w and r["ideal"] == 4, (s, r)


@pytest.mark.parametrize("arch", ARCHS)
def test_lds_b128(arch):
    """Rows of 16 bytes x lane at a stride: contiguous is free of conflicts; a row of 128 bytes is not, 144 is (padding)."""

    def run(s):
        return lds(
            f"kernel void k(global f4 *o) {{ local f4 t[64 * {s}]; *(local volatile f4 *)&t[TID * {s}] = TID; o[TID] = *(local volatile f4 *)&t[TID * {s}]; }}",
            arch,
        )

    a, b, c = run(1), run(8), run(9)
    assert a["factor"][0] == 1 and b["factor"][0] == 8 and c["factor"][0] == 1 and a["ideal"] == 16
    assert all("b128" in t["text"] for t in a["instructions"])
    if arch.startswith("gfx9"):
        assert a["factor"] == (1, 1) == c["factor"] and "Composable Kernel" in a["instructions"][0]["source"]
    else:
        assert a["factor"][1] > 1 and a["first"] == a["ideal"]


def test_lds_matrix_counts():
    v = ", ".join(f'"v{i}"' for i in range(8, 40))
    r = lds(
        f'kernel void k(global float *o) {{ local volatile float t[64]; t[TID] = 1; __asm volatile("v_wmma_f32_16x16x16_f16 v[8:15], v[16:23], v[24:31], v[8:15]" ::: {v}); o[TID] = t[TID]; }}',
        "gfx1100",
        32,
    )
    assert r["matrix"] == 1 and r["per_matrix"] == (2, 2)


def test_disassembly_is_understood():
    """Registers and sizes of a few instructions."""
    P = vgpu_checks.parse
    d = P("v_dual_fmac_f32 v1, v2, v3 :: v_dual_mov_b32 v4, s5", "gfx1100")
    assert d["r"] == [(1, 1, 3), (2, 1, 2), (3, 1, 2), (4, 1, 1), (517, 1, 2)]
    d = P("global_load_d16_hi_b16 v7, v[2:3], off offset:-8", "gfx1100")
    assert (d["bytes"], d["off"], d["vaddr"], d["saddr"]) == (2, -8, 2, 0xFFFF)
    d = P("global_atomic_add_u32 v2, v2, v3, s[6:7] th:TH_ATOMIC_RETURN scope:SCOPE_DEV", "gfx1201")
    assert d["ret"] == 1 and d["saddr"] == 6 and d["vaddr"] == 2 and d["r"][0] == (2, 1, 1)
    d = P("global_atomic_add v2, v3, s[6:7]", "gfx942")
    assert d["ret"] == 0 and d["t0"] == vgpu_checks.T_VM and d["vaddr"] == 2
    d = P("ds_write2st64_b64 v1, v[2:3], v[4:5] offset0:1 offset1:3", "gfx942")
    assert (d["naddr"], d["off"], d["off2"], d["bytes"]) == (2, 512, 1536, 8)
    d = P("ds_load_2addr_b32 v[1:2], v3 offset1:4", "gfx1100")
    assert (d["off"], d["off2"], d["bytes"], d["vaddr"], d["ldsop"]) == (0, 16, 4, 3, 1)
    assert (
        P("s_waitcnt vmcnt(3) lgkmcnt(0)", "gfx942")["wait"] == [3, 255, 0, 255]
        and P("s_waitcnt_vscnt null, 0x0", "gfx1100")["wait"] == [255, 0, 255, 255]
        and P("s_wait_loadcnt_dscnt 0x205", "gfx1201")["wait"] == [2, 255, 5, 255]
    )
    assert (
        P("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]", "gfx942")["passes"] == 8
        and P("v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, v[0:3]", "gfx942")["xdl"] == 0
    )
