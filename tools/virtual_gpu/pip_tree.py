"""usage (the venv's Python): pip_tree.py ROCM_DIR VGPU_DIR CC..."""

import enum, glob, os, re, struct, subprocess, sys

R, V, *CC = sys.argv[1:]
B = os.path.dirname(sys.executable) + "/../lib/python%d.%d/site-packages/" % sys.version_info[:2]
os.environ["ROCM_PATH"] = R
for d in ("lib", "llvm/lib/clang/0/include", "include/hip"):
    os.makedirs(f"{R}/{d}", exist_ok=True)


def cc(out, src, *flags):
    subprocess.check_call([*CC, "-shared", "-fPIC", "-O1", "-fno-sanitize=undefined", "-o", out, src, *flags])


def write(name, text):
    open(f"{R}/{name}", "w").write(text)
    return f"{R}/{name}"


# --- the header: structures from cyhip.pxd, numbers from the module
from rocm.bindings import hip

pxd = open(B + "rocm/bindings/cyhip.pxd").read()


def struct_(name, bits=""):
    body = re.search(rf'(?:cdef|ctypedef) struct {name}(?: "\w+")?:\n((?:        .*\n)+)', pxd).group(1)
    return "typedef struct {\n" + "".join(f"  {l.strip()}{bits};\n" for l in body.splitlines()) + f"}} {name};\n"


h = ["#pragma once\n#include <stddef.h>\n#include <stdint.h>\n#include <stdbool.h>\n"]
enums = {
    n: c for n, c in vars(hip).items() if isinstance(c, type) and issubclass(c, enum.Enum) and not n.startswith("_")
}
numbers = {k: v.value for c in enums.values() for k, v in c.__members__.items()}
h += ["enum {\n", *(f"  {k} = {v},\n" for k, v in numbers.items()), "};\n", *(f"typedef int {n};\n" for n in enums)]
h += [
    f"#define {n} {v}\n"
    for n, v in vars(hip).items()
    if type(v) is int and re.match(r"(hip|HIP_)\w+$", n) and n not in numbers
]
h += [
    f"#undef {n}\n#define {n} ((void *){i})\n"
    for i, n in enumerate(
        ("HIP_LAUNCH_PARAM_BUFFER_POINTER", "HIP_LAUNCH_PARAM_BUFFER_SIZE", "HIP_LAUNCH_PARAM_END"), 1
    )
]
h += [f"typedef struct i{n} *{n};\n" for n in ("hipStream_t", "hipModule_t", "hipEvent_t", "hipCtx_t")]
h.append(
    "typedef struct ihipModuleSymbol_t *hipFunction_t;\ntypedef int hipDevice_t;\ntypedef void *hipDeviceptr_t;\ntypedef void (*hipHostFn_t)(void *);\ntypedef void (*hipStreamCallback_t)(hipStream_t, hipError_t, void *);\n"
)
h += [
    struct_("hipUUID_t"),
    "typedef hipUUID_t hipUUID;\n",
    struct_("hipDeviceArch_t", " : 1"),
    struct_("hipDeviceProp_t").replace("} hipDeviceProp_t", "} hipDeviceProp_tR0600"),
    "typedef hipDeviceProp_tR0600 hipDeviceProp_t;\n",
    struct_("hipPointerAttribute_t"),
    struct_("hipIpcMemHandle_st"),
    "typedef hipIpcMemHandle_st hipIpcMemHandle_t;\n",
]
h += [
    f'_Static_assert(sizeof({n}) == {getattr(hip, n)().c_sizeof()}, "{n}");\n'
    for n in ("hipDeviceProp_t", "hipPointerAttribute_t")
]
write("include/hip/hip_runtime_api.h", "".join(h))
cc(
    f"{R}/lib/libamdhip64.so",
    V + "/vgpu_hip.c",
    "-std=gnu11",
    "-g",
    "-I" + R + "/include",
    "-Wl,-soname,libamdhip64.so",
    "-lpthread",
)

# --- comgr: enough for the import and for versions
cc(
    f"{R}/lib/libamd_comgr.so",
    write(
        "lib/vgpu-comgr.c",
        """#include <stddef.h>
void amd_comgr_get_version(size_t *a, size_t *b) { *a = *b = 0; }
int amd_comgr_status_string(int s, const char **t) { *t = s ? "this comgr is a stand-in of vgpu's: it compiles nothing" : "success"; return 0; }
int amd_comgr_get_isa_count(size_t *n) { *n = 0; return 0; }
int amd_comgr_get_isa_name(size_t i, const char **n) { return 2; }
int amd_comgr_create_data(int k, void *d) { return 1; }
int amd_comgr_create_data_set(void *d) { return 1; }
int amd_comgr_create_action_info(void *d) { return 1; }
""",
    ),
)

