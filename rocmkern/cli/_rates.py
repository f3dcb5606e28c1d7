"""How fast the units of an AMD compute unit are, by what AMD documents; and what that makes of instructions.

A compute unit has 2 SIMDs (RDNA, in compute unit mode) or 4 (CDNA) and one shared memory. Clocks of one wave:

    vector            a SIMD takes 32 lanes a clock (RDNA) or 16 (CDNA): 1 for a wave of 32, 4 for one of 64
    transcendental    a quarter of that rate: 4 and 16
    matrix            2 M N K / (operations a clock and compute unit / SIMDs)
    shared memory      bytes of all lanes / 128 a clock (gfx950: 256 for reads)

Operations a clock and compute unit of matrix instructions: AMD's tables for MI100, MI200, MI300 and MI350 (16 bits:
1024, 1024, 2048, 4096; gfx950 has the latter for its instructions of twice the K only), "How to accelerate AI
applications on RDNA 3 using WMMA" (512), and the peaks of RDNA 4 cards over units and clock (1024). On RDNA they occupy
the vector unit; on CDNA they are a unit of their own.

Global memory is a matter of the card: `memory_rate` has what one of each architecture gives every compute unit, by the
bandwidth, compute units and boost clock of its data sheet.

What is not modelled: latency, issue slots, several instructions a clock, caches. A bound by these rates is a lower one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rocmkern.cli._assembly import UNITS, class_of, operations, width
from rocmkern.tile.architectures import architecture


@dataclass(frozen=True)
class Rates:
    """Rates of one architecture.

    Attributes
    ----------
    matrix : mapping of str to int
        Floating-point operations a clock and compute unit, by the type of the operands: ``"f32"``, ``"f16"``,
        ``"bf16"``, ``"8"`` (any type of 8 bits).
    wide : mapping of str to int
        The same for instructions of twice the K.
    read_bytes, write_bytes : int
        Of shared memory, a clock.
    """

    matrix: Mapping[str, int] = field(default_factory=dict)
    wide: Mapping[str, int] = field(default_factory=dict)
    read_bytes: int = 128
    write_bytes: int = 128


_MI300 = Rates({"f32": 256, "f16": 2048, "bf16": 2048, "8": 4096})
_RDNA2, _RDNA3, _RDNA4 = (
    Rates(),
    Rates({"f16": 512, "bf16": 512, "8": 512}),
    Rates({"f16": 1024, "bf16": 1024, "8": 2048}),
)
_FAMILIES = (
    ("gfx908", Rates({"f32": 256, "f16": 1024, "bf16": 512, "8": 1024})),
    ("gfx90a", Rates({"f32": 256, "f16": 1024, "bf16": 1024, "8": 1024})),
    ("gfx950", Rates(_MI300.matrix, {"f16": 4096, "bf16": 4096, "8": 8192}, read_bytes=256)),
    ("gfx9", _MI300),
    ("gfx10", _RDNA2),
    ("gfx11", _RDNA3),
    ("gfx12", _RDNA4),
)
#: A card of an architecture: name, GB/s, compute units, GHz.
_CARDS = {
    "gfx908": ("MI100", 1229, 120, 1.502),
    "gfx90a": ("MI250X (one of two dies)", 1638, 110, 1.7),
    "gfx942": ("MI300X", 5300, 304, 2.1),
    "gfx950": ("MI355X", 8000, 256, 2.4),
    "gfx1030": ("RX 6900 XT", 512, 80, 2.25),
    "gfx1100": ("RX 7900 XTX", 960, 96, 2.5),
    "gfx1201": ("RX 9070 XT", 640, 64, 2.97),
}
_K_OF_THE_FIRST = {"f16": 16, "bf16": 16, "8": 32}


def rates(arch: str) -> Rates:
    """The rates of an architecture that kernels are compiled for."""
    return next(found for family, found in _FAMILIES if arch.startswith(family))


def memory_rate(arch: str) -> tuple[str, float] | None:
    """A card, and its bytes of global memory for each compute unit and clock; None where no card is in the table."""
    if arch not in _CARDS:
        return None
    name, bandwidth, compute_units, clock = _CARDS[arch]
    return name, bandwidth / (compute_units * clock)


def vector_clocks(arch: str) -> int:
    """Clocks of a SIMD for a vector instruction of one wave."""
    return 1 if architecture(arch).wave == 32 else 4


def matrix_clocks(arch: str, operation: str) -> float | None:
    """Clocks of a SIMD's matrix unit for an instruction of one wave; None where its rate is not known."""
    shape = re.search(r"_(\d+)x(\d+)x(\d+)_?(bf16|f16|f32|fp8|bf8|[iu]+8)(_|$)", operation)
    if shape is None:
        return None
    m, n, k = (int(number) for number in shape.groups()[:3])
    name = shape[4] if shape[4] in ("bf16", "f16", "f32") else "8"
    known = rates(arch)
    table = known.wide if name in known.wide and m == 16 and k > _K_OF_THE_FIRST[name] else known.matrix
    return 2 * m * n * k * UNITS[arch].simds / table[name] if name in table else None


