"""Checks of executed machine code: VGPU_CHECK=lds,waits,order, or `vgpu_checks.enable("lds,waits")` / `vgpu_checks.enable("")`.

lds    bank conflicts of LDS instructions: `vgpu.lds_report()`
waits  registers used before the load that fills them is waited for, LDS data passed between waves without wait and barrier,
       matrix hazards that hardware does not interlock: `vgpu.problems()`
order  global memory written by one block and read by another without release and acquire: `vgpu.problems()`

The checks themselves are in vgpu_checks.c, compiled at first use with clang-21 ($CC) into $VGPU_CACHE. Here: the description of each
instruction, made from its disassembly (the wheel's LLVM).
"""

import ctypes as C, hashlib, os, re, subprocess, sys, threading, shutil
import vgpu

HERE = os.path.dirname(os.path.abspath(__file__))
(K_OTHER, K_LOAD, K_STORE, K_ATOMIC, K_LDS, K_SMEM, K_WAIT, K_BAR, K_SIGNAL, K_BARWAIT, K_INV, K_WB) = range(12)
(S_NONE, S_GLOBAL, S_FLAT, S_BUFFER, S_LDS, S_SCRATCH) = range(6)
(C_VM, C_VS, C_LGKM, C_KM) = range(4)
(T_NONE, T_VM, T_VS, T_LDS, T_SMEM, T_FLATV, T_FLATL, T_MSG) = range(8)
NONE = 0xFFFF


class Rng(C.Structure):
    _fields_ = [("base", C.c_uint16), ("n", C.c_uint8), ("fl", C.c_uint8)]


class Desc(C.Structure):
    _fields_ = (
        [
            (n, C.c_uint8)
            for n in (
                "ready kind valu nr space ldsop mem ret coh level t0 t1 wmma mfma xdl passes nops naddr vaddr64 bytes ngrp doc isbyte wr_exec trans dpp lanesel fmas rlane"
            ).split()
        ]
        + [("gmax", C.c_uint8 * 4)]
        + [(n, C.c_uint16) for n in "vaddr saddr srd soff data width".split()]
        + [
            ("off", C.c_int32),
            ("off2", C.c_int32),
            ("wait", C.c_uint8 * 4),
            ("ctr_of", C.c_uint8 * 8),
            ("r", Rng * 14),
            ("text", C.c_char_p),
        ]
        + [(n, C.c_uint64) for n in ("n", "best", "worst", "ideal", "first")]
        + [("grp", (C.c_uint8 * 64) * 4)]
    )


class Hooks(C.Structure):
    _fields_ = [(n, C.c_void_p) for n in ("launch", "wg", "inst", "release", "end")]


SAY = C.CFUNCTYPE(None, C.c_char_p)
DESCRIBE = C.CFUNCTYPE(None, C.c_uint64, C.c_uint64, C.c_uint64, C.POINTER(Desc), C.c_char_p)
STATS = C.CFUNCTYPE(None, C.c_uint64, C.c_char_p, *[C.c_uint64] * 6)

# ------------------------------------------------------------------ disassembly
_dis, _texts, _keep, _lib, _on = {}, {}, [], None, 0


def disassemble(raw, arch):
    """(text, size) of the instruction at the start of `raw`, by the wheel's LLVM."""
    l = vgpu._L()
    if arch not in _dis:
        l.LLVMInitializeAMDGPUDisassembler()
        l.LLVMCreateDisasmCPU.restype = C.c_void_p
        l.LLVMDisasmInstruction.restype = C.c_size_t
        l.LLVMDisasmInstruction.argtypes = [C.c_void_p, C.c_char_p, C.c_uint64, C.c_uint64, C.c_char_p, C.c_size_t]
        _dis[arch] = l.LLVMCreateDisasmCPU(b"amdgcn-amd-amdhsa", arch.encode(), None, 0, None, None)
        if not _dis[arch]:
            raise RuntimeError(f"vgpu checks: no disassembler for {arch}")
    o = C.create_string_buffer(320)
    n = l.LLVMDisasmInstruction(_dis[arch], raw, len(raw), 0, o, 320)
    return re.sub(r"\s+", " ", o.value.decode()).strip(), n


