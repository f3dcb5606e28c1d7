"""Architectures of the host: the interpreter, and sets of instructions of x86-64.

An architecture of the cpu target is a fixed set of instructions, not "what this machine has", so that machine code is
the same on every machine of that architecture and can be carried there. On x86-64 they are the levels of its ABI
(x86-64 psABI, table 3.1), which LLVM knows by name. Elsewhere `cpu-portable` stands for whatever the host is.
"""

from __future__ import annotations

from dataclasses import replace

from rocmkern.architectures.record import KIB, Architecture

#: What a processor of each level has beyond the level before.
_V2 = ("cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave")
_V4 = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

# One thread's share of a level-2 cache: a larger window would be slower than no window at all.
_CPU = Architecture(name="", target="cpu", families=("cpu",), wave=1, shared_bytes=1024 * KIB)

HOST = (
    Architecture("python", "python", families=(), wave=1, shared_bytes=1024 * KIB),
    replace(_CPU, name="cpu-avx512", processor="x86-64-v4", features=_V2 + _V3 + _V4, vector_lanes=16, permutes=True),
    replace(_CPU, name="cpu-avx2", processor="x86-64-v3", features=_V2 + _V3, vector_lanes=8),
    replace(_CPU, name="cpu-portable", processor="x86-64-v2", features=_V2, vector_lanes=4),
)
