"""Virtual AMD GPU for numba-hip: `import vgpu; vgpu.install()` before `numba.hip`, then use numba-hip unchanged.

What the program hands to hipModuleLoadData is what runs, byte for byte (`vgpu.loaded()` says what that was); VGPU_CODEGEN=own
replaces numba-hip's step from bitcode to code object instead, for machines whose comgr cannot read numba-hip's bitcode.

The HIP runtime is the stub built from vgpu_hip.c; kernels execute on the CPU through the per-instruction functions of the
ISA emulator in the tinygrad checkout named by $TINYGRAD (imported, not copied), scheduled by the stub's own wave loop.
"""

import atexit, ctypes as C, fcntl, functools, hashlib, json, mmap, os, pickle, re, struct, subprocess, sys, tempfile, threading, time, traceback, types
from contextlib import contextmanager

ROCM = os.environ.get("ROCM_PATH", "/opt/rocm")
CACHE = os.environ.get("VGPU_CACHE", os.path.expanduser("~/.cache/vgpu"))
LLD = os.environ.get("VGPU_LLD", "ld.lld-21")
# EF_AMDGPU_MACH of LLVM's ELF.h
MACH = {
    **{0x2C: "gfx900", 0x2F: "gfx906", 0x30: "gfx908", 0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950"},
    **{0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033", 0x3E: "gfx1034", 0x3D: "gfx1035"},
    **{0x45: "gfx1036", 0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102", 0x44: "gfx1103", 0x43: "gfx1150"},
    **{0x4A: "gfx1151", 0x55: "gfx1152", 0x58: "gfx1153", 0x48: "gfx1200", 0x4E: "gfx1201"},
    **{0x5F: "gfx9-4-generic", 0x53: "gfx10-3-generic", 0x54: "gfx11-generic", 0x59: "gfx12-generic"},
}
# The cards that run the code of a generic target.
GENERIC = {
    "gfx9-4-generic": r"gfx9[45]\w",
    "gfx10-3-generic": r"gfx103\w",
    "gfx11-generic": r"gfx11[05]\w",
    "gfx12-generic": r"gfx120\w",
}
EMU_ARCH = {
    "gfx11": "rdna3",
    "gfx12": "rdna4",
    "gfx90a": "cdna",
    "gfx9-4": "cdna",
    "gfx94": "cdna",
    "gfx95": "cdna",
    "gfx908": "cdna",
}
HIDDEN = {
    "hidden_block_count_x": 1,
    "hidden_block_count_y": 2,
    "hidden_block_count_z": 3,
    "hidden_group_size_x": 4,
    "hidden_group_size_y": 5,
    "hidden_group_size_z": 6,
    "hidden_grid_dims": 13,
    "hidden_dynamic_lds_size": 14,
}
LOAD_CB = C.CFUNCTYPE(C.c_int, C.c_uint64, C.c_void_p, C.c_uint64)
COMPILE_CB = C.CFUNCTYPE(C.c_int, C.c_uint64, C.c_uint64, C.c_void_p)
UNLOAD_CB = C.CFUNCTYPE(None, C.c_uint64)
LAUNCH_CB = C.CFUNCTYPE(C.c_int, C.c_char_p, C.c_uint64, C.POINTER(C.c_uint32), C.c_void_p, C.c_uint64)

lib = None
_keep, _mods, _kernels, _loaded, _lock = [], {}, [], {}, threading.RLock()
stats = {"bc_hits": 0, "bc_builds": 0, "insn_loaded": 0, "insn_hits": 0, "insn_compiled": 0, "compile_seconds": 0.0}

# ------------------------------------------------------------------ VGPU_CODEGEN=own: bitcode -> code object (the wheel's own LLVM + lld)
_llvm = None


def _L():
    global _llvm
    if _llvm is None:
        import rocm

        d = os.path.dirname(
            os.path.abspath(list(rocm.__path__)[0] if not getattr(rocm, "__file__", None) else rocm.__file__)
        )
        if os.path.basename(d) != "rocm":
            d = os.path.join(d, "rocm")
        _llvm = C.CDLL(os.path.join(d, "bindings/llvm/libLLVM.so"))
        for n in ("TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser"):
            getattr(_llvm, "LLVMInitializeAMDGPU" + n)()
        for f in (
            "LLVMCreateMemoryBufferWithMemoryRangeCopy LLVMContextCreate LLVMCreateTargetMachine LLVMCreatePassBuilderOptions "
            "LLVMGetBufferStart LLVMRunPasses LLVMGetErrorMessage"
        ).split():
            getattr(_llvm, f).restype = C.c_void_p
        _llvm.LLVMGetBufferSize.restype = C.c_size_t
    return _llvm


def build(bc, arch, opt=3, emit_asm=False):
    """Linked AMDGPU bitcode -> HSA code object (bytes), or assembly text. Cached on disk by content."""
    bc = bytes(bc)
    arch = arch.split(":")[0]
    key = hashlib.sha256(b"2|%s|%d|" % (arch.encode(), opt) + bc).hexdigest()
    path = f"{CACHE}/co/{key}.{'s' if emit_asm else 'co'}"
    if os.path.exists(path):
        stats["bc_hits"] += 1
        with open(path, "rb") as f:
            d = f.read()
        return d.decode() if emit_asm else d
    stats["bc_builds"] += 1
    l, P = _L(), C.c_void_p
    with _lock:
        ctx = l.LLVMContextCreate()
        buf = l.LLVMCreateMemoryBufferWithMemoryRangeCopy(bc, C.c_size_t(len(bc)), b"m")
        m, T, mb, err = P(), P(), P(), C.c_char_p()
        if l.LLVMParseBitcodeInContext2(P(ctx), P(buf), C.byref(m)):
            raise RuntimeError("vgpu: bitcode does not parse")
        if l.LLVMGetTargetFromTriple(b"amdgcn-amd-amdhsa", C.byref(T), C.byref(err)):
            raise RuntimeError(err.value)
        tm = l.LLVMCreateTargetMachine(T, b"amdgcn-amd-amdhsa", arch.encode(), b"", opt, 2, 0)
        e = l.LLVMRunPasses(m, b"default<O%d>" % opt, P(tm), P(l.LLVMCreatePassBuilderOptions()))
        if e:
            raise RuntimeError(C.string_at(l.LLVMGetErrorMessage(P(e))).decode())
        if l.LLVMTargetMachineEmitToMemoryBuffer(P(tm), m, 0 if emit_asm else 1, C.byref(err), C.byref(mb)):
            raise RuntimeError(err.value)
        data = C.string_at(l.LLVMGetBufferStart(mb), l.LLVMGetBufferSize(mb))
        l.LLVMDisposeMemoryBuffer(mb)
        l.LLVMDisposeModule(m)
        l.LLVMDisposeTargetMachine(P(tm))
        l.LLVMContextDispose(P(ctx))
    if not emit_asm:
        with tempfile.TemporaryDirectory() as d:
            open(d + "/a.o", "wb").write(data)
            r = subprocess.run([LLD, "-shared", "-o", d + "/a.co", d + "/a.o"], capture_output=True, text=True)
            if r.returncode:
                raise RuntimeError("vgpu: link failed: " + r.stderr)
            data = open(d + "/a.co", "rb").read()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    tmp = f"{path}.{os.getpid()}"
    open(tmp, "wb").write(data)
    os.replace(tmp, path)
    return data.decode() if emit_asm else data


# ------------------------------------------------------------------ code object loading
def _msgpack(b, i=0):
    t = b[i]
    i += 1

    def seq(n, i):
        r = []
        for _ in range(n):
            v, i = _msgpack(b, i)
            r.append(v)
        return r, i

    def mp(n, i):
        r = {}
        for _ in range(n):
            k, i = _msgpack(b, i)
            r[k], i = _msgpack(b, i)
        return r, i

    def s(n, i):
        return b[i : i + n].decode(), i + n

    if t < 0x80:
        return t, i
    if t < 0x90:
        return mp(t & 15, i)
    if t < 0xA0:
        return seq(t & 15, i)
    if t < 0xC0:
        return s(t & 31, i)
    if t >= 0xE0:
        return t - 256, i
    F = {
        0xCA: ">f",
        0xCB: ">d",
        0xCC: ">B",
        0xCD: ">H",
        0xCE: ">I",
        0xCF: ">Q",
        0xD0: ">b",
        0xD1: ">h",
        0xD2: ">i",
        0xD3: ">q",
    }
    if t in F:
        return struct.unpack_from(F[t], b, i)[0], i + struct.calcsize(F[t])
    if t == 0xC0:
        return None, i
    if t in (0xC2, 0xC3):
        return t == 0xC3, i
    n = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}[t]
    c = struct.unpack_from(n, b, i)[0]
    i += struct.calcsize(n)
    return s(c, i) if t in (0xD9, 0xDA, 0xDB) else seq(c, i) if t in (0xDC, 0xDD) else mp(c, i)


class CodeObject:
    def __init__(self, e):
        if e[:5] != b"\x7fELF\2" or e[7] != 64 or struct.unpack_from("<HH", e, 16) != (3, 224):
            raise ValueError("vgpu: not a linked AMDGPU code object (ELF64, OSABI HSA, ET_DYN, EM_AMDGPU)")
        self.arch = MACH.get(struct.unpack_from("<I", e, 0x30)[0] & 0xFF, "unknown")
        self.version = e[8] + 2
        self.text, self.note = [], b""
        phoff, shoff = struct.unpack_from("<QQ", e, 0x20)
        phentsize, phnum, shentsize, shnum, _ = struct.unpack_from("<HHHHH", e, 0x36)
        segs, self.meta = [], {}
        for i in range(phnum):
            t, fl, off, va, pa, fs, ms, al = struct.unpack_from("<IIQQQQQQ", e, phoff + i * phentsize)
            if t == 1:
                segs.append((off, va, fs, ms))
            if t == 4:
                j = off
                while j < off + fs:
                    ns, ds, ty = struct.unpack_from("<III", e, j)
                    d = j + 12 + (ns + 3 & ~3)
                    if ty == 32:
                        self.note = e[d : d + ds]
                        self.meta = _msgpack(self.note)[0]
                    j = d + (ds + 3 & ~3)
        self.size = (max(va + ms for _, va, _, ms in segs) + 4095) & ~4095
        self.mem = mmap.mmap(-1, self.size + 8192)  # tail: the decoder may read past the last instruction
        for off, va, fs, ms in segs:
            self.mem[va : va + fs] = e[off : off + fs]
        self.base = C.addressof(C.c_char.from_buffer(self.mem))
        self.syms = {}
        for i in range(shnum):
            n, t, fl, ad, off, sz, link, info, al, es = struct.unpack_from("<IIQQQQIIQQ", e, shoff + i * shentsize)
            if t == 1 and fl & 4:
                self.text.append((ad, e[off : off + sz]))
            if t in (2, 11):
                so = struct.unpack_from("<Q", e, shoff + link * shentsize + 0x18)[0]
                names = [None]
                for j in range(sz // 24):
                    nm, inf, oth, shx, val, ssz = struct.unpack_from("<IBBHQQ", e, off + j * 24)
                    name = e[so + nm : e.index(b"\0", so + nm)].decode()
                    if j:
                        names.append(name)
                    if shx:
                        self.syms[name] = (val, ssz, inf & 15)
                if t == 11:
                    dyn = names
        for i in range(shnum):
            n, t, fl, ad, off, sz, link, info, al, es = struct.unpack_from("<IIQQQQIIQQ", e, shoff + i * shentsize)
            if t == 4:
                for j in range(sz // 24):
                    r_off, r_info, addend = struct.unpack_from("<QQq", e, off + j * 24)
                    ty = r_info & 0xFFFFFFFF
                    if ty == 13:
                        v = self.base + addend
                    elif ty == 3:
                        v = self.base + self.syms[dyn[r_info >> 32]][0] + addend
                    else:
                        raise RuntimeError(f"vgpu: relocation type {ty}")
                    struct.pack_into("<Q", self.mem, r_off, v)

    def facts(self, e):
        """Entry of vgpu.loaded(). code_sha256: machine code, kernel descriptors (entry points counted from the code's start) and note, not their places in the file."""
        h, base = hashlib.sha256(), min((a for a, _ in self.text), default=0)
        ks = self.meta.get("amdhsa.kernels", [])
        for _, b in sorted(self.text):
            h.update(b)
        for va in sorted(self.syms[k[".symbol"]][0] for k in ks):
            d = bytearray(self.mem[va : va + 64])
            struct.pack_into("<q", d, 16, va + struct.unpack_from("<q", d, 16)[0] - base)
            h.update(d)
        h.update(self.note)
        return dict(
            sha256=hashlib.sha256(e).hexdigest(),
            code_sha256=h.hexdigest(),
            bytes=len(e),
            target=self.meta.get("amdhsa.target", self.arch),
            version=self.version,
            kernels=[k[".name"] for k in ks],
        )


def _on_load(mid, image, size):
    try:
        e = C.string_at(image, size)
        co = CodeObject(e)
        dev = lib.vgpu_mod_code(mid, co.base, co.size)
        darch = device_list()[dev]["arch"]
        if co.arch != darch and not re.fullmatch(GENERIC.get(co.arch, "-"), darch):
            print(f"vgpu: code object for {co.arch} loaded on device {dev} ({darch})", file=sys.stderr)
            return 209  # hipErrorNoBinaryForGpu
        _mods[mid] = co
        for k in co.meta.get("amdhsa.kernels", []):
            name = k[".name"]
            va, _, _ = co.syms[k[".symbol"]]
            lds, priv, karg = struct.unpack_from("<III", co.mem, va)
            entry = struct.unpack_from("<q", co.mem, va + 16)[0]
            rsrc3, rsrc1, rsrc2 = struct.unpack_from("<III", co.mem, va + 44)
            props = struct.unpack_from("<H", co.mem, va + 56)[0]
            wave = k.get(".wavefront_size", 32)
            v = (C.c_uint32 * 11)(
                rsrc1,
                rsrc2,
                rsrc3,
                props,
                lds,
                priv,
                karg,
                k.get(".vgpr_count", 0),
                k.get(".sgpr_count", 0),
                k.get(".max_flat_workgroup_size", 1024),
                wave,
            )
            args = []
            for a in k.get(".args", []):
                kind = a[".value_kind"]
                args += [a[".offset"], a[".size"], HIDDEN.get(kind, 99) if kind.startswith("hidden") else 0]
            lib.vgpu_mod_kernel(
                mid, name.encode(), co.base + va + entry, v, len(args) // 3, (C.c_uint32 * (len(args) or 1))(*args)
            )
            rep = dict(
                name=name,
                arch=co.arch,
                vgpr=k.get(".vgpr_count", 0),
                agpr=k.get(".agpr_count", 0),
                sgpr=k.get(".sgpr_count", 0),
                lds=lds,
                scratch=priv,
                kernarg=karg,
                wave=wave,
                spill_vgpr=k.get(".vgpr_spill_count", 0),
                spill_sgpr=k.get(".sgpr_spill_count", 0),
                code_bytes=co.syms.get(name, (0, 0, 0))[1],
            )
            _kernels.append(rep)
            if os.environ.get("VGPU_KERNELS"):
                print("vgpu kernel:", rep, file=sys.stderr)
        for s, (va, sz, ty) in co.syms.items():
            if ty == 1:
                lib.vgpu_mod_symbol(mid, s.encode(), co.base + va, sz)
        f = co.facts(e)
        co.sha256, co.code_sha256 = f["sha256"], f["code_sha256"]
        _log_problems()
        _log(loaded=f)
        f = _loaded.setdefault((f["sha256"], dev), {**f, "device": dev, "loads": 0})
        f["loads"] += 1
        return 0
    except Exception:
        traceback.print_exc()
        return 200  # hipErrorInvalidImage


def _on_unload(mid):
    try:
        _profile_collect()
    except Exception:
        traceback.print_exc()
    if "vgpu_checks" in sys.modules:
        sys.modules["vgpu_checks"].collect(mid)
    _mods.pop(mid, None)


# ------------------------------------------------------------------ instructions: tinygrad's per-instruction functions, cached on disk
# Cache file: pickled records ("ent", key, globals, image|None, elf) / ("raw", arch, bytes, key, flags) / ("tmpl", wave, sgprs);
# key = (arch, instruction class, base, mask, size). With a warm cache tinygrad is not even imported.
_emu, _cachefile, _ents, _bymask, _raw, _tmpls, _pool = None, None, {}, {}, {}, {}, [None, 0]


class _Slot(C.Structure):
    _fields_ = [("fn", C.c_void_p), ("n", C.c_uint8), ("flags", C.c_uint8), ("g", C.c_uint8 * 6)]


def _tg():
    tg = os.environ.get("TINYGRAD", "")
    if not os.path.isfile(tg + "/test/mockgpu/amd/emu.py"):
        raise RuntimeError(
            f"vgpu: the environment variable TINYGRAD ({'= ' + tg if tg else 'not set'}) must name a checkout of the public repository tinygrad/tinygrad that has test/mockgpu/amd"
        )
    return tg


def _open_cache():
    global _cachefile
    if _cachefile:
        return
    tg = _tg()
    h = hashlib.sha256(b"6" + sys.version.encode() + _PATCH_ID)
    for f in ("emu.py", "pcode.py"):
        h.update(open(f"{tg}/test/mockgpu/amd/{f}", "rb").read())
    try:
        h.update(next(l for l in open("/proc/cpuinfo") if l.startswith("flags")).encode())  # native code: per CPU type
    except Exception:
        pass
    _cachefile = f"{CACHE}/insn-{h.hexdigest()[:16]}.pkl"
    if not os.path.exists(_cachefile):
        return
    with open(_cachefile, "rb") as f:
        while True:
            try:
                r = pickle.load(f)
            except Exception:
                break
            if r[0] == "ent":
                _add_ent(r[1], r[2], r[3], r[4])
                stats["insn_loaded"] += 1
            elif r[0] == "raw":
                _raw[r[1], r[2]] = r[3], r[4]
            else:
                _tmpls[r[1]] = r[2]


def _write(*recs):
    try:
        os.makedirs(CACHE, exist_ok=True)
        with open(_cachefile, "ab") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            f.write(b"".join(pickle.dumps(r) for r in recs))
    except Exception as ex:
        stats.setdefault("cache_error", repr(ex))


def _add_ent(key, gl, image, elf):
    _ents[key] = [gl, image, elf, None, None]
    _bymask.setdefault((key[0], key[1], key[4]), {}).setdefault(key[3], {})[key[2]] = key


def _movable(obj):
    """True if the relocated image of this x86-64 object file can run at another address (no references outside itself)."""
    if obj[:4] != b"\x7fELF" or struct.unpack_from("<H", obj, 18)[0] != 62:
        return False
    (shoff,) = struct.unpack_from("<Q", obj, 0x28)
    (n,) = struct.unpack_from("<H", obj, 0x3C)
    sh = [struct.unpack_from("<IIQQQQIIQQ", obj, shoff + 64 * i) for i in range(n)]
    for s in sh:
        if s[1] != 4:
            continue
        for j in range(s[5] // 24):
            _, info, _ = struct.unpack_from("<QQq", obj, s[4] + 24 * j)
            (shndx,) = struct.unpack_from("<H", obj, sh[s[6]][4] + 24 * (info >> 32) + 6)
            if info & 0xFFFFFFFF not in (2, 4) or shndx == 0:
                return False
    return True


def _place(image):
    m, o = _pool
    n = len(image) + 127 & ~63
    if m is None or o + n > len(m):
        m, o = (
            mmap.mmap(
                -1, max(1 << 20, n), mmap.MAP_ANON | mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
            ),
            0,
        )
        _keep.append(m)
    m[o : o + len(image)] = image
    _pool[:] = m, o + n
    return C.addressof(C.c_char.from_buffer(m, o))


def _addr(key):
    e = _ents[key]
    if e[3] is None:
        stats["insn_hits"] += 1
        if e[1] is not None:
            e[3] = _place(e[1])
        else:
            e[4] = _load_emu().Device["CPU"].runtime(pickle.loads(e[2]))
            e[3] = e[4].addr
    return e[3], e[0]


def _load_emu():
    global _emu
    if _emu is not None:
        return _emu
    tg = _tg()
    os.environ.setdefault("DEV", "CPU")
    os.environ.setdefault("CC", "clang-21")
    saved = {
        k: sys.modules.pop(k) for k in list(sys.modules) if k == "test" or k.startswith("test.")
    }  # the emulator lives in a package called "test"
    sys.path.insert(0, tg)
    try:
        from test.mockgpu.amd import emu
    finally:
        sys.path.remove(tg)
        for k in [k for k in sys.modules if k == "test" or k.startswith("test.")]:
            _keep.append(sys.modules.pop(k))  # leave the name to the program
        sys.modules.update(saved)
    # Its cache belongs to the thread that first asks it. Ours are several, one at a time: the lock is held.
    import tinygrad.helpers as helpers

    connect = functools.partial(helpers.sqlite3.connect, check_same_thread=False)
    helpers.sqlite3 = types.SimpleNamespace(**{**vars(helpers.sqlite3), "connect": connect})
    _patch_emu(emu)
    _emu = emu
    return emu


# instructions the emulator lacks or gets wrong, implemented in vgpu_hip.c: (name, emulator arch or None) -> function, uses both register files
_OWN = {
    ("S_GETPC_B64", None): "getpc",
    ("S_SETPC_B64", None): "setpc",
    # The emulator takes accumulators as A and B for other registers, f16 denormals for zeros, and infinities for numbers.
    ("V_MFMA_F32_16X16X4_F32", "cdna"): "mfma_f32",
    ("V_MFMA_F32_16X16X16_F16", "cdna"): "mfma_f16",
    ("V_MFMA_F32_16X16X16_BF16", "cdna"): "mfma_bf16",
    ("DS_SWIZZLE_B32", "rdna3"): "swizzle32",
    ("DS_SWIZZLE_B32", "rdna4"): "swizzle32",
    ("DS_SWIZZLE_B32", "cdna"): "swizzle64",
    ("V_PERMLANE16_B32", "rdna3"): "permlane16",
    ("V_PERMLANE16_B32", "rdna4"): "permlane16",
    ("V_PERMLANEX16_B32", "rdna3"): "permlanex16",
    ("V_PERMLANEX16_B32", "rdna4"): "permlanex16",
    ("V_PERMLANE64_B32_E32", "rdna3"): "permlane64_w32",
    ("V_PERMLANE64_B32_E32", "rdna4"): "permlane64_w32",
}
for _o in ("BUFFER_WBL2", "BUFFER_INV"):
    _OWN[_o, "cdna"] = "nop8"  # cache control: memory is coherent here
for _o in ("GLOBAL_INV", "GLOBAL_WB", "GLOBAL_WBINV"):
    _OWN[_o, "rdna4"] = "nop12"
# WMMA: the emulator reads a constant C operand as a register number, knows no iu4 / fp8, and ignores the sign and negation bits
for _o, _i in (
    ("F32", "F16"),
    ("F32", "BF16"),
    ("F16", "F16"),
    ("BF16", "BF16"),
    ("I32", "IU8"),
    ("I32", "IU4"),
    ("F32", "FP8_FP8"),
    ("F32", "FP8_BF8"),
    ("F32", "BF8_FP8"),
    ("F32", "BF8_BF8"),
):
    if "8_" not in _i:
        _OWN[f"V_WMMA_{_o}_16X16X16_{_i}", "rdna3"] = f"wmma_{_o}_{_i}_11".lower()
    _OWN[f"V_WMMA_{_o}_16X16X16_{_i}", "rdna4"] = f"wmma_{_o}_{_i}_12".lower()
_OWN["V_WMMA_I32_16X16X32_IU4", "rdna4"] = "wmma_i32_iu4x32_12"
_OWN["V_NOP_E32", None] = _OWN["V_NOP", None] = "nop4"


def _special(raw, arch, inst):
    """Name of the own implementation of this instruction, with its size; raises for forms that the emulator would get wrong silently."""
    nm = getattr(getattr(inst, "op", None), "name", "") or ""
    w0, w1 = struct.unpack_from("<II", raw)
    if arch.startswith("rdna"):
        enc = w0 >> 26
        src0 = w0 & 0x1FF if not w0 >> 31 or w0 >> 25 in (0x3E, 0x3F) else w1 & 0x1FF if enc in (0x35, 0x33) else None
        if src0 in (233, 234):
            if w0 >> 25 == 0x3F and nm.startswith("V_MOV_B32"):
                return "mov_dpp8", 8
            raise RuntimeError("DPP8 forms other than v_mov_b32 are not emulated")
        if src0 == 250 and "DPP" not in type(inst).__name__:
            raise RuntimeError("this DPP16 form is not emulated")
    own = _OWN.get((nm, arch), _OWN.get((nm, None)))
    return (own, inst.size()) if own else None


_PATCH_ID = b"11"


#: As in AMD's description of the instruction: where both sides are scaled the quotient is as it was, so VCC, which lets
#: v_div_fmas undo the scaling of one, is not set. (The emulator set it, and tiny numerators gave 0.) What is "denormal"
#: there is a quotient or reciprocal below the smallest normal number.
_DIV_SCALE = """VCC.u64[laneId] = 0;
if ((S2.f32 == 0.0F) || (S1.f32 == 0.0F)) then
D0.f32 = NAN.f32
elsif exponent(S2.f32) - exponent(S1.f32) >= 96 then
VCC.u64[laneId] = 1;
D0.f32 = (S0.f32 == S1.f32) ? ldexp(S0.f32, 64) : S0.f32
elsif isDENORM(S1.f32) then
D0.f32 = ldexp(S0.f32, 64)
elsif (exponent(S1.f32) >= 253) && (exponent(S2.f32 / S1.f32) == 0) then
VCC.u64[laneId] = 1;
D0.f32 = (S0.f32 == S1.f32) ? ldexp(S0.f32, -64) : S0.f32
elsif exponent(S1.f32) >= 253 then
D0.f32 = ldexp(S0.f32, -64)
elsif exponent(S2.f32 / S1.f32) == 0 then
VCC.u64[laneId] = 1;
D0.f32 = (S0.f32 == S2.f32) ? ldexp(S0.f32, 64) : S0.f32
elsif exponent(S2.f32) <= 23 then
D0.f32 = ldexp(S0.f32, 64)
else
D0.f32 = S0.f32
endif"""


def _patch_emu(emu):
    """Run-time fixes for gaps of the emulator on RDNA4 and CDNA (nothing in the checkout is edited)."""
    iattr, getp = emu._iattr, emu.get_pcode

    def _iattr(inst, name, default=0):  # "return the old value" bit of atomics: glc (RDNA3), sc0 (CDNA), th[0] (RDNA4)
        if name == "glc" and not hasattr(inst, "glc"):
            return iattr(inst, "sc0", iattr(inst, "th", 0) & 1 if hasattr(inst, "th") else 0)
        return iattr(inst, name, default)

    def get_pcode(op):  # FLAT on RDNA4 names flat_scratch in its address line; the address is computed elsewhere
        if op.name.startswith("V_DIV_SCALE_F32"):
            return _DIV_SCALE
        p = getp(op)
        if op.name.startswith("V_DIV_FIXUP_F32"):  # below all numbers: 0, to the nearest
            return p.replace("UNDERFLOW_F32", "0.0F")
        return (
            re.sub(r"addr\s*=\s*CalcFlatAddr\([^)]*\)\s*;?\n?", "", p).replace("MEM[addr", "MEM[ADDR")
            if "CalcFlatAddr" in p
            else p
        )

    flat = tuple(getattr(m, n) for m, n in ((emu.irc, "FLAT"), (emu.ir4, "VFLAT"), (emu.ir3, "FLAT")) if hasattr(m, n))
    of = emu._Ctx.optional_field  # FLAT has no scalar base; the field may hold 0
    emu._Ctx.optional_field = lambda self, inst, f, *a: (
        None if f == "saddr" and isinstance(inst, flat) else of(self, inst, f, *a)
    )
    emu._iattr, emu.get_pcode = _iattr, get_pcode
    ctrl, c, dt = emu._dpp16_ctrl, emu._c, emu.dtypes.int

    def _dpp16_ctrl(lane, dpp, row_mask, bank_mask, wave_size):  # row_share / row_newbcast, row_xmask, row_bcast
        l = lane.cast(dt)
        if 0x150 <= dpp <= 0x16F or dpp in (0x142, 0x143):
            _, en, ok = ctrl(lane, 0xE4, row_mask, bank_mask, wave_size)  # 0xE4: identity, for the row/bank masks
            if dpp <= 0x143:
                step = 16 if dpp == 0x142 else 32
                return (l & c(~(step - 1), dt)) - c(1, dt), en, l >= c(step, dt)
            return ((l & c(~15, dt)) + c(dpp & 15, dt) if dpp < 0x160 else l ^ c(dpp & 15, dt)), en, ok
        return ctrl(lane, dpp, row_mask, bank_mask, wave_size)

    emu._dpp16_ctrl = _dpp16_ctrl

    def _load_dpp16_src0(ctx, inst, lane, fallback):
        """All lanes are read before the first is written: the instruction may write the register that it reads."""
        field = emu._iattr
        src, en, ok = emu._dpp16_ctrl(
            lane, field(inst, "dpp"), field(inst, "row_mask", 0xF), field(inst, "bank_mask", 0xF), ctx.wave_size
        )
        before = emu.UOp.placeholder((ctx.wave_size,), emu.dtypes.uint32, slot=7, addrspace=emu.AddrSpace.LOCAL)
        each = ctx.range()
        held = ctx.rvgpr_dyn(ctx.inst_field(type(inst).vsrc0), each)
        read = emu.UOp.group(before.index(each.cast(dt)).store(held)).end(each)
        moved = before.after(read).index((en & ok).where(src, c(0, dt)))
        invalid = emu.UOp.const(0, fallback.dtype) if field(inst, "bc") else fallback
        return en.where(ok.where(moved, invalid), fallback)

    emu._load_dpp16_src0 = _load_dpp16_src0

    # CDNA has no 16-bit register halves: there, register 128 and above in a 16-bit operation is just that register. The handlers for
    # CDNA encodings run with a module dictionary of their own, in which the two limits (128, 384) cannot be reached.
    def whole(f, **sub):
        return types.FunctionType(
            f.__code__,
            {**vars(emu), "_c": lambda v, *a: c(1 << 20 if v in (128, 384) else v, *a), **sub},
            f.__name__,
            f.__defaults__,
            f.__closure__,
        )

    own = {
        emu._compile_vop12: whole(emu._compile_vop12, _load_vsrc0=whole(emu._load_vsrc0)),
        emu._compile_vopc: whole(emu._compile_vopc),
    }
    for t, h in list(emu._INST_HANDLERS.items()):
        if t.__module__ == emu.irc.VOP1.__module__ and h in own:
            emu._INST_HANDLERS[t] = own[h]


def _cache_inv(raw, arch):
    """Name of a cache invalidation that the emulator does not decode: nothing to do, memory is coherent here."""
    (w0,) = struct.unpack_from("<I", raw)
    return _CACHE_INV.get((arch, w0 >> 18 & 255)) if w0 >> 26 == 0x38 else None


_CACHE_INV = {
    ("rdna3", 0x2B): "buffer_gl0_inv",
    ("rdna3", 0x2C): "buffer_gl1_inv",
    ("cdna", 0x3E): "buffer_wbinvl1",
    ("cdna", 0x3F): "buffer_wbinvl1_vol",
}


def _decoded(raw, arch):
    """An instruction. The emulator knows v_mfma_f32_16x16x16_bf16 by its number on gfx942; gfx90a has another one."""
    (w0,) = struct.unpack_from("<I", raw)
    if arch == "cdna" and w0 >> 16 == 0xD3E7:
        raw = struct.pack("<I", w0 & 0xFFFF | 0xD3E1 << 16) + bytes(raw[4:])
    return _load_emu().decode_inst(raw, arch)


def _compile_inst(raw, arch):
    if _cache_inv(raw, arch):
        _raw[arch, bytes(raw[:8])] = key, flags = ("own", "vgpu_op_nop8"), 0
        _write(("raw", arch, bytes(raw[:8]), key, flags))
        return key, flags
    emu = _load_emu()
    inst = _decoded(raw, arch)
    size = inst.size()
    tn = type(inst).__name__
    iv = int.from_bytes(raw[:size], "little")
    flags = int(
        (isinstance(inst, (emu.ir3.SOPP, emu.ir4.SOPP, emu.irc.SOPP)) and inst.op in emu._BARRIER_OPS)
        or (isinstance(inst, emu.ir4.SOP1) and inst.op in emu._BARRIER_SOP1_OPS)
    )
    if "ATOMIC" in getattr(getattr(inst, "op", None), "name", "") and "DS" not in tn:
        flags |= 2  # serialised between threads
    try:
        own = _special(raw, arch, inst)
    except RuntimeError as ex:
        raise RuntimeError(f"vgpu: cannot emulate {inst!r}: {ex}") from None
    if own:
        key = ("own", "vgpu_op_" + own[0])
        _raw[arch, bytes(raw[: own[1]])] = key, flags
        _write(("raw", arch, bytes(raw[: own[1]]), key, flags))
        return key, flags
    for mask, d in _bymask.get((arch, tn, size), {}).items():
        if (key := d.get(iv & mask)) is not None:
            break
    else:
        t = time.time()
        n = len(emu._canonical_runner_cache)
        try:
            prg, rt = emu._get_runner(bytes(raw[: size + 4]), arch)
        except Exception as ex:
            raise RuntimeError(f"vgpu: cannot emulate {inst!r}: {type(ex).__name__}: {ex}") from ex
        stats["insn_compiled"] += 1
        stats["compile_seconds"] += time.time() - t
        base, mask = next((b, m) for ty, b, m, s, ent in reversed(emu._canonical_runner_cache) if ent[1] is rt)
        key = (arch, tn, base, mask, size)
        elf = prg.to_elf()
        img = bytes(rt.mem[:]).rstrip(b"\0") + bytes(64) if _movable(elf.lib) else None
        _add_ent(key, tuple(prg.arg.globals), img, pickle.dumps(elf))
        _ents[key][3:] = [rt.addr, rt]
        _write(("ent", key, tuple(prg.arg.globals), img, _ents[key][2] if img is None else b""))
    _raw[arch, bytes(raw[:size])] = key, flags
    _write(("raw", arch, bytes(raw[:size]), key, flags))
    return key, flags


def _log(**entry):
    """Append a line of JSON to the file that VGPU_LOG names: what was loaded, and what cannot be emulated."""
    path = os.environ.get("VGPU_LOG")
    if path:
        with open(path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(entry) + "\n")


_said = [0]


def _log_problems():
    """Append what `problems` has had since the last time."""
    if lib is not None and os.environ.get("VGPU_LOG"):
        lines = problems()
        for line in lines[_said[0] :]:
            _log(problem=line)
        _said[0] = len(lines)


def mended():
    """Instructions that the emulator lacks or gets wrong, and that this project executes itself: (name, emulator) pairs."""
    return sorted(
        (name.lower(), arch or "all") for name, arch in [*_OWN, *((n, a) for (a, _), n in _CACHE_INV.items())]
    )


#: What is mended by changing how the emulator reads an instruction, see `_patch_emu`.
MENDED_FORMS = (
    "DPP16 that writes the register it reads",
    "DPP16 row_share, row_xmask, row_bcast",
    "v_mov_b32 with DPP8",
    "FLAT and atomics with return on RDNA 4 and CDNA",
    "16-bit operations on v128 and above on CDNA",
    "v_mfma_f32_16x16x16bf16_1k of gfx90a",
    "v_div_scale_f32 and v_div_fixup_f32 of small numbers",
)


def _on_compile(mid, pc, slotp):
    try:
        with _lock:
            co = _mods[mid]
            _open_cache()
            arch = next((v for k, v in EMU_ARCH.items() if co.arch.startswith(k)), None)
            if arch is None:
                raise RuntimeError(f"vgpu: no emulator for {co.arch}")
            raw = C.string_at(pc, 16)
            hit = None
            for n in (4, 8, 12, 16):
                if (hit := _raw.get((arch, raw[:n]))) is not None:
                    break
            key, flags = hit or _compile_inst(raw, arch)
            s = _Slot.from_address(slotp)
            addr, gl = (C.cast(getattr(lib, key[1]), C.c_void_p).value, range(6)) if key[0] == "own" else _addr(key)
            for i, x in enumerate(gl):
                s.g[i] = x
            s.n, s.flags, s.fn = len(gl), flags, addr
        return 0
    except BaseException as ex:
        _log(lacks=f"{_mods[mid].arch}: {ex}")
        traceback.print_exc()
        return -1


_tmpl_done = set()


def _template(wave):
    if wave in _tmpl_done:
        return
    _open_cache()
    t = _tmpls.get(wave)
    if t is None:
        st = _load_emu().WaveState(wave, wave)
        t = [st._read_sgpr(i) for i in range(260)]
        _write(("tmpl", wave, t))
    lib.vgpu_sgpr_template(wave, (C.c_uint32 * 260)(*t))
    _tmpl_done.add(wave)


# ------------------------------------------------------------------ public API
def install(path=None, patch_numba=True):
    """Load the stub runtime and register the emulator. Call before importing numba.hip. VGPU_CODEGEN=own: also patch numba-hip's code object step."""
    global lib
    codegen = os.environ.get("VGPU_CODEGEN", "shipped")
    if codegen not in ("shipped", "own"):
        raise ValueError(f"VGPU_CODEGEN is {codegen!r}; allowed: shipped, own")
    patch_numba = patch_numba and codegen == "own"
    if lib is not None:
        if patch_numba:
            _patch_numba()
        return lib
    os.environ.setdefault("ROCM_PATH", ROCM)
    path = path or os.environ.get("VGPU_LIB") or ROCM + "/lib/libamdhip64.so"
    l = C.CDLL(path)
    l.vgpu_json.restype = l.vgpu_calls.restype = l.vgpu_problems.restype = C.c_uint64
    l.vgpu_problem_log.restype = C.c_char_p
    l.vgpu_json.argtypes = [C.c_char_p, C.c_size_t]
    l.vgpu_mod_code.argtypes = [C.c_uint64] * 3
    l.vgpu_mod_kernel.argtypes = [C.c_uint64, C.c_char_p, C.c_uint64, C.c_void_p, C.c_int, C.c_void_p]
    l.vgpu_mod_symbol.argtypes = [C.c_uint64, C.c_char_p, C.c_uint64, C.c_uint64]
    l.vgpu_fail.argtypes = [C.c_char_p, C.c_long, C.c_int, C.c_int]
    lib = l

    def on_load(mid, image, size):
        try:
            for d in device_list():
                _template(64 if d["arch"].startswith("gfx9") else 32)
        except Exception:
            traceback.print_exc()
            return 3
        return _on_load(mid, image, size)

    cbs = (LOAD_CB(on_load), COMPILE_CB(_on_compile), UNLOAD_CB(_on_unload))
    _keep.extend(cbs)
    l.vgpu_callbacks(*cbs)
    l.vgpu_profile_get.argtypes = [C.c_int, C.POINTER(C.c_char_p), C.POINTER(C.c_uint64)]
    if os.path.exists(ROCM + "/lib/vgpu-comgr.c"):
        _without_comgr()
    if patch_numba:
        _patch_numba()
    if os.environ.get("VGPU_CHECK"):
        try:
            check_code(os.environ["VGPU_CHECK"])
        except Exception as e:
            raise SystemExit(
                f"vgpu: VGPU_CHECK={os.environ['VGPU_CHECK']} cannot be switched on: {e}"
            )  # an ordinary exception would be lost at start-up
    return lib


def _without_comgr():
    """Set-up by pip, where comgr is a stand-in: numba-hip asks its clang for two attributes of an empty function. Answer that; refuse the rest. And libclang is older than cindex."""
    from rocm import comgr
    import rocm.bindings.clang.cindex as ci

    if not ci.Config.loaded:
        ci.Config.set_compatibility_check(False)

    def compile_hip_to_bc(source, isa_name, *a, **k):
        if "MYFUNC" not in source:
            raise RuntimeError(
                "vgpu: no compiler for HIP here (comgr is a stand-in), and numba-hip's device library needs one: name a ROCm that has it as ROCM_PATH"
            )
        l, P = _L(), C.c_void_p
        cpu = isa_name.split("--")[-1].split(":")[0]
        m, err = P(), C.c_char_p()
        for f in (
            "LLVMCreateMemoryBufferWithMemoryRangeCopy",
            "LLVMContextCreate",
            "LLVMWriteBitcodeToMemoryBuffer",
            "LLVMGetBufferStart",
        ):
            getattr(l, f).restype = P
        t = f'target triple = "amdgcn-amd-amdhsa"\ndefine hidden void @MYFUNC() #0 {{ ret void }}\nattributes #0 = {{ "target-cpu"="{cpu}" "target-features"="+cumode,+wavefrontsize{64 if cpu.startswith("gfx9") else 32}" }}\n'.encode()
        with _lock:
            ctx = P(l.LLVMContextCreate())
            if l.LLVMParseIRInContext(
                ctx,
                P(l.LLVMCreateMemoryBufferWithMemoryRangeCopy(t, C.c_size_t(len(t)), b"m")),
                C.byref(m),
                C.byref(err),
            ):
                raise RuntimeError(err.value)
            b = P(l.LLVMWriteBitcodeToMemoryBuffer(m))
            bc = C.string_at(l.LLVMGetBufferStart(b), l.LLVMGetBufferSize(b))
            l.LLVMDisposeMemoryBuffer(b)
            l.LLVMDisposeModule(m)
            l.LLVMContextDispose(ctx)
        return bc, "", ""

    comgr.compile_hip_to_bc = compile_hip_to_bc
    comgr.get_isa_metadata_all = lambda: {f"amdgcn-amd-amdhsa--{a}": {"Processor": a} for a in MACH.values()}


def _patch_numba(done=[]):
    if done:
        return
    from rocm import comgr
    import rocm.comgr.comgr as comgr2

    def compile_bc(bc, isa_name=None, *a, **k):
        return build(bc, isa_name.split("--")[-1]), "", ""

    def compile_bc_to_hsa(bc, isa_name=None, *a, **k):
        return build(bc, isa_name.split("--")[-1], emit_asm=True).encode(), "", ""

    mods = [comgr, comgr2] + [m for m in [sys.modules.get("numba.hip.util.comgrutils")] if m]
    for m in mods:
        m.compile_bc, m.compile_bc_to_hsa = compile_bc, compile_bc_to_hsa
    done.append(1)


def report():
    """Everything as a dict: devices (used/peak), calls per API function, live allocations, problems, insts, emu_seconds ..."""
    n = lib.vgpu_json(None, 0) + 4096
    b = C.create_string_buffer(n)
    lib.vgpu_json(b, n)
    return json.loads(b.value)


def device_list():
    return report()["devices"]


def config(**kw):
    """vgpu.config(FREE_BYTES="1GiB", ASYNC=1, ...): same keys as the VGPU_* environment variables."""
    for k, v in kw.items():
        if lib.vgpu_set(k.encode(), str(v).encode()):
            raise KeyError(k)


def fail(pattern, nth=1, error=2, repeat=False):
    """The nth call from now of the API functions matching `pattern` (shell wildcards) returns `error`, without doing anything."""
    lib.vgpu_fail(pattern.encode(), nth, int(error), int(repeat))


def clear_failures():
    lib.vgpu_fail_clear()


def calls(pattern="*"):
    return lib.vgpu_calls(pattern.encode())


def problems():
    return lib.vgpu_problem_log().decode().splitlines()


def check():
    return lib.vgpu_check()  # inspect all guard zones now; number of corrupted allocations


def reset():
    _log_problems()
    _said[0] = 0
    lib.vgpu_fail_clear()
    lib.vgpu_reset_counters()
    if "vgpu_checks" in sys.modules:
        sys.modules["vgpu_checks"].forget()


def kernels():
    return list(_kernels)  # VGPR/SGPR/LDS/scratch/spills of every kernel loaded so far


def loaded():
    """Every code object handed to hipModuleLoadData(Ex) / hipModuleLoad so far, per device: sha256 of its bytes, code_sha256 (the same whatever linked it), bytes, target, version, kernels, device, loads."""
    return [dict(f) for f in _loaded.values()]


def executed():
    """The machine code in the memory that instructions are fetched from, now: by sha256 of the code object that was given to load it."""
    return {
        co.sha256: b"".join(C.string_at(co.base + at, len(text)) for at, text in sorted(co.text))
        for co in _mods.values()
    }


def live(kind="device"):
    return [a for a in report()["live"] if kind in (None, a["kind"])]


def speed():
    r = report()
    return dict(
        insts=r["insts"],
        seconds=r["emu_seconds"],
        insts_per_s=r["insts"] / r["emu_seconds"] if r["emu_seconds"] else 0,
        launches=r["launches"],
        **stats,
    )


def launch_hook(fn):
    """fn(name, module_id, dims[7], kernarg_address, nbytes) -> HIP error code, or -1 to run the emulator. None removes it."""
    cb = LAUNCH_CB(lambda n, m, d, k, z: fn(n.decode(), m, list(d[:7]), k, z)) if fn else LAUNCH_CB(0)
    _keep.append(cb)
    lib.vgpu_launch_hook(cb)


@contextmanager
def expect(**counts):
    """with vgpu.expect(hipDeviceSynchronize=0, hipMalloc=2): ...   asserts the number of calls made inside."""
    b = {k: calls(k) for k in counts}
    yield
    bad = {k: calls(k) - b[k] for k in counts if calls(k) - b[k] != counts[k]}
    assert not bad, f"HIP calls: {bad}, expected {counts}"


# ------------------------------------------------------------------ checks of executed code (vgpu_checks.py)
def check_code(what="lds,waits,order"):
    """Switch on the checks named (VGPU_CHECK): lds, waits, order; "" switches them off. Problems: vgpu.problems()."""
    import vgpu_checks

    vgpu_checks.enable(what)


def lds_report(show=True, file=None):
    """LDS bank conflicts since check_code("lds"): see vgpu_checks.lds_report."""
    import vgpu_checks

    return vgpu_checks.lds_report(show, file)


# ------------------------------------------------------------------ any code object
def _hip(name, *a):
    rc = getattr(lib, name)(*a)
    if rc:
        lib.hipGetErrorName.restype = C.c_char_p
        raise RuntimeError(f"vgpu: {name}: {lib.hipGetErrorName(rc).decode()} ({rc}); {'; '.join(problems()[-2:])}")


def _pack(meta, args):
    """Kernel arguments -> kernarg bytes. With metadata: its offsets and sizes; explicit pointers that the caller leaves out at the end are 0."""
    slots = [
        (a[".offset"], a[".size"], a[".value_kind"])
        for a in meta.get(".args", [])
        if not a[".value_kind"].startswith("hidden")
    ]

    def raw(v, size):
        if isinstance(v, (bytes, bytearray)):
            b = bytes(v)
        elif hasattr(v, "dtype"):
            b = v.tobytes()  # NumPy scalar
        elif isinstance(v, float):
            b = struct.pack({2: "<e", 4: "<f", 8: "<d"}[size or 4], v)
        else:
            n = size or (4 if -1 << 31 <= int(v) < 1 << 32 else 8)
            b = (int(v) & (1 << 8 * n) - 1).to_bytes(n, "little")
        if size and len(b) != size:
            raise TypeError(f"vgpu: argument {v!r} has {len(b)} bytes, the kernel expects {size}")
        return b

    out = bytearray(max(meta.get(".kernarg_segment_size", 0), 8))
    if slots:
        if len(args) > len(slots) or any(not k.endswith("buffer") for _, _, k in slots[len(args) :]):
            raise TypeError(f"vgpu: {len(args)} arguments for a kernel with {slots}")
        for v, (off, size, _) in zip(args, slots):
            out[off : off + size] = raw(v, size)
    else:  # no metadata: every value at a multiple of its size
        o = 0
        for v in args:
            b = raw(v, 0)
            o += -o % min(len(b), 16)
            out[o : o + len(b)] = b
            o += len(b)
    return bytes(out)


def run_code_object(data, kernel_name, grid, block, args, shared=0):
    """Load an AMDGPU code object (ELF bytes) and run one kernel of it: grid = number of blocks, block = threads, shared = dynamic LDS bytes.
    args: NumPy arrays (copied to the device, and back after the run), objects with __cuda_array_interface__ (their address), None (null),
    numbers (int/float: size from the kernel's metadata; NumPy scalars and bytes: as they are). Returns the kernel's entry of vgpu.kernels()."""
    if lib is None:
        install(patch_numba=False)
    import numpy as np

    arch = MACH.get(struct.unpack_from("<I", data, 0x30)[0] & 0xFF, "unknown")
    devs = [d["arch"] for d in device_list()]
    if arch not in devs:
        raise RuntimeError(
            f"vgpu: the code object is for {arch}, the virtual devices are {devs}: set VGPU_DEVICES={arch}:20GiB"
        )
    old, mod, fn, todo = C.c_int(), C.c_void_p(), C.c_void_p(), []
    _hip("hipGetDevice", C.byref(old))
    _hip("hipSetDevice", devs.index(arch)) if devs[old.value] != arch else None
    try:
        _hip("hipModuleLoadData", C.byref(mod), bytes(data))
        co = next(reversed(_mods.values()))
        _hip("hipModuleGetFunction", C.byref(fn), mod, kernel_name.encode())
        meta = next((k for k in co.meta.get("amdhsa.kernels", []) if k[".name"] == kernel_name), {})
        vals = []
        for a in args:
            if isinstance(a, np.ndarray):
                if not a.flags.c_contiguous:
                    raise TypeError("vgpu: arrays must be C-contiguous")
                p = C.c_void_p()
                _hip("hipMalloc", C.byref(p), C.c_size_t(max(a.nbytes, 4)))
                todo.append((p, a))
                if a.nbytes:
                    _hip("hipMemcpyHtoD", p, C.c_void_p(a.ctypes.data), C.c_size_t(a.nbytes))
                vals.append(np.uint64(p.value))
            elif a is None:
                vals.append(np.uint64(0))
            elif hasattr(a, "__cuda_array_interface__"):
                vals.append(np.uint64(a.__cuda_array_interface__["data"][0] or 0))
            else:
                vals.append(a)
        karg = _pack(meta, vals)
        n = C.c_size_t(len(karg))
        buf = C.create_string_buffer(karg, len(karg))
        extra = (C.c_void_p * 5)(1, C.addressof(buf), 2, C.addressof(n), 3)
        g, b = ((tuple(x) if hasattr(x, "__len__") else (x,)) + (1, 1) for x in (grid, block))
        _hip("hipModuleLaunchKernel", fn, *(C.c_uint(int(x)) for x in (*g[:3], *b[:3], shared)), None, None, extra)
        _hip("hipDeviceSynchronize")
        for p, a in todo:
            if a.flags.writeable and a.nbytes:
                _hip("hipMemcpyDtoH", C.c_void_p(a.ctypes.data), p, C.c_size_t(a.nbytes))
        return next(k for k in reversed(_kernels) if k["name"] == kernel_name)
    finally:
        for p, _ in todo:
            lib.hipFree(p)
        if mod:
            lib.hipModuleUnload(mod)
        lib.hipSetDevice(old)


# ------------------------------------------------------------------ profile: executed wave instructions
CLASSES = ("matrix", "transcendental", "vector", "scalar", "lds", "global", "scratch", "wait")
_opnames, _prof = {}, {}


def _opname(raw, arch):
    r = _opnames.get((arch, raw))
    if r is None:
        i = None if _cache_inv(raw, arch) else _decoded(raw, arch)
        n = (
            _cache_inv(raw, arch)
            if i is None
            else f"{i.opx.name}::{i.opy.name}"
            if hasattr(i, "opx")
            else getattr(getattr(i, "op", None), "name", type(i).__name__)
        )
        r = _opnames[arch, raw] = re.sub(r"_e(32|64)$", "", n.lower())
    return r


def op_class(n):
    """Class of an instruction by its name."""
    if re.match(r"v_(wmma|swmmac|mfma|smfmac)", n):
        return "matrix"
    if re.match(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", n):
        return "transcendental"
    if n.startswith("v_"):
        return "vector"
    if re.match(
        r"s_(barrier|wait|delay_alu|nop|sleep|code_end)|(buffer|global)_(gl\d_inv|inv|invl2|wb|wbl2|wbinv\w*)$", n
    ):
        return "wait"
    if n.startswith("s_"):
        return "scalar"
    return {"ds": "lds", "scratch": "scratch"}.get(n.split("_")[0], "global")


def op_cycles(n):
    """Issue cycles of one wave32 instruction on a gfx11 SIMD: a model, see README.md."""
    c = op_class(n)
    return (16 if "iu4" in n else 32) if c == "matrix" else 4 if c == "transcendental" else 1


def _profile_collect():
    name, out, i = C.c_char_p(), (C.c_uint64 * 6)(), 0
    while lib is not None and lib.vgpu_profile_get(i, C.byref(name), out):  # (reading resets launches and waves)
        m, base, size, ptr, launches, waves = out
        i += 1
        co = _mods.get(m)
        if co is None:
            continue
        r = _prof.setdefault((name.value.decode(), co.arch), dict(launches=0, waves=0, ops={}))
        r["launches"] += launches
        r["waves"] += waves
        if not launches:
            continue
        arch = next(v for k, v in EMU_ARCH.items() if co.arch.startswith(k))
        n = (C.c_uint64 * (size // 4)).from_address(ptr)
        for j, x in enumerate(memoryview(n).cast("B").cast("Q")):
            if x:
                o = _opname(C.string_at(base + 4 * j, 16), arch)
                r["ops"][o] = r["ops"].get(o, 0) + x
        C.memset(ptr, 0, C.sizeof(n))


def profile_report():
    """{kernel: dict(arch, launches, waves, insts, classes, ops, dual, valu_per_matrix, cycles, matrix_share, matrix_share_valu)} since profiling began."""
    _profile_collect()
    rep = {}
    for (name, arch), r in _prof.items():
        if not r["launches"]:
            continue
        cl = dict.fromkeys(CLASSES, 0)
        cy = dict.fromkeys(CLASSES, 0)
        for o, x in r["ops"].items():
            cl[op_class(o)] += x
            cy[op_class(o)] += x * op_cycles(o)
        d = dict(
            arch=arch,
            launches=r["launches"],
            waves=r["waves"],
            insts=sum(cl.values()),
            classes=cl,
            ops=dict(sorted(r["ops"].items(), key=lambda t: -t[1])),
            dual=sum(x for o, x in r["ops"].items() if "::" in o),
            valu_per_matrix=(cl["vector"] + cl["transcendental"]) / cl["matrix"] if cl["matrix"] else None,
        )
        if arch.startswith("gfx11"):
            d.update(
                cycles=cy,
                matrix_share=cy["matrix"] / (sum(cy.values()) or 1),
                matrix_share_valu=cy["matrix"] / (cy["matrix"] + cy["transcendental"] + cy["vector"] or 1),
            )
        rep[name if name not in rep else f"{name}@{arch}"] = d
    return rep


class profile:
    """with vgpu.profile() as p: ...; print(p); p.kernels   or   vgpu.profile(True); ...; vgpu.profile_report(); vgpu.profile(False)"""

    def __init__(self, on=True):
        if lib is None:
            install(patch_numba=False)
        self.kernels = {}
        lib.vgpu_profile(0)
        if on:
            _profile_collect()
            _prof.clear()
            lib.vgpu_profile(1)

    def __enter__(self):
        return self

    def __exit__(self, *a):
        lib.vgpu_profile(0)
        self.kernels = profile_report()

    def __str__(self):
        o = []
        for n, k in (self.kernels or profile_report()).items():
            o.append(
                f"{n} ({k['arch']}): {k['launches']} launches, {k['waves']} waves, {k['insts']} wave instructions, {k['dual']} of them dual"
            )
            for c in CLASSES:
                if k["classes"][c]:
                    o.append(
                        f"  {c:15}{k['classes'][c]:12}{100 * k['classes'][c] / k['insts']:7.1f}%"
                        + (f"{k['cycles'][c]:12} cycles" if "cycles" in k else "")
                    )
            if k["valu_per_matrix"] is not None:
                o.append(
                    f"  VALU per matrix instruction {k['valu_per_matrix']:.2f}"
                    + (
                        f"; matrix share of issue cycles {100 * k['matrix_share']:.1f}%, of vector-unit cycles {100 * k['matrix_share_valu']:.1f}%"
                        if "cycles" in k
                        else ""
                    )
                )
            o.append("  " + ", ".join(f"{x} {c}" for x, c in list(k["ops"].items())[:12]))
        return "\n".join(o)


def _log_lds():
    """Append what the check lds has counted, by code object."""
    if (
        os.environ.get("VGPU_LOG")
        and "vgpu_checks" in sys.modules
        and (found := sys.modules["vgpu_checks"].lds_by_code())
    ):
        _log(lds=found)


atexit.register(_log_problems)
atexit.register(_log_lds)
if os.environ.get("VGPU_REPORT"):
    atexit.register(
        lambda: (
            lib is not None
            and print(
                "vgpu report:",
                json.dumps({**report(), "live": len(report()["live"]), "loaded": loaded(), **stats}),
                file=sys.stderr,
            )
        )
    )
