"""The table of matrix instructions: how a 16 x 16 x 16 product is spread over the lanes of a wave.

Every product is computed transposed (``S^T = K Q^T``), so that a tile row belongs to one lane of each lane group: lane
``l`` holds row ``l % 16``, and group ``l // 16`` holds some of the columns. Sources: AMD's instruction set documents
(RDNA 3: section on WMMA; RDNA 4: section on WMMA; CDNA 2, 3 and 4: section on MFMA) and LLVM's AMDGPU intrinsics.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Atom:
    """Layout of one 16 x 16 tile of a result, and of the operands of the instruction that makes it.

    Attributes
    ----------
    wave : int
        Lanes of a wave.
    rows : int
        Rows of a result that lie side by side in a wave: 16, or 8 without a matrix instruction.
    register_step, group_step : int
        Register ``i`` of a lane in group ``g`` holds column ``register_step * i + group_step * g`` of the 16.
    run : int
        Consecutive elements along the reduced axis that a lane holds of an operand; 0 without a matrix instruction.
    run_step : int
        The run of group ``g`` starts at ``run_step * g``.
    intrinsics : dict
        LLVM intrinsic for each operand dtype.
    takes : dict
        Elements of a run that one instruction takes, where it is not all of them: its reduced axis is shorter, and a
        run is fed to it piece by piece (the order in which the reduced axis is summed does not matter).
    trailing : int
        Number of i32 zeros that the intrinsic takes after (a, b, c).
    """

    wave: int
    register_step: int
    group_step: int
    run: int = 0
    run_step: int = 0
    intrinsics: dict[str, str] = field(default_factory=dict)
    takes: dict[str, int] = field(default_factory=dict)
    trailing: int = 0
    rows: int = 16

    @property
    def groups(self) -> int:
        """Lane groups that share the columns of a row."""
        return self.wave // self.rows

    @property
    def registers(self) -> int:
        """float32 registers of a lane for 16 columns of a row."""
        return 16 // self.groups

    def instruction_k(self, dtype: str) -> int:
        """Elements of the reduced axis that one instruction takes, for operands of a dtype that it has."""
        return self.takes.get(dtype, self.run) * (self.groups if self.run_step else 1)


ATOMS = {
    "wmma-gfx11": Atom(
        wave=32, register_step=2, group_step=1, run=16, run_step=0,
        intrinsics={
            "float16": "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16",
            "bfloat16": "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16",
        },
    ),
    "wmma-gfx12": Atom(
        wave=32, register_step=1, group_step=8, run=8, run_step=8,
        intrinsics={
            "float16": "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v8f16",
            "bfloat16": "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v8i16",
        },
    ),
    "mfma": Atom(
        wave=64, register_step=1, group_step=4, run=4, run_step=4, trailing=3, takes={"float32": 1},
        intrinsics={
            "float32": "llvm.amdgcn.mfma.f32.16x16x4f32",
            "float16": "llvm.amdgcn.mfma.f32.16x16x16f16",
            "bfloat16": "llvm.amdgcn.mfma.f32.16x16x16bf16.1k",
        },
    ),
    # CDNA 1: the reduced axis of its bfloat16 instruction has 8 elements.
    "mfma-gfx908": Atom(
        wave=64, register_step=1, group_step=4, run=4, run_step=4, trailing=3, takes={"float32": 1, "bfloat16": 2},
        intrinsics={
            "float32": "llvm.amdgcn.mfma.f32.16x16x4f32",
            "float16": "llvm.amdgcn.mfma.f32.16x16x16f16",
            "bfloat16": "llvm.amdgcn.mfma.f32.16x16x8bf16",
        },
    ),
    # No matrix instruction: the layout of gfx12's, so that a lane's columns are consecutive.
    "fma": Atom(wave=32, register_step=1, group_step=8),
    # Half the rows, for tiles of which a lane could not hold 16 rows: half the registers, and as many FMAs for each
    # load from shared memory, but more elements of the left side have to come from other lanes.
    "fma-8": Atom(wave=32, rows=8, register_step=1, group_step=4),
}  # fmt: skip
