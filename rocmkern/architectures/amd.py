"""AMD's architectures: what LLVM compiles for, and HIP users have.

Sources: AMD's instruction set documents (CDNA 2, 3 and 4, RDNA 2, 3 and 4); LLVM's "User Guide for AMDGPU Backend" for
register granules, generic targets and ELF flags. Operations of matrix instructions a clock and compute unit: AMD's
tables for MI100, MI200, MI300 and MI350 (gfx950 has twice the rate for its instructions of twice the K only), "How to
accelerate AI applications on RDNA 3 using WMMA", and the peaks of RDNA 4 cards over units and clock. Cards: their data
sheets.

On RDNA a block runs in compute unit mode, which its code is compiled for: two SIMDs share 64 KiB.
"""

from __future__ import annotations

from dataclasses import replace

from rocmkern.architectures.record import KIB, Architecture, Card, ComputeUnit


def _gfx(
    like: Architecture,
    number: str,
    elf_machine: int,
    compute_unit: ComputeUnit | None = None,
    card: Card | None = None,
    runs_on: str = "",
) -> Architecture:
    """An architecture like another one, with another compute unit if there is one."""
    name, unit = f"gfx{number}", compute_unit or like.compute_unit
    return replace(
        like, name=name, processor=name, elf_machine=elf_machine, compute_unit=unit, card=card, runs_on=runs_on
    )


_CDNA_UNIT = ComputeUnit(registers=512, granule=8, waves=8, simds=4, simd_lanes=16, matrix_unit=True)
_MI100 = replace(  # accumulators are a file of their own, of the same size
    _CDNA_UNIT, registers=256, granule=4, waves=10, matrix_flops={"f32": 256, "f16": 1024, "bf16": 512, "8": 1024}
)
_MI200 = replace(_CDNA_UNIT, matrix_flops={"f32": 256, "f16": 1024, "bf16": 1024, "8": 1024})
_MI300 = replace(_CDNA_UNIT, matrix_flops={"f32": 256, "f16": 2048, "bf16": 2048, "8": 4096})
_MI350 = replace(_MI300, wide_matrix_flops={"f16": 4096, "bf16": 4096, "8": 8192}, read_bytes=256)

_CDNA3 = Architecture(
    name="", target="hip", families=("cdna3", "cdna", "amd", "gpu"), wave=64, shared_bytes=64 * KIB, matrix="mfma",
    wide_reads_pair=True, compute_unit=_MI300,
)  # fmt: skip
_CDNA2 = replace(_CDNA3, families=("cdna2", "cdna", "amd", "gpu"), compute_unit=_MI200)
_CDNA1 = replace(_CDNA3, families=("cdna1", "cdna", "amd", "gpu"), matrix="mfma-gfx908", compute_unit=_MI100)
_CDNA4 = replace(
    _CDNA3, families=("cdna4", "cdna", "amd", "gpu"), shared_bytes=160 * KIB, banks=64, compute_unit=_MI350
)

_SMALL = ComputeUnit(registers=1024, granule=16, waves=16, simds=2, simd_lanes=32)
_SMALL_RDNA3 = replace(_SMALL, matrix_flops={"f16": 512, "bf16": 512, "8": 512})
_LARGE_RDNA3 = replace(_SMALL_RDNA3, registers=1536, granule=24)
_LARGE_RDNA4 = replace(_LARGE_RDNA3, matrix_flops={"f16": 1024, "bf16": 1024, "8": 2048})

_RDNA2 = Architecture(
    name="", target="hip", families=("rdna2", "rdna", "amd", "gpu"), wave=32, shared_bytes=64 * KIB,
    compute_unit_mode=True, compute_unit=_SMALL,
)  # fmt: skip
_RDNA3 = replace(_RDNA2, families=("rdna3", "rdna", "amd", "gpu"), matrix="wmma-gfx11", compute_unit=_SMALL_RDNA3)
_RDNA4 = replace(_RDNA2, families=("rdna4", "rdna", "amd", "gpu"), matrix="wmma-gfx12", compute_unit=_LARGE_RDNA4)

AMD = (
    _gfx(_CDNA1, "908", 0x30, card=Card("MI100", 1229, 120, 1.502)),
    _gfx(_CDNA2, "90a", 0x3F, card=Card("MI250X (one of two dies)", 1638, 110, 1.7)),
    _gfx(_CDNA3, "942", 0x4C, card=Card("MI300X", 5300, 304, 2.1)),
    _gfx(_CDNA4, "950", 0x4F, card=Card("MI355X", 8000, 256, 2.4)),
    _gfx(_CDNA3, "9-4-generic", 0x5F, runs_on=r"gfx9[45][0-9a-f]"),
    _gfx(_RDNA2, "1030", 0x36, card=Card("RX 6900 XT", 512, 80, 2.25)),
    _gfx(_RDNA2, "1031", 0x37),
    _gfx(_RDNA2, "1032", 0x38),
    _gfx(_RDNA2, "1033", 0x39),
    _gfx(_RDNA2, "1034", 0x3E),
    _gfx(_RDNA2, "1035", 0x3D),
    _gfx(_RDNA2, "1036", 0x45),
    _gfx(_RDNA2, "10-3-generic", 0x53, runs_on=r"gfx103[0-9a-f]"),
    _gfx(_RDNA3, "1100", 0x41, compute_unit=_LARGE_RDNA3, card=Card("RX 7900 XTX", 960, 96, 2.5)),
    _gfx(_RDNA3, "1101", 0x46, compute_unit=_LARGE_RDNA3),
    _gfx(_RDNA3, "1102", 0x47),
    _gfx(_RDNA3, "1103", 0x44),
    _gfx(_RDNA3, "1150", 0x43),
    _gfx(_RDNA3, "1151", 0x4A, compute_unit=_LARGE_RDNA3),
    _gfx(_RDNA3, "1152", 0x55),
    _gfx(_RDNA3, "1153", 0x58),
    _gfx(_RDNA3, "11-generic", 0x54, runs_on=r"gfx11[05][0-9a-f]"),
    _gfx(_RDNA4, "1200", 0x48),
    _gfx(_RDNA4, "1201", 0x4E, card=Card("RX 9070 XT", 640, 64, 2.97)),
    _gfx(_RDNA4, "12-generic", 0x59, runs_on=r"gfx120[0-9a-f]"),
)