_REG = re.compile(r"\b([vas])(\d+)\b|\b([vas])\[(\d+):(\d+)\]|\b(vcc_lo|vcc_hi|vcc|exec_lo|exec_hi|exec|m0)\b")
_NAMED = {
    "vcc_lo": (106, 1),
    "vcc_hi": (107, 1),
    "vcc": (106, 2),
    "exec_lo": (126, 1),
    "exec_hi": (127, 1),
    "exec": (126, 2),
    "m0": (124, 1),
}


def _regs(op):
    """Register ranges (base, count) in an operand: v at 0, a at 256, s at 512."""
    r = []
    for m in _REG.finditer(op):
        if m[1]:
            r.append(({"v": 0, "a": 256, "s": 512}[m[1]] + int(m[2]), 1))
        elif m[3]:
            r.append(({"v": 0, "a": 256, "s": 512}[m[3]] + int(m[4]), int(m[5]) - int(m[4]) + 1))
        else:
            r.append((512 + _NAMED[m[6]][0], _NAMED[m[6]][1]))
    return r


def _split(s):
    out, depth, cur = [], 0, ""
    for c in s:
        depth += c in "[("
        depth -= c in "])"
        if c == "," and not depth:
            out.append(cur.strip())
            cur = ""
        else:
            cur += c
    return out + [cur.strip()] if cur.strip() else out


_S0 = re.compile(
    r"s_(cmp|cmpk|bitcmp|cbranch|branch|wait|barrier|nop|endpgm|sleep|setreg|sendmsg$|sendmsghalt|set|delay|clause|inst_prefetch|prefetch|dcache|icache|code_end|trap|round|denorm|version|store|buffer_store|scratch_store|incperf|decperf|ttrace|wakeup|setpc|rfe|gl1_inv)"
)
_V2 = re.compile(
    r"v_(add|sub|subrev|addc|subb|subbrev)_co|v_(addc|subb|subbrev)_u32|v_div_scale|v_mad_(co_)?[ui]64|v_swap|v_permlane\d+_swap"
)


def _mem_bytes(m):
    """Bytes per lane of a memory instruction, by its name."""
    m = re.sub(r"_d16(_hi|_lo)?", "", m)
    m = re.sub(r"_(st64|stride64|2addr)", "", m)
    m = re.sub(r"(read|write|load|store)2", r"\1", m)
    k = re.search(
        r"(dwordx\d|dword|[ui]?byte|sbyte|[us]short|short|[bui f]\d+|x2)(_|$)",
        re.sub(r".*?(load|store|read|write|atomic|ds)_", "", m) if "atomic" not in m else m,
    )
    if "pk_add" in m:
        return 4
    if "atomic" in m or (m.startswith("ds_") and not re.search(r"read|write|load|store", m)):
        return 8 if re.search(r"x2$|64$", m) else 4
    s = m.split("_")[-1]
    if s.startswith("dwordx"):
        return 4 * int(s[6:])
    n = {"dword": 4, "byte": 1, "ubyte": 1, "sbyte": 1, "short": 2, "ushort": 2, "sshort": 2}.get(s)
    if n:
        return n
    k = re.search(r"[buif](\d+)$", s)
    return int(k[1]) // 8 if k else 4


