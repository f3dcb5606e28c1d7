"""What the rates of an AMD compute unit make of instructions (see `rocmkern.architectures.ComputeUnit`).

Clocks of one wave:

    vector            lanes of the wave / lanes of a SIMD: 1 for a wave of 32 (RDNA), 4 for one of 64 (CDNA)
    transcendental    a quarter of that rate: 4 and 16
    matrix            2 M N K / (operations a clock and compute unit / SIMDs)
    shared memory      bytes of all lanes / bytes a clock

Global memory is a matter of the card: `memory_rate` has what one of each architecture gives every compute unit.

What is not modelled: latency, issue slots, several instructions a clock, caches. A bound by these rates is a lower one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rocmkern.architectures import architecture
from rocmkern.cli._assembly import class_of, compute_unit, operations, width

_K_OF_THE_FIRST = {"f16": 16, "bf16": 16, "8": 32}


def memory_rate(arch: str) -> tuple[str, float] | None:
    """A card, and its bytes of global memory for each compute unit and clock; None where no card is known."""
    card = architecture(arch).card
    return None if card is None else (card.name, card.bytes_per_clock)


def vector_clocks(arch: str) -> int:
    """Clocks of a SIMD for a vector instruction of one wave."""
    return architecture(arch).wave // compute_unit(arch).simd_lanes


def matrix_clocks(arch: str, operation: str) -> float | None:
    """Clocks of a SIMD's matrix unit for an instruction of one wave; None where its rate is not known."""
    shape = re.search(r"_(\d+)x(\d+)x(\d+)_?(bf16|f16|f32|fp8|bf8|[iu]+8)(_|$)", operation)
    if shape is None:
        return None
    m, n, k = (int(number) for number in shape.groups()[:3])
    name = shape[4] if shape[4] in ("bf16", "f16", "f32") else "8"
    unit = compute_unit(arch)
    wide = name in unit.wide_matrix_flops and m == 16 and k > _K_OF_THE_FIRST[name]
    rates = unit.wide_matrix_flops if wide else unit.matrix_flops
    return 2 * m * n * k * unit.simds / rates[name] if name in rates else None


def lds_clocks(arch: str, operation: str) -> float:
    """Clocks of shared memory for an instruction of one wave, all of whose lanes are active, without conflicts."""
    writes, unit = re.match(r"ds_(write|store)", operation), compute_unit(arch)
    rate = unit.write_bytes if writes else unit.read_bytes
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
    unit = compute_unit(arch)
    share = waves / unit.simds
    vector = step.clocks["vector"] + step.clocks["transcendental"]
    matrix = step.clocks["matrix"]
    busy = {"vector unit": (vector + matrix) * share}
    if unit.matrix_unit:
        busy = {"matrix unit": matrix * share, "vector unit": vector * share}
    return busy | {"shared memory": (step.clocks["lds"] if lds is None else lds) * waves}