def lds_clocks(arch: str, operation: str) -> float:
    """Clocks of shared memory for an instruction of one wave, all of whose lanes are active, without conflicts."""
    reads = not re.match(r"ds_(write|store)", operation)
    rate = rates(arch).read_bytes if reads else rates(arch).write_bytes
    return -(-width(operation) * architecture(arch).wave // rate)


@dataclass(frozen=True)
class Step:
    """What one wave executes in a step, by unit.

    Attributes
    ----------
    counts : mapping
        Instructions: of each class of `_assembly.CLASSES`, and ``barriers``, ``waits``.
    clocks : mapping
        Clocks of the SIMD: ``matrix``, ``vector``, ``transcendental``; of shared memory: ``lds``.
    loaded, stored : int
        Bytes of global memory, of all lanes.
    unknown : tuple of str
        Matrix instructions whose rate is not known; they count as no clocks.
    matrix : mapping of str to int
        Matrix instructions by name.
    """

    counts: Mapping[str, int]
    clocks: Mapping[str, float]
    loaded: int
    stored: int
    unknown: tuple[str, ...]
    matrix: Mapping[str, int]


def step_of(arch: str, instructions: Iterable[str]) -> Step:
    """Count the instructions of a step; a pair (``v_dual_*``) is one."""
    counts: dict[str, int] = {}
    clocks = dict.fromkeys(("matrix", "vector", "transcendental", "lds"), 0.0)
    named: dict[str, int] = {}
    moved = {"load": 0, "store": 0}
    unknown = set()
    vector = vector_clocks(arch)
    for instruction in instructions:
        operation = operations(instruction)[0]
        name = class_of(operation) or _other(operation)
        counts[name] = counts.get(name, 0) + 1
        if name == "matrix":
            named[operation] = named.get(operation, 0) + 1
            spent = matrix_clocks(arch, operation)
            clocks["matrix"] += spent or 0.0
            unknown |= {operation} if spent is None else set()
        elif name == "vector":
            clocks["vector"] += vector
        elif name == "transcendental":
            clocks["transcendental"] += 4 * vector
        elif name == "lds":
            clocks["lds"] += lds_clocks(arch, operation)
        elif name == "global":
            way = "store" if re.search(r"_(store|atomic)_", operation) else "load"
            moved[way] += width(operation) * architecture(arch).wave
    return Step(counts, clocks, moved["load"], moved["store"], tuple(sorted(unknown)), named)


def _other(operation: str) -> str:
    """What is of no class: barriers (RDNA 4 signals and waits; one of the two is counted), waits, the rest."""
    if operation in ("s_barrier", "s_barrier_signal"):
        return "barriers"
    return "waits" if re.match(r"s_waitcnt|s_wait_\w*cnt", operation) else "control"


def units(arch: str, waves: int, step: Step, lds: float | None = None) -> dict[str, float]:
    """Clocks that the units of a compute unit need for a step of one block, other blocks filling what it leaves.

    Parameters
    ----------
    arch : str
    waves : int
        Of the block.
    step : Step
        Of one wave.
    lds : float, optional
        Clocks of shared memory of one wave; default: without conflicts.
    """
    share = waves / UNITS[arch].simds
    vector = step.clocks["vector"] + step.clocks["transcendental"]
    matrix = step.clocks["matrix"]
    busy = {"vector unit": (vector + matrix) * share} if architecture(arch).wave == 32 else {
        "matrix unit": matrix * share, "vector unit": vector * share,
    }  # fmt: skip
    return busy | {"shared memory": (step.clocks["lds"] if lds is None else lds) * waves}