# ------------------------------------------------------------------ LDS: which lanes share a cycle
# Sources: [CK] "Understanding AMD GPU LDS and Bank Conflicts", rocm.docs.amd.com/projects/composable_kernel (conceptual/ck_tile/hardware/
# lds_bank_conflicts) and "Avoiding LDS Bank Conflicts on AMD GPUs Using CK-Tile", rocm.blogs.amd.com: 32 banks x 4 bytes; ds_write_b128 8 consecutive lanes,
# ds_read_b128 lanes 0-3+20-23, 4-7+16-19, 8-11+28-31, 12-15+24-27, and so on + 32.  [HK] HipKittens, analysis/paper_experiments/phases, measured on
# gfx950: 64 banks, ds_read_b128 4 groups of 16, ds_read_b64 halves, ds_write_b64 16 consecutive lanes.  [ISA] 32 lanes x 4 bytes a cycle.
# Everything else is not documented: best (the fullest bank over all lanes) to worst (of some groupings) is reported.
def _cons(n):
    return [i // n for i in range(64)]


_CK = {0: 0, 1: 1, 2: 2, 3: 3, 4: 1, 5: 0, 6: 3, 7: 2}  # quad of lanes within 32 -> cycle
_HK = {0: 0, 1: 1, 2: 1, 3: 0, 4: 1, 5: 0, 6: 0, 7: 1}


def _mi300():
    return [_CK[i % 32 // 4] + 4 * (i // 32) for i in range(64)]


def _mi350():
    return [_HK[i % 32 // 4] + 2 * (i // 32) for i in range(64)]


def grouping(arch, read, bytes_, two):
    """(groups, documented, source, bytes per cycle)"""
    w = bytes_ * (2 if two else 1)
    n950 = arch.startswith("gfx95")
    if n950:
        if w == 16 and read and not two:
            return [_mi350()], 1, "HipKittens, measured on gfx950", 256
        if w == 8 and read and not two:
            return [_cons(32)], 1, "HipKittens, measured on gfx950", 256
        if w == 8 and not two:
            return [_cons(16)], 1, "HipKittens, measured on gfx950", 128
        if w <= 4:
            return [_cons(64), _cons(32)], 0, "not documented", 256
        return [_cons(16), _cons(8)], 0, "not documented", 256
    if w <= 4:
        return [_cons(32)], 1, "ISA: 32 banks, 32 lanes a cycle", 128
    if arch.startswith("gfx9") and w == 16 and not two:
        return [_mi300() if read else _cons(8)], 1, "Composable Kernel documentation", 128
    if w == 8:
        return (
            [_cons(16), [i % 2 + 2 * (i // 32) for i in range(64)], [i // 8 % 2 + 2 * (i // 32) for i in range(64)]],
            0,
            "not documented",
            128,
        )
    return [_cons(8), _mi300(), [i % 4 + 4 * (i // 32) for i in range(64)]], 0, "not documented", 128


# ------------------------------------------------------------------ description of one instruction
def parse(text, arch):
    """Fields of `Desc` for one instruction."""
    d = dict(kind=K_OTHER, wait=[255] * 4, r=[], nops=1, vaddr=NONE, saddr=NONE, srd=NONE, soff=NONE, data=NONE)
    g9, g12 = arch.startswith("gfx9"), arch.startswith("gfx12")
    g94 = arch.startswith(("gfx94", "gfx95"))
    R = d["r"]

    def add(op, fl):
        R.extend((b, n, fl) for b, n in _regs(op))

    if "::" in text:  # v_dual
        d["valu"] = 1
        for half in text.split("::"):
            m, _, rest = half.strip().partition(" ")
            ops = _split(rest)
            add(ops[0], 3 if "fmac" in m or "dot2acc" in m else 1)
            for o in ops[1:]:
                add(o, 2)
            if "cndmask" in m:
                R.append((512 + 106, 1, 2))
        return d
    m, _, rest = text.partition(" ")
    ops = _split(rest)
    m = re.sub(r"_e(32|64)(_dpp)?$|_(dpp|sdwa)$", "", m)
    mods = ops[-1] if ops else ""
    full = " " + rest + " "
    store_t = T_VM if g9 else T_VS

    def num(s):
        return int(s, 0)

    def mod(name, default=0):
        k = re.search(rf"\b{name}:(-?(?:0x[0-9a-f]+|\d+))", rest)
        return num(k[1]) if k else default

    if m.startswith("s_"):
        if m.startswith("s_wait"):
            d["kind"] = K_WAIT
            W = d["wait"]
            for name, c in (("vmcnt", C_VM), ("lgkmcnt", C_LGKM)):
                k = re.search(rf"\b{name}\((\d+)\)", rest)
                if k:
                    W[c] = int(k[1])
            if m in ("s_waitcnt_vscnt", "s_waitcnt_vmcnt", "s_waitcnt_lgkmcnt"):
                W[{"v": C_VS}.get(m[10] if m[11] == "s" else "", C_VM if "vmcnt" in m else C_LGKM)] = num(ops[-1])
            if g12:
                v = num(ops[0]) if ops and re.match(r"^(0x)?[0-9a-f]+$", ops[0]) else 0
                if m == "s_wait_loadcnt":
                    W[C_VM] = v
                elif m == "s_wait_storecnt":
                    W[C_VS] = v
                elif m == "s_wait_dscnt":
                    W[C_LGKM] = v
                elif m == "s_wait_kmcnt":
                    W[C_KM] = v
                elif m == "s_wait_loadcnt_dscnt":
                    W[C_VM], W[C_LGKM] = v >> 8 & 63, v & 63
                elif m == "s_wait_storecnt_dscnt":
                    W[C_VS], W[C_LGKM] = v >> 8 & 63, v & 63
                elif m == "s_wait_idle":
                    W[:] = [0] * 4
            return d
        if m == "s_nop":
            d["nops"] = num(ops[0]) + 1
            return d
        if m == "s_barrier":
            d["kind"] = K_BAR
            return d
        if m == "s_barrier_signal":
            d["kind"] = K_SIGNAL
            return d
        if m == "s_barrier_wait":
            d["kind"] = K_BARWAIT
            return d
        if "vcc" in m:
            R.append((512 + 106, 1 if not g9 else 2, 2))
            return d
        if re.match(r"s_(load|buffer_load|scratch_load)_|s_mem(real)?time|s_get_barrier_state|s_sendmsg_rtn", m):
            d.update(kind=K_SMEM, t0=T_SMEM)
            add(ops[0], 1)
            for o in ops[1:]:
                add(o, 2)
            if m.startswith("s_load_"):
                b = _regs(ops[1])
                if b and b[0][1] == 2:
                    d["saddr"] = b[0][0] - 512
                k = re.match(r"(0x[0-9a-f]+|\d+)", ops[2]) if len(ops) > 2 else None
                so = _regs(ops[2].split(" ")[0]) if len(ops) > 2 else []
                d["off"] = num(k[1]) if k else mod("offset")
                if so:
                    d["soff"] = so[0][0] - 512
                d["bytes"] = _mem_bytes(m)
            return d
        if m in ("s_sendmsg", "s_sendmsghalt"):
            d["t0"] = T_MSG
            return d
        n = 0 if _S0.match(m) else 1
        for i, o in enumerate(ops):
            add(o, 1 if i < n else 2)
        return d
    if m.startswith("v_"):
        d["valu"] = 1
        if re.match(r"v_(wmma|swmmac|mfma|smfmac)", m):
            wm = "wmma" in m or "swmmac" in m
            d["wmma" if wm else "mfma"] = 1
            add(ops[0], 1 if "mmac" not in m.replace("wmma", "") else 3)
            add(ops[1], 6)
            add(ops[2], 6)
            add(ops[3], 10)
            if not wm:
                k = re.search(r"_(\d+)x(\d+)x(\d+)", m)
                a, kk = int(k[1]), int(k[3])
                f64 = m.startswith("v_mfma_f64")
                plain = re.search(r"x\d+(_\d+b)?_?f32$", m) is not None
                d["xdl"] = int(not f64 and not plain)
                if g94:
                    d["passes"] = (
                        0
                        if f64
                        else 2
                        if a == 4
                        else (4 if kk >= 8 else 8)
                        if a == 16
                        else (8 if kk >= 8 or "xf32" in m else 16)
                    )
                else:
                    d["passes"] = 0 if f64 else {4: 2, 16: 8, 32: 16}[a]
            return d
        if m.startswith("v_cmpx"):
            d["wr_exec"] = 1
        d["trans"] = int(bool(re.match(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", m)))
        d["dpp"] = int(
            bool(
                re.search(
                    r"quad_perm|row_(shl|shr|ror|mirror|half|bcast|newbcast|share|xmask)|wave_(shl|rol|shr|ror)", rest
                )
            )
        )
        d["fmas"] = int("div_fmas" in m)
        d["rlane"] = int(m in ("v_readlane_b32", "v_readfirstlane_b32"))
        if m in ("v_readlane_b32", "v_writelane_b32") and (q := _regs(ops[2])) and q[0][0] >= 512:
            d["lanesel"] = q[0][0] - 512 + 1
        n = 0 if m == "v_nop" or (m.startswith("v_cmpx") and not g9) else 2 if _V2.match(m) else 1
        both = re.match(r"v_(pk_)?(fmac|mac)|v_dot\d+c|v_writelane|v_swap|v_permlane", m)
        for i, o in enumerate(ops):
            add(o, (3 if both else 1) if i < n else 2)
        if "div_fmas" in m:
            R.append((512 + 106, 1 if not g9 else 2, 2))
        return d
    if m.startswith("ds_"):
        d.update(kind=K_LDS, t0=T_LDS, space=S_LDS)
        read = re.match(r"ds_(read|load)", m)
        write = re.match(r"ds_(write|store)", m)
        perm = re.match(r"ds_(b?permute|swizzle|consume|append|ordered|gws|nop|bvh)", m)
        rtn = "_rtn" in m or m in ("ds_consume", "ds_append")
        n = 1 if read or rtn or (perm and m != "ds_nop" and "gws" not in m) else 0
        for i, o in enumerate(ops):
            add(o, 1 if i < n else 2)
        if perm or "addtid" in m or "_tr" in m:
            return d
        two = bool(re.search(r"read2|write2|2addr", m))
        b = _mem_bytes(m)
        d.update(bytes=b, isbyte=int(b == 1), naddr=2 if two else 1, ldsop=1 if read else 2 if write else 3)
        a = _regs(ops[n])
        d["vaddr"] = a[0][0]
        if two:
            s = b * (64 if "64_" in m.replace("_b64", "") or "stride64" in m or "st64" in m else 1)
            d["off"], d["off2"] = mod("offset0") * s, mod("offset1") * s
        else:
            d["off"] = mod("offset")
        if write and not two and "d16_hi" not in m:
            d["data"] = _regs(ops[1])[0][0]
        groups, doc, src, width = grouping(arch, bool(read), b, two)
        d.update(ngrp=len(groups), doc=doc, grp=groups, width=width)
        return d
    if m in ("buffer_wbl2", "global_wb", "global_wbinv"):
        dev = "sc1" in full if m == "buffer_wbl2" else re.search(r"SCOPE_(DEV|SYS)", rest)
        d.update(kind=K_WB if dev else K_OTHER, t0=store_t)
        return d
    if re.match(r"(buffer|global)_(gl[01]_inv|inv|invl2|wbinv)", m):
        if m == "buffer_gl0_inv":
            lv = 1
        elif m == "buffer_gl1_inv":
            lv = 2
        elif m == "buffer_inv":
            lv = 3 if "sc1" in full else 1 if "sc0" in full else 0
        elif m == "global_inv":
            lv = 3 if re.search(r"SCOPE_(DEV|SYS)", rest) else 1 if "SCOPE_SE" in rest else 0
        else:
            lv = 3
        d.update(kind=K_INV, level=lv)
        if m == "global_inv":
            d["t0"] = T_VM
        return d
    sp = m.split("_")[0]
    if sp in ("global", "flat", "buffer", "scratch", "tbuffer"):
        load, store, atomic = "_load" in m, "_store" in m, "_atomic" in m
        ret = atomic and bool(
            re.search(r" (glc|sc0)\b|TH_ATOMIC_RETURN|TH_ATOMIC_.*RETURN", full) if not g94 else " sc0" in full
        )
        n = 1 if (load and " lds" not in full) or ret else 0
        for i, o in enumerate(ops):
            add(o, 1 if i < n else 2)
        coh = bool(re.search(r"SCOPE_(DEV|SYS)", rest)) if g12 else " sc1" in full if g94 else load and " glc" in full
        d.update(
            kind=K_LOAD if load else K_STORE if store else K_ATOMIC if atomic else K_OTHER,
            ret=int(ret),
            coh=int(bool(coh)),
            bytes=_mem_bytes(m),
            t0=(T_VM if load or ret else store_t),
            t1=T_FLATL if sp == "flat" else T_NONE,
            space={"global": S_GLOBAL, "flat": S_FLAT, "buffer": S_BUFFER}.get(sp, S_SCRATCH),
        )
        if not (load or store or atomic):
            d.update(t0=T_NONE, t1=T_NONE, space=S_NONE)
            return d
        if store:
            q = _regs(ops[0] if sp in ("buffer", "tbuffer") else ops[1])
            d["data"] = q[0][0] if q else NONE
        d["off"] = mod("offset")
        if sp in ("global", "flat"):
            a = n if not store and not (atomic and not ret) else 0
            v = _regs(ops[a])
            d["vaddr"] = v[0][0] if v else NONE
            if sp == "global":
                s = _regs(ops[-1].split(" ")[0]) if not ops[-1].startswith("off") else []
                if s and s[0][0] >= 512:
                    d["saddr"] = s[0][0] - 512
        elif sp == "buffer":
            v = _regs(ops[1])
            srd = _regs(ops[2]) if len(ops) > 2 else []
            so = ops[3].split(" ")[0] if len(ops) > 3 else "0"
            if " idxen" in full or not srd:
                d["space"] = S_SCRATCH
            else:
                d["srd"] = srd[0][0] - 512
                d["vaddr"] = v[0][0] if v and " offen" in full else NONE
                q = _regs(so)
                if q:
                    d["soff"] = q[0][0] - 512
                elif re.match(r"^(0x)?[0-9a-f]+$", so):
                    d["off"] += num(so)
        return d
    return d


def _fill(d, text, arch):
    f = parse(text, arch)
    for k, v in f.items():
        if k == "wait":
            d.wait[:] = v
        elif k == "r":
            d.nr = min(len(v), 14)
            for i, (b, n, fl) in enumerate(v[:14]):
                d.r[i] = Rng(b, n, fl)
        elif k == "grp":
            for i, g in enumerate(v):
                d.grp[i][:] = g
                d.gmax[i] = max(g[:32] if not arch.startswith("gfx9") else g)
        else:
            setattr(d, k, v)
    g9, g12 = arch.startswith("gfx9"), arch.startswith("gfx12")
    d.ctr_of[:] = [
        0,
        C_VM,
        C_VM if g9 else C_VS,
        C_LGKM,
        C_KM if g12 else C_LGKM,
        C_VM,
        C_LGKM,
        C_KM if g12 else C_LGKM,
    ]
    if not d.width:
        d.width = 128


def _describe(mid, pc, off, dp, arch):
    try:
        arch = arch.decode()
        text, n = disassemble(C.string_at(pc, 16), arch)
        if not n:
            text = f"(not disassembled: {C.string_at(pc, 8).hex()})"
        dp.contents.text = _texts.setdefault(text, text.encode())  # the bytes object stays alive here
        if n:
            _fill(dp.contents, text, arch)
        else:
            print(f"vgpu checks: cannot disassemble +0x{off:x} for {arch}", file=sys.stderr)
    except Exception:
        import traceback

        traceback.print_exc()


# ------------------------------------------------------------------ switching on and off
def _load():
    global _lib
    if _lib is None:
        src = HERE + "/vgpu_checks.c"
        data = open(src, "rb").read()
        path = f"{vgpu.CACHE}/checks-{hashlib.sha256(data).hexdigest()[:16]}.so"
        if not os.path.exists(path):
            os.makedirs(vgpu.CACHE, exist_ok=True)
            tmp = f"{path}.{os.getpid()}"
            # CC may be the emulator's compiler (setup-pip.sh), which cannot link: look for one that can
            cc = next(
                (c for c in (os.environ.get("VGPU_CC"), "clang-21", "clang", "gcc", "cc") if c and shutil.which(c)),
                None,
            )
            cc = [cc] if cc else [sys.executable, "-m", "ziglang", "cc"]
            subprocess.run([*cc, "-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-o", tmp, src], check=True)
            os.replace(tmp, path)
        _lib = C.CDLL(path)
        _lib.checks_hooks.restype = C.c_void_p
        _lib.checks_sizeof.restype = C.c_uint64
        _lib.checks_dropped.restype = C.c_uint64
        if _lib.checks_sizeof() != C.sizeof(Desc):
            raise RuntimeError(f"vgpu checks: layout differs ({_lib.checks_sizeof()}, {C.sizeof(Desc)})")
    return _lib


def enable(what="lds,waits,order"):
    """Switch checks on (comma separated names) or off (empty). Counting of LDS conflicts begins anew."""
    global _on
    names = [w for w in re.split(r"[,\s]+", what or "") if w]
    bad = set(names) - {"lds", "waits", "order", "all"}
    if bad:
        raise ValueError(f"VGPU_CHECK: unknown check {', '.join(sorted(bad))}; there are lds, waits, order")
    if not names:
        vgpu.lib.vgpu_set_checks(None)
        _on = 0
        return
    m = 7 if "all" in names else sum({"lds": 1, "waits": 2, "order": 4}[w] for w in set(names))
    l = _load()

    def tell(text):
        vgpu.lib.vgpu_problem(text)
        vgpu._log_problems()  # at once: the process may be killed

    say = SAY(tell)
    desc = DESCRIBE(_describe)
    _keep.extend((say, desc))
    vgpu.lib.vgpu_problem.argtypes = [C.c_char_p]
    vgpu.lib.vgpu_set_checks.argtypes = [C.c_void_p]
    l.checks_config(m, say, desc)
    l.checks_forget()
    _stats.clear()
    vgpu.lib.vgpu_set_checks(l.checks_hooks())
    _on = m


def forget():
    """Report problems again that have been reported already (each is reported once per place)."""
    if _lib:
        _lib.checks_forget()


# ------------------------------------------------------------------ LDS report
_stats = {}


def _symbol(co, off):
    best = None
    for n, (va, size, ty) in co.syms.items():
        if ty == 2 and va <= off and (best is None or va > best[0]):
            best = va, n
    return best[1] if best else "?"


def collect(mid=None):
    """Take over the counters of one module (or all). Called before a module is unloaded."""
    if _lib is None:
        return
    for m in [mid] if mid is not None else list(vgpu._mods):
        co = vgpu._mods.get(m)
        if co is None:
            continue

        def one(off, text, matrix, n, best, worst, ideal, cons):
            k = _stats.setdefault((_symbol(co, off), co.arch), {})
            r = k.setdefault(
                (m, off),
                dict(
                    text=text.decode(), matrix=matrix, executed=0, best=0, worst=0, ideal=0, cons=0, code=co.code_sha256
                ),
            )
            for f, v in (("executed", n), ("best", best), ("worst", worst), ("ideal", ideal), ("cons", cons)):
                r[f] += v

        _lib.checks_stats(C.c_uint64(m), STATS(one))
        if mid is not None:
            _lib.checks_drop(C.c_uint64(m))


def lds_by_code():
    """{code_sha256: dict(kernel, arch, matrix, instructions={offset: dict(text, executed, cycles=[best, worst], ideal, documented)})}: what `lds_report` has, for each code object."""
    collect()
    out = {}
    for (name, arch), rows in _stats.items():
        for (m, off), r in sorted(rows.items()):
            c = out.setdefault(r["code"], dict(kernel=name, arch=arch, matrix=0, instructions={}))
            if r["matrix"]:
                c["matrix"] += r["executed"]
                continue
            f = parse(r["text"], arch)
            rule = grouping(arch, f.get("ldsop") == 1, f.get("bytes", 4), f.get("naddr") == 2)
            i = c["instructions"].setdefault(
                str(off), dict(text=r["text"], executed=0, cycles=[0, 0], ideal=0, documented=bool(rule[1]))
            )
            i["executed"] += r["executed"]
            i["cycles"] = [i["cycles"][0] + r["best"], i["cycles"][1] + r["worst"]]
            i["ideal"] += r["ideal"]
    return {code: c for code, c in out.items() if c["instructions"]}


def lds_report(show=True, file=None):
    """`first`: cycles with the first grouping of `grouping()`: the documented one, or consecutive lanes.
    [dict(kernel, arch, matrix, executed, cycles=(best, worst), ideal, factor=(best, worst), per_matrix, instructions=[dict(offset, text, ...)])], and a table."""
    collect()
    out = []
    for (name, arch), rows in sorted(_stats.items()):
        ins = []
        for (m, off), r in sorted(rows.items()):
            if r["matrix"]:
                continue
            f = parse(r["text"], arch)
            src = grouping(arch, f.get("ldsop") == 1, f.get("bytes", 4), f.get("naddr") == 2)[2]
            ins.append(
                dict(
                    offset=off,
                    text=r["text"],
                    executed=r["executed"],
                    cycles=(r["best"], r["worst"]),
                    first=r["cons"],
                    ideal=r["ideal"],
                    factor=tuple(x / r["ideal"] if r["ideal"] else 1.0 for x in (r["best"], r["worst"])),
                    source=src,
                )
            )
        mat = sum(r["executed"] for r in rows.values() if r["matrix"])
        b, w, i = (
            sum(x) for x in ([t["cycles"][0] for t in ins], [t["cycles"][1] for t in ins], [t["ideal"] for t in ins])
        )
        if ins:
            out.append(
                dict(
                    kernel=name,
                    arch=arch,
                    matrix=mat,
                    executed=sum(t["executed"] for t in ins),
                    cycles=(b, w),
                    first=sum(t["first"] for t in ins),
                    ideal=i,
                    factor=(b / i if i else 1.0, w / i if i else 1.0),
                    per_matrix=(b / mat, w / mat) if mat else None,
                    instructions=ins,
                )
            )
    if show:

        def span(t, f="{:g}"):
            a, b = (f.format(x) for x in t)
            return a if a == b else f"{a} to {b}"

        for k in out:
            print(
                f"{k['kernel'] if len(k['kernel']) < 49 else k['kernel'][:45] + '...'} ({k['arch']}): {k['executed']} LDS instructions, {span(k['cycles'])} cycles, ideal {k['ideal']}, conflict factor {span(k['factor'], '{:.2f}')} ({k['first'] / (k['ideal'] or 1):.2f} with the first grouping), {k['matrix']} matrix instructions"
                + (f", {span(k['per_matrix'], '{:.2f}')} LDS cycles each" if k["matrix"] else ""),
                file=file,
            )
            for t in k["instructions"]:
                print(
                    f"  +0x{t['offset']:<6x}{t['text'][:52]:54}{t['executed']:9} x {span(t['cycles']):>17} cycles, ideal {t['ideal']:8}, factor {span(t['factor'], '{:.2f}'):13} [{t['source']}]",
                    file=file,
                )
    return out
