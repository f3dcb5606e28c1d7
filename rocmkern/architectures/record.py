"""What is known about an architecture: one record each, in `amd`, `nvidia` and `host`.

Nothing else in the library knows a processor by its name. Whoever needs to know something about one has a field here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KIB = 1024


@dataclass(frozen=True)
class ComputeUnit:
    """What the waves of an AMD compute unit share, and how fast its units are.

    A compute unit has several SIMDs, each with its registers, and one shared memory. The matrix instructions of RDNA
    occupy the vector unit; on CDNA they are a unit of their own.

    Attributes
    ----------
    registers : int
        Vector registers of a SIMD, per lane.
    granule : int
        A wave gets a multiple of so many registers.
    waves : int
        Waves that a SIMD holds at most.
    simds : int
        SIMDs that share the shared memory.
    simd_lanes : int
        Lanes that a SIMD computes in a clock.
    matrix_unit : bool
        Whether matrix instructions are executed beside vector instructions.
    matrix_flops : mapping of str to int
        Floating-point operations of matrix instructions, a clock and compute unit, by the type of the operands:
        ``"f32"``, ``"f16"``, ``"bf16"``, ``"8"`` (any type of 8 bits).
    wide_matrix_flops : mapping of str to int
        The same for instructions of twice the K, where they are faster.
    read_bytes, write_bytes : int
        Bytes of shared memory, a clock.
    """

    registers: int
    granule: int
    waves: int
    simds: int
    simd_lanes: int
    matrix_unit: bool = False
    matrix_flops: Mapping[str, int] = field(default_factory=dict)
    wide_matrix_flops: Mapping[str, int] = field(default_factory=dict)
    read_bytes: int = 128
    write_bytes: int = 128


@dataclass(frozen=True)
class Card:
    """A card with processors of an architecture, by its data sheet.

    Attributes
    ----------
    name : str
    bandwidth : float
        Of its memory, in GB/s.
    compute_units : int
    clock : float
        Boost clock, in GHz.
    """

    name: str
    bandwidth: float
    compute_units: int
    clock: float

    @property
    def bytes_per_clock(self) -> float:
        """Bytes of memory for each compute unit, a clock."""
        return self.bandwidth / (self.compute_units * self.clock)


@dataclass(frozen=True)
class Architecture:
    """One processor that kernels are compiled for.

    Attributes
    ----------
    name : str
        Such as ``"gfx1100"``, ``"sm_90"`` or ``"cpu-avx2"``.
    target : str
        The target that compiles for it: ``"python"``, ``"cpu"``, ``"hip"`` or ``"cuda"``.
    families : tuple of str
        What it belongs to, the closest relatives first: ``("rdna3", "rdna", "amd", "gpu")``.
    wave : int
        Lanes of a wave (a warp); 1 where a block is one thread.
    shared_bytes : int
        Shared memory (LDS) that one block may use, in bytes.
    processor : str
        What LLVM's code generator calls it.
    matrix : str
        Kind of matrix instruction: ``"wmma-gfx11"``, ``"wmma-gfx12"``, ``"mfma"``, ``"mfma-gfx908"``, ``"mma.sync"``,
        ``"wgmma"`` (and mma.sync), or ``""`` (FMA only).
    banks : int
        Banks of shared memory, of 4 bytes each.
    wide_reads_pair : bool
        Whether lanes that share a cycle of reading 16 bytes each read two neighbouring units of shared memory.
    compute_unit_mode : bool
        Whether a block can run on one compute unit or on two, and its code says which: on one.
    overlaps : bool
        Whether blocks can be brought in while the launch before theirs still runs.
    vector_lanes : int
        Numbers of 4 bytes in a vector register of a host's processor, for the cpu target.
    permutes : bool
        Whether one instruction looks up 16 numbers in a table of 16.
    features : tuple of str
        Features that a processor must have to run the code, as Linux calls them.
    runs_on : str
        Regular expression for the names of all cards that run its code, where it is the generic target of a family.
    elf_machine : int
        ``EF_AMDGPU_MACH`` of LLVM's ELF.h: the processor in the flags of a code object.
    compute_unit : ComputeUnit, optional
        Of AMD's.
    card : Card, optional
        One that has it.
    """

    name: str
    target: str
    families: tuple[str, ...]
    wave: int
    shared_bytes: int
    processor: str = ""
    matrix: str = ""
    banks: int = 32
    wide_reads_pair: bool = False
    compute_unit_mode: bool = False
    overlaps: bool = False
    vector_lanes: int = 0
    permutes: bool = False
    features: tuple[str, ...] = ()
    runs_on: str = ""
    elf_machine: int = 0
    compute_unit: ComputeUnit | None = None
    card: Card | None = None

    @property
    def tuned_as(self) -> tuple[str, ...]:
        """The names that a table of tuned sizes may have for it, the most particular first."""
        return (self.name, *self.families)
