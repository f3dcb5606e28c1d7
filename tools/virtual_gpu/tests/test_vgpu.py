"""Virtual GPU: runtime behaviour seen through plain numba-hip.   TINYGRAD=... enter -b $PWD:/proj -C /proj python -m pytest -q tests"""

import gc, math, os, subprocess, sys, tempfile, textwrap, time, warnings

os.environ.setdefault("VGPU_CODEGEN", "own")  # numba-hip's own kernels, whatever comgr is installed
import vgpu

vgpu.install()
import numpy as np, pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checks_util import clang

warnings.simplefilter("ignore")
from numba import hip, float32
from numba.hip.hipdrv.driver import HipAPIError, driver

HERE = os.path.dirname(os.path.abspath(__file__))


@hip.jit
def add1(a, o):
    i = hip.grid(1)
    if i < o.size:
        o[i] = a[i] + 1


@hip.jit
def oob(o, n):
    i = hip.grid(1)
    o[n + i] = 7


@hip.jit
def at(o, n):
    o[n] = 7


@hip.jit
def spin(o):
    while o[0] >= 0:
        o[0] += 0


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    hip.current_context().memory_manager.deallocations.clear()
    vgpu.reset()
    yield
    vgpu.clear_failures()
    vgpu.config(ASYNC=0, STICKY=0, FREE_BYTES="20GiB", STRICT_HOST=0, MAX_INSTS=4000000000)


def code(ei):
    return int(ei.value.code)