# --- the wheel's libLLVM wants ROCm's own zlib and zstd: trampolines to the system's, under the versions it asks for
L = B + "rocm/bindings/llvm/libLLVM.so"
f = open(L, "rb").read()
(so,) = struct.unpack_from("<Q", f, 40)
(n,) = struct.unpack_from("<H", f, 60)
sh = [struct.unpack_from("<IIQQQQIIQQ", f, so + 64 * i) for i in range(n)]
dyn = next(s for s in sh if s[1] == 11)
names = sh[dyn[6]][4]
versym = next(s for s in sh if s[1] == 0x6FFFFFFF)[4]
need = next(s for s in sh if s[1] == 0x6FFFFFFE)


def string(o):
    return f[names + o : f.index(b"\0", names + o)].decode()


vers, o = {}, need[4]  # version index -> (file, version)
while True:
    _, cnt, file, aux, nxt = struct.unpack_from("<HHIII", f, o)
    a = o + aux
    for _ in range(cnt):
        _, _, idx, nm, an = struct.unpack_from("<IHHII", f, a)
        vers[idx & 0x7FFF] = string(file), string(nm)
        a += an
    if not nxt:
        break
    o += nxt
want = {}
for i in range(dyn[5] // 24):
    nm, _, _, shndx, _, _ = struct.unpack_from("<IBBHQQ", f, dyn[4] + 24 * i)
    v = vers.get(struct.unpack_from("<H", f, versym + 2 * i)[0] & 0x7FFF)
    if not shndx and v and v[0].startswith("librocm_sysdeps_"):
        want.setdefault(v, []).append(string(nm))
for (file, ver), syms in want.items():
    real = file.replace("librocm_sysdeps_", "lib")  # (called for compressed debug sections only)
    c = "#define _GNU_SOURCE\n#include <dlfcn.h>\n" + "".join(
        f'static void *p_{s} __attribute__((used));\n__asm__(".text\\n.globl {s}\\n.type {s},@function\\n{s}: jmp *p_{s}(%rip)\\n");\n'
        for s in syms
    )
    c += (
        f'__attribute__((constructor)) static void init(void) {{ void *h = dlopen("{real}", RTLD_NOW); if (!h) return; '
        + " ".join(f'p_{s} = dlsym(h, "{s}");' for s in syms)
        + " }\n"
    )
    cc(
        os.path.dirname(L) + "/" + file,
        write(file + ".c", c),
        "-Wl,-soname," + file,
        "-Wl,--version-script=" + write(file + ".map", ver + " { global: *; };\n"),
        "-ldl",
    )

# --- libclang, which parses the hipRTC header at import
link = f"{R}/llvm/lib/libclang.so"
if os.path.lexists(link):
    os.remove(link)
os.symlink(os.path.abspath(glob.glob(B + "clang/native/libclang*.so")[0]), link)
write(
    "hiprtc_runtime.h",
    r"""#define VGPU_D __attribute__((device))
#define HIP_PI 3.14159265358979323846
#define HIP_PI_F 3.14159274f
struct vgpu_dim { unsigned x, y, z; };
extern VGPU_D const vgpu_dim threadIdx, blockIdx, blockDim, gridDim;
extern VGPU_D const int warpSize;
VGPU_D unsigned __lane_id();
VGPU_D void __syncthreads();
VGPU_D unsigned __popcll(unsigned long long); VGPU_D unsigned __ffsll(long long); VGPU_D unsigned __ffsll(unsigned long long); VGPU_D unsigned long long __brevll(unsigned long long); VGPU_D int __clzll(long long);
#define F1(n) VGPU_D double n(double); VGPU_D float n##f(float);
F1(acos) F1(acosh) F1(asin) F1(asinh) F1(atan) F1(atanh) F1(ceil) F1(cos) F1(cosh) F1(erf) F1(erfc) F1(exp) F1(expm1) F1(fabs) F1(floor) F1(lgamma) F1(log) F1(log10) F1(log1p) F1(log2) F1(sin) F1(sinh) F1(sqrt) F1(tan) F1(tanh) F1(trunc) F1(tgamma)
#define F2(n) VGPU_D double n(double, double); VGPU_D float n##f(float, float);
F2(atan2) F2(copysign) F2(fmod) F2(hypot) F2(remainder) F2(pow)
""",
)
write("llvm/lib/clang/0/include/__clang_hip_runtime_wrapper.h", "")
