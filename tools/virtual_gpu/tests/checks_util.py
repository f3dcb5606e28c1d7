"""Small kernels for the tests of the checks: OpenCL C compiled by clang, and code objects with patched instructions."""

import functools, importlib.util, os, re, shutil, struct, subprocess, tempfile
import vgpu, vgpu_checks

HEAD = """
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
enum { memory_order_relaxed = __ATOMIC_RELAXED, memory_scope_device = __OPENCL_MEMORY_SCOPE_DEVICE };
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define TID ((uint)__builtin_amdgcn_workitem_id_x())
#define BID ((uint)__builtin_amdgcn_workgroup_id_x())
#define LOCAL_BARRIER __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
typedef float f4 __attribute__((ext_vector_type(4))); typedef float f8 __attribute__((ext_vector_type(8))); typedef half h16 __attribute__((ext_vector_type(16))); typedef half h8 __attribute__((ext_vector_type(8))); typedef half h4 __attribute__((ext_vector_type(4)));
typedef uint u4 __attribute__((ext_vector_type(4)));
"""


@functools.lru_cache(None)
def clang():
    """A clang that knows the architectures: 19 or newer, or the one of the wheel `ziglang`, which comes without OpenCL's header."""
    for name in (os.environ.get("CC", ""), *(f"clang-{n}" for n in range(30, 18, -1)), "clang"):
        path = shutil.which(name)
        said = path and subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        version = said and re.search(r"clang version (\d+)", said)
        if version and int(version[1]) >= 19:
            return [path]
    zig = importlib.util.find_spec("ziglang")
    assert zig, "these tests need clang 19 or newer, or the wheel ziglang: pip install ziglang"
    return [os.path.dirname(zig.origin) + "/zig", "clang"]


@functools.lru_cache(None)
def compile_cl(source, arch, opt="-O2"):
    with tempfile.TemporaryDirectory() as d:
        open(d + "/a.cl", "w").write(HEAD + source)
        r = subprocess.run(
            [
                *clang(),
                "-x",
                "cl",
                "-cl-no-stdinc",
                "-cl-std=CL2.0",
                "-target",
                "amdgcn-amd-amdhsa",
                f"-mcpu={arch}",
                "-nogpulib",
                opt,
                "-c",
                "-o",
                d + "/a.o",
                d + "/a.cl",
            ],
            capture_output=True,
            text=True,
        )
        assert r.returncode == 0, r.stderr[-3000:]
        subprocess.run([vgpu.LLD, "-shared", "-o", d + "/a.co", d + "/a.o"], check=True)
        return open(d + "/a.co", "rb").read()


def listing(co, name, arch):
    """[(file offset, size, text)] of a kernel's instructions."""
    e = co
    (shoff,) = struct.unpack_from("<Q", e, 0x28)
    (n,) = struct.unpack_from("<H", e, 0x3C)
    sh = [struct.unpack_from("<IIQQQQIIQQ", e, shoff + 64 * i) for i in range(n)]
    for s in sh:
        if s[1] != 2 and s[1] != 11:
            continue
        stro = sh[s[6]][4]
        for j in range(s[5] // 24):
            nm, inf, oth, shx, val, sz = struct.unpack_from("<IBBHQQ", e, s[4] + 24 * j)
            if e[stro + nm : e.index(b"\0", stro + nm)].decode() == name:
                t = sh[shx]
                o = val - t[3] + t[4]
                end = o + sz
                out = []
                while o < end:
                    text, k = vgpu_checks.disassemble(bytes(e[o : o + 16]), arch)
                    out.append((o, k or 4, text))
                    o += k or 4
                return out
    raise KeyError(name)


def patch(co, name, arch, pattern, which=0, before=None, to=None):
    """The code object with one instruction that matches (`which`; None: all; with `before`: the last one before the first match of that) replaced by s_nop, or by the bytes `to`."""
    ins = listing(co, name, arch)
    if before:
        ins, which = ins[: next(i for i, x in enumerate(ins) if re.search(before, x[2]))], -1
    hits = [x for x in ins if re.search(pattern, x[2])]
    assert hits, f"no instruction matches {pattern}:\n" + "\n".join(t for _, _, t in ins)
    b = bytearray(co)
    for o, k, _ in hits if which is None else [hits[which]]:
        b[o : o + k] = struct.pack("<I", 0xBF800000) * (k // 4) if to is None else to
    return bytes(b)