def py(src, **env):
    r = subprocess.run(
        [
            sys.executable,
            "-c",
            "import vgpu; vgpu.install(); import numpy as np; from numba import hip\n" + textwrap.dedent(src),
        ],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert r.returncode == 0, r.stderr[-1500:]
    return r.stdout.strip()


def test_identity():
    d = hip.gpus[0]
    assert (
        d.name == "AMD Radeon RX 7900 XT (virtual)"
        and d.amdgpu_arch == "gfx1100"
        and d.WARP_SIZE == 32
        and d.uuid.startswith("GPU-")
    )
    m = hip.current_context().get_memory_info()
    assert m.total == 20 << 30 and m.free <= m.total


def test_memory_accounting():
    ctx = hip.current_context()
    f0 = ctx.get_memory_info().free
    a = hip.device_array(1 << 20, "u1")
    assert f0 - ctx.get_memory_info().free == 1 << 20
    del a
    ctx.memory_manager.deallocations.clear()
    assert ctx.get_memory_info().free == f0 and vgpu.report()["devices"][0]["peak"] >= 1 << 20


def test_fresh_memory_is_poisoned():
    assert (hip.device_array(1000, "u1").copy_to_host() == 0xCB).all()


def test_streams_events():
    w = hip.device_array(4, "f4")
    add1[1, 4](w, w)  # the first launch of all translates instructions, for seconds
    s = hip.stream()
    e0, e1 = hip.event(), hip.event()
    a = np.arange(5000, dtype="f4")
    e0.record(s)
    d = hip.to_device(a, stream=s)
    o = hip.device_array(5000, "f4", stream=s)
    add1[40, 128, s](d, o)
    e1.record(s)
    r = o.copy_to_host(stream=s)
    s.synchronize()
    assert (r == a + 1).all() and e1.query() and 0 < hip.event_elapsed_time(e0, e1) < 5000


def test_stream_callback():
    got = []
    s = hip.stream()
    s.add_callback(lambda st, status, arg: got.append((status, arg)), 42)
    s.synchronize()
    assert got == [(0, 42)]


def test_pinned_and_mapped():
    p = hip.pinned_array(100, "f4")
    p[:] = 3
    d = hip.to_device(p)
    assert (d.copy_to_host() == 3).all()
    m = hip.mapped_array(100, "f4")
    m[:] = 1
    o = hip.device_array(100, "f4")
    add1[1, 128](m, o)
    assert (o.copy_to_host() == 2).all()
    with hip.pinned(np.zeros(10)):
        pass


def test_async_mode_defers_until_sync():
    """VGPU_ASYNC=1: a launch does nothing until something waits for it (worst legal order)."""
    vgpu.config(ASYNC=1)
    s = hip.stream()
    a = hip.to_device(np.zeros(64, "f4"))
    o = hip.to_device(np.zeros(64, "f4"))
    h = hip.pinned_array(64, "f4")
    h[:] = -1
    add1[1, 64, s](a, o)
    e = hip.event()
    e.record(s)
    o.copy_to_host(h, stream=s)
    assert vgpu.report()["pending"] == 3 and not e.query() and (h == -1).all()
    s.synchronize()
    assert (h == 1).all() and e.query() and vgpu.report()["pending"] == 0


def test_async_mode_cross_stream():
    vgpu.config(ASYNC=1)
    s, t = hip.stream(), hip.stream()
    a = hip.to_device(np.zeros(64, "f4"))
    o = hip.to_device(np.zeros(64, "f4"))
    q = hip.to_device(np.zeros(64, "f4"))
    h = hip.pinned_array(64, "f4")
    ev = hip.event()
    add1[1, 64, s](a, o)
    ev.record(s)
    ev.wait(t)
    add1[1, 64, t](o, q)
    q.copy_to_host(h, stream=t)
    t.synchronize()
    assert (h == 2).all()
    add1[1, 64, s](q, o)
    add1[1, 64, t](o, q)
    q.copy_to_host(h, stream=t)
    t.synchronize()
    assert (h == 3).all() is np.False_ or (h != 4).any()  # no event: t must not see s's work
    s.synchronize()


def test_async_mode_makes_progress():
    vgpu.config(ASYNC=1, ASYNC_DELAY=50)
    s = hip.stream()
    a = hip.to_device(np.zeros(64, "f4"))
    h = hip.pinned_array(64, "f4")
    add1[1, 64, s](a, a)
    a.copy_to_host(h, stream=s)
    e = hip.event()
    e.record(s)
    t = time.time()
    while not e.query():
        assert time.time() - t < 5
    got = []
    add1[1, 64, s](a, a)
    s.add_callback(lambda *x: got.append(1))
    time.sleep(0.5)
    assert got == [1] and h[0] == 1
    vgpu.config(ASYNC_DELAY=500)


def test_async_error_surfaces_at_sync():
    vgpu.config(ASYNC=1)
    o = hip.device_array(4, "f4")
    oob[1, 1](o, 1 << 30)
    with pytest.raises(HipAPIError) as ei:
        hip.synchronize()
    assert code(ei) == 700


def test_out_of_memory_is_numba_hips_own():
    vgpu.config(FREE_BYTES="10MiB")
    with pytest.raises(HipAPIError) as ei:
        hip.device_array(11 << 20, "u1")
    assert code(ei) == 2 and "hipErrorOutOfMemory" in str(ei.value)
    assert hip.current_context().get_memory_info().free == 10 << 20
    hip.device_array(9 << 20, "u1")


def test_fail_nth_malloc():
    vgpu.fail("hipMalloc", nth=2, error=2)
    a = hip.device_array(16, "u1")
    n = vgpu.calls("hipMalloc")
    b = hip.device_array(16, "u1")  # numba-hip frees pending memory and retries once
    assert vgpu.calls("hipMalloc") == n + 2
    vgpu.fail("hipMalloc", error=2, repeat=True)
    with pytest.raises(HipAPIError) as ei:
        hip.device_array(16, "u1")
    assert code(ei) == 2


@pytest.mark.parametrize(
    "pat,err,act",
    [
        ("hipDeviceSynchronize", 719, lambda a: hip.synchronize()),
        ("hipMemcpyDtoH", 700, lambda a: a.copy_to_host()),
        ("hipModuleLaunchKernel", 98, lambda a: add1[1, 32](a, a)),
        ("hipMemcpy*", 1, lambda a: hip.to_device(np.zeros(3))),
        ("hipStreamSynchronize", 999, lambda a: hip.stream().synchronize()),
        ("hipMemGetInfo", 100, lambda a: hip.current_context().get_memory_info()),
    ],
)
def test_injected_failures(pat, err, act):
    a = hip.to_device(np.zeros(32, "f4"))
    add1[1, 32](a, a)
    vgpu.fail(pat, error=err)
    with pytest.raises(HipAPIError) as ei:
        act(a)
    assert code(ei) == err
    act(a)  # only once


def test_counters_and_leaks():
    with vgpu.expect(hipDeviceSynchronize=0, hipMalloc=3, hipModuleLaunchKernel=1, hipMemcpyHtoD=1):
        d = hip.to_device(np.zeros(64, "f4"))
        o = hip.device_array(64, "f4")
        x = hip.device_array(9, "i8")
        add1[1, 64](d, o)
    n = len(vgpu.live())
    del d, o, x
    gc.collect()
    hip.current_context().memory_manager.deallocations.clear()
    assert len(vgpu.live()) == n - 3 and vgpu.calls("hipFree") == 3


def test_write_past_end_is_reported():
    o = hip.device_array(10, "f4")
    oob[1, 1](o, 10)
    assert vgpu.problems() and "PAST its end" in vgpu.problems()[0]


def test_write_before_start_is_reported():
    o = hip.device_array(10, "f4")
    at[1, 1](o, np.uint64(2**64 - 1))
    assert "BEFORE its start" in vgpu.problems()[0]


def test_wild_access_is_illegal_address():
    o = hip.device_array(10, "f4")
    with pytest.raises(HipAPIError) as ei:
        oob[1, 1](o, 1 << 20)
    assert code(ei) == 700 and "memory fault" in vgpu.problems()[0]
    add1[1, 10](o, o)  # usable again (STICKY=0)


def test_sticky_error():
    o = hip.device_array(10, "f4")
    vgpu.config(STICKY=1)
    with pytest.raises(HipAPIError):
        oob[1, 1](o, 1 << 20)
    with pytest.raises(HipAPIError) as ei:
        hip.synchronize()
    assert code(ei) == 700


def test_use_after_free():
    out = py("""
        a = hip.to_device(np.zeros(100, 'f4')); v = a.__cuda_array_interface__['data'][0]; o = hip.device_array(100, 'f4')
        @hip.jit
        def k(a, o): o[0] = a[0]
        b = hip.as_cuda_array(type('X', (), {'__cuda_array_interface__': dict(a.__cuda_array_interface__)})())
        del a; hip.current_context().memory_manager.deallocations.clear()
        try: k[1, 1](b, o); print('no error')
        except Exception as e: print(int(e.code), 'FREED' in vgpu.problems()[0])
        try: b.copy_to_host(); print('no error')
        except Exception as e: print(int(e.code))
    """)
    assert out.split() == ["700", "True", "1"], out


def test_bad_launch_configurations():
    o = hip.device_array(10, "f4")
    add1[1, 32](o, o)
    for g, b in [((1,), 1025), ((1,), (32, 32, 2))]:
        with pytest.raises(HipAPIError) as ei:
            add1[g, b](o, o)
        assert code(ei) == 9


def test_endless_kernel_times_out():
    vgpu.config(MAX_INSTS=200000)
    o = hip.to_device(np.zeros(1, "i4"))
    with pytest.raises(HipAPIError) as ei:
        spin[1, 1](o)
    assert code(ei) == 702


def test_strict_host():
    """VGPU_STRICT_HOST=1: device memory cannot be touched by the host outside HIP calls."""
    out = subprocess.run(
        [
            sys.executable,
            "-c",
            "import vgpu,ctypes; vgpu.install(); from numba import hip; import numpy as np\na=hip.to_device(np.ones(8,'f4')); assert a.copy_to_host().sum()==8; print('ok',flush=True); ctypes.string_at(a.__cuda_array_interface__['data'][0],4)",
        ],
        env={**os.environ, "VGPU_STRICT_HOST": "1"},
        capture_output=True,
        text=True,
    )
    assert out.stdout.strip() == "ok" and out.returncode == -11


def test_launch_hook():
    seen = []
    vgpu.launch_hook(lambda name, mod, dims, karg, n: seen.append((name, dims)) or 0)
    o = hip.to_device(np.zeros(8, "f4"))
    try:
        add1[3, 8](o, o)
    finally:
        vgpu.launch_hook(None)
    assert "add1" in seen[0][0] and seen[0][1] == [3, 1, 1, 8, 1, 1, 0] and (o.copy_to_host() == 0).all()


def test_kernel_report():
    o = hip.device_array(4, "f4")
    add1[1, 4](o, o)
    k = [k for k in vgpu.kernels() if "add1" in k["name"]][0]
    assert k["arch"] == "gfx1100" and k["vgpr"] > 0 and k["scratch"] == 0 and k["spill_vgpr"] == 0


def test_two_devices():
    out = py(
        """
        print(len(hip.gpus), hip.gpus[1].name, hip.gpus[1].MULTIPROCESSOR_COUNT)
        with hip.gpus[1]: m = hip.current_context().get_memory_info(); print(m.total >> 20); a = hip.device_array(1 << 20, 'u1')
        r = vgpu.report()['devices']; print(r[0]['used'], r[1]['used'])
        print(hip.gpus[1].amdgpu_arch)            # numba-hip 0.2.1 asks device 0 for every device's architecture
        @hip.jit
        def k(a): a[0] = 1
        with hip.gpus[1]:
            try: k[1, 1](a); print('launched')
            except Exception as e: print(int(e.code))
    """,
        VGPU_DEVICES="gfx1100:20GiB,gfx1036:512MiB",
    ).split("\n")
    assert (
        out[0] == "2 AMD Radeon Graphics (virtual APU) 1"
        and out[1] == "512"
        and out[2] == "0 1048576"
        and out[3] == "gfx1100"
        and out[4] == "209"
    ), out


def test_env_faults():
    assert py(
        """
        print(hip.current_context().get_memory_info().free >> 20)
        hip.device_array(4, 'u1')
        try: hip.device_array(4, 'u1'); print('no error')
        except Exception as e: print(int(e.code))
    """,
        VGPU_FREE_BYTES="300MiB",
        VGPU_FAIL="hipMalloc:2:hipErrorIllegalState",
    ).split() == ["300", "401"]


def test_no_device():
    r = subprocess.run(
        [
            sys.executable,
            "-c",
            "import vgpu; vgpu.install(); from numba import hip; print(hip.is_available(), len(list(hip.list_devices())) if False else '')",
        ],
        env={**os.environ, "VGPU_FAIL": "hipInit:1:hipErrorNoDevice+"},
        capture_output=True,
        text=True,
    )
    assert r.stdout.startswith("False"), r.stdout + r.stderr[-500:]


def test_threads():
    import threading

    errs = []

    def w(i):
        try:
            a = hip.to_device(np.full(256, i, "f4"))
            o = hip.device_array(256, "f4")
            add1[2, 128](a, o)
            assert (o.copy_to_host() == i + 1).all()
        except Exception as e:
            errs.append(e)

    ts = [threading.Thread(target=w, args=(i,)) for i in range(6)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    assert not errs


def test_random_wave_schedule_finds_races():
    """VGPU_SCHED=seed preempts waves at random instructions: correct kernels stay correct, a missing barrier shows."""

    @hip.jit
    def good(a, o):
        s = hip.shared.array(256, float32)
        t = hip.threadIdx.x
        for r in range(4):
            s[t] = a[t] + r
            hip.syncthreads()
            o[r, t] = s[(t + 37 * (r + 1)) & 255]
            hip.syncthreads()

    @hip.jit
    def racy(a, o):  # second barrier missing: write after read
        s = hip.shared.array(256, float32)
        t = hip.threadIdx.x
        for r in range(4):
            s[t] = a[t] + r
            hip.syncthreads()
            o[r, t] = s[(t + 37 * (r + 1)) & 255]

    a = np.arange(256, dtype="f4")
    ref = np.stack([np.roll(a, -37 * (r + 1)) + r for r in range(4)])
    d = hip.to_device(a)
    bad = 0
    for seed in (0, 1, 2, 3, 4, 5):
        vgpu.config(SCHED=seed)
        o = hip.device_array((4, 256), "f4")
        good[1, 256](d, o)
        assert (o.copy_to_host() == ref).all(), seed
        o = hip.device_array((4, 256), "f4")
        racy[1, 256](d, o)
        bad += not (o.copy_to_host() == ref).all()
    vgpu.config(SCHED=0)
    assert bad >= 3, bad


def code_object(src, arch="gfx1100"):
    with tempfile.TemporaryDirectory() as d:
        open(d + "/k.c", "w").write(
            "#define G __attribute__((address_space(1)))\n#define KERNEL __attribute__((amdgpu_kernel)) void\n"
            + textwrap.dedent(src)
        )
        subprocess.run(
            [
                *clang(),
                "-target",
                "amdgcn-amd-amdhsa",
                f"-mcpu={arch}",
                "-nogpulib",
                "-O2",
                "-c",
                "-o",
                d + "/k.o",
                d + "/k.c",
            ],
            check=True,
        )
        subprocess.run([vgpu.LLD, "-shared", "-o", d + "/k.co", d + "/k.o"], check=True)
        return open(d + "/k.co", "rb").read()


def test_run_code_object():
    """A kernel that did not come from numba: arguments in the kernarg ABI, hidden arguments, dynamic LDS, trailing pointers left out."""
    co = code_object("""
        extern __attribute__((address_space(3))) float lds[];
        KERNEL saxpy(G const float *x, short h, G float *y, float a, int n, G int *sizes, G void *unused) {
          int t = __builtin_amdgcn_workitem_id_x(), i = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + t;
          lds[t] = i < n ? x[i] : 0; __builtin_amdgcn_s_barrier(); if (i < n) y[i] += a * lds[t] + h;
          if (!i) { sizes[0] = __builtin_amdgcn_workgroup_size_x(); sizes[1] = __builtin_amdgcn_grid_size_x(); sizes[2] = unused != 0; } }
    """)
    x, y, z = np.arange(300, dtype="f4"), np.ones(300, "f4"), np.full(3, -1, "i4")
    with vgpu.profile() as p:
        k = vgpu.run_code_object(co, "saxpy", 5, 64, [x, 7, y, 0.5, np.int32(300), z], shared=256)
    assert (
        (y == 8 + x / 2).all()
        and z.tolist() == [64, 320, 0]
        and k["arch"] == "gfx1100"
        and p.kernels["saxpy"]["waves"] == 10
        and vgpu.problems() == []
    )
    d = hip.to_device(x)
    y[:] = 1
    vgpu.run_code_object(co, "saxpy", (5,), (64, 1, 1), [d, 7, y, 0.5, 300, z], shared=256)
    assert (y == 8 + x / 2).all()
    with pytest.raises(TypeError):
        vgpu.run_code_object(co, "saxpy", 5, 64, [x, 7, y])
    with pytest.raises(RuntimeError, match="hipErrorNotFound"):
        vgpu.run_code_object(co, "nothing", 5, 64, [])
    with pytest.raises(RuntimeError, match="VGPU_DEVICES=gfx90a"):
        vgpu.run_code_object(code_object("KERNEL k(void) {}", "gfx90a"), "k", 1, 1, [])


def test_profile():
    a = hip.to_device(np.zeros(64, "f4"))
    o = hip.device_array(64, "f4")

    @hip.jit
    def ex(a, o):
        i = hip.grid(1)
        o[i] = math.exp2(a[i]) if i < 1000 else 0.0

    ex[1, 64](a, o)
    n = vgpu.report()["insts"]
    with vgpu.profile() as p:
        ex[1, 64](a, o)
        ex[2, 32](a, o)
        add1[1, 64](a, o)
    n = vgpu.report()["insts"] - n
    e = next(v for k, v in p.kernels.items() if "ex" in k and v["launches"] == 2)
    assert sum(v["insts"] for v in p.kernels.values()) == n and len(p.kernels) == 2
    assert (
        e["waves"] == 4
        and e["ops"]["s_endpgm"] == 4
        and e["classes"]["transcendental"] == 4
        and e["cycles"]["transcendental"] == 16
        and e["classes"]["global"] >= 8
        and e["classes"]["matrix"] == 0
        and "transcendental" in str(p)
    )
    ex[1, 64](a, o)
    assert (
        vgpu.profile_report().keys() == p.kernels.keys()
        and sum(v["insts"] for v in vgpu.profile_report().values()) == n
    )  # off
    vgpu.profile(True)
    add1[1, 64](a, o)
    r = vgpu.profile_report()
    vgpu.profile(False)
    assert len(r) == 1 and next(iter(r.values()))["launches"] == 1


def test_op_classes():
    for c, names in {
        "matrix": "v_wmma_f32_16x16x16_f16 v_mfma_f32_32x32x8_f16 v_smfmac_f32_16x16x32_f16",
        "transcendental": "v_exp_f32 v_rcp_iflag_f32 v_rsq_f16",
        "vector": "v_dual_mul_f32::v_dual_add_f32 v_cndmask_b32 v_pk_fma_f16",
        "scalar": "s_load_b128 s_cbranch_scc0 s_endpgm",
        "lds": "ds_load_b128 ds_swizzle_b32",
        "global": "global_load_b128 buffer_load_dword flat_store_b32",
        "scratch": "scratch_load_b32",
        "wait": "s_waitcnt s_wait_loadcnt s_barrier s_barrier_signal s_delay_alu buffer_gl0_inv",
    }.items():
        for n in names.split():
            assert vgpu.op_class(n) == c, n


def test_no_checkout_named():
    r = subprocess.run(
        [
            sys.executable,
            "-c",
            "import vgpu, numpy as np; vgpu.install(); from numba import hip\n@hip.jit\ndef k(a): a[0] = 1\nk[1, 1](hip.to_device(np.zeros(1)))",
        ],
        env={k: v for k, v in os.environ.items() if k != "TINYGRAD"},
        capture_output=True,
        text=True,
    )
    assert (
        r.returncode
        and "TINYGRAD (not set) must name a checkout of the public repository tinygrad/tinygrad" in r.stderr
    ), r.stderr[-800:]


@pytest.mark.parametrize("n", [1, 2])
def test_atomics_between_threads(n):
    out = subprocess.run(
        [sys.executable, HERE + "/kernels_suite.py", "gfx1100", "atomic"],
        env={**os.environ, "VGPU_THREADS": str(n)},
        capture_output=True,
        text=True,
    ).stdout
    assert " 0 failed" in out, out


@pytest.mark.parametrize(
    "arch,bad", [("gfx1100", 0), ("gfx1201", 1), ("gfx942", 0), ("gfx90a", 0)]
)  # gfx1201: fp8 conversions are not emulated
def test_intrinsics_suite(arch, bad):
    r = subprocess.run([sys.executable, HERE + "/intrinsics_suite.py", arch], capture_output=True, text=True)
    assert f" {bad} failed" in r.stdout, r.stdout[-2000:]


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201", "gfx942"])
def test_kernel_suite(arch):
    r = subprocess.run([sys.executable, HERE + "/kernels_suite.py", arch], capture_output=True, text=True)
    assert " 0 failed" in r.stdout and "problems 0" in r.stdout, r.stdout[-2000:]
