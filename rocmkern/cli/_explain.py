"""``rocmkern isa --explain``: what limits a kernel, from its instructions and documented rates (see `_rates`).

The step is a way round the main loop that computes what a step must and loads what the next one needs; of a kernel
without a loop, all of its code once. Counts are those of one wave, clocks those of a compute unit for a whole block.
"""

from __future__ import annotations

import math
from typing import Any

from rocmkern.architectures import architecture
from rocmkern.cli import _assembly
from rocmkern.cli._assembly import compute_unit
from rocmkern.cli._lds_check import LdsCheck
from rocmkern.cli._rates import Step, memory_rate, step_of, units, vector_clocks


def explain(
    variant: Any, assembly: str, needed: tuple[int, int], code_sha256: str = "", check: LdsCheck | None = None
) -> list[str]:
    """The lines about a variant.

    Parameters
    ----------
    variant : Variant
    assembly : str
        Its code.
    needed : tuple of int
        Matrix instructions and FMAs of a step.
    code_sha256 : str
        Of its code object.
    check : LdsCheck, optional
        What was counted of accesses to shared memory.
    """
    cfg = variant.cfg
    way = _assembly.fetching_loop(assembly, *needed, staged_bytes(variant))
    title = "one step of the main loop, with what it fetches for the next"
    if not way:
        way = [instruction for block in _assembly.blocks(assembly) for instruction in block.instructions]
        title = "no loop: all of its code once, also ways that exclude each other"
    step = step_of(cfg.arch, way)
    accesses = [i for i in way if _assembly.class_of(_assembly.operations(i)[0]) == "lds"]
    counted = check.cycles(code_sha256, accesses) if check is not None and accesses else None
    lines = [f"    {title}, by a wave of {architecture(cfg.arch).wave} lanes: {len(way)} instructions"]
    lines += [f"      {line}" for line in _counts(step, way)]
    lds, source = _lds_clocks(step, counted, len(accesses))
    lines[-1:] = [lines[-1]] + ([f"      {'':<15}{source}"] if accesses else [])
    return lines + [f"    {line}" for line in _bound(cfg.arch, cfg.waves, step, lds)]


def staged_bytes(variant: Any) -> int:
    """Bytes that a lane loads for the next step of attention, a block of keys and of values; 0 for other kernels."""
    cfg = variant.cfg
    if not (hasattr(cfg, "head_dim") and hasattr(cfg, "value_dim") and len(variant.dtypes) > 2):
        return 0
    sizes = {"float32": 4, "float16": 2, "bfloat16": 2}
    keys, values = (sizes.get(name, 1) for name in variant.dtypes[1:3])
    lanes = cfg.waves * architecture(cfg.arch).wave
    return int(cfg.block_n * (cfg.head_dim * keys + cfg.value_dim * values) // lanes)


def _counts(step: Step, way: list[str]) -> list[str]:
    """A line for each unit."""
    counts, clocks = step.counts, step.clocks
    pairs = sum("::" in instruction for instruction in way)
    matrix = ", ".join(f"{count} {name}" for name, count in step.matrix.items())
    vector = counts.get("vector", 0)
    each = f", {(vector + counts.get('transcendental', 0)) / counts['matrix']:.2f} with transcendental ones for each " \
        "matrix instruction" if counts.get("matrix") else ""  # fmt: skip
    rows = [
        ("matrix", counts.get("matrix", 0), clocks["matrix"], matrix),
        ("vector", vector, clocks["vector"], f"{pairs} pairs{each}"),
        ("transcendental", counts.get("transcendental", 0), clocks["transcendental"], ""),
        ("scalar", counts.get("scalar", 0), None, ""),
        ("barriers", counts.get("barriers", 0), None, f"{counts.get('waits', 0)} waits"),
        ("global", counts.get("global", 0), None, f"{step.loaded} bytes loaded, {step.stored} stored"),
        ("lds", counts.get("lds", 0), clocks["lds"], ""),
    ]
    lines = []
    for name, count, spent, words in rows:
        text = f"{name:<15}{count:>5}" + (f"{spent:>8.0f} clocks" if spent is not None else " " * 15)
        lines.append(f"{text}  {words}".rstrip())
    if step.unknown:
        lines.insert(1, f"{'':<15}no rate is known of {', '.join(step.unknown)}: they count as no clocks")
    return lines


def _lds_clocks(step: Step, counted: Any, accesses: int) -> tuple[float, str]:
    """Clocks of shared memory of one wave's step, and where they come from."""
    least = step.clocks["lds"]
    if counted is None or not counted[1]:
        return least, "clocks by width, without conflicts: this code did not run under the check of shared memory"
    conflicts, known = counted
    factors = [x / conflicts.ideal if conflicts.ideal else 1.0 for x in (conflicts.best, conflicts.worst)]
    rule = "documented rule" if conflicts.documented else "best to worst grouping"
    span = " to ".join(dict.fromkeys(f"{factor * least:.0f}" for factor in factors))
    shown = " to ".join(dict.fromkeys(f"{factor:.2f}" for factor in factors))
    text = f"{span} clocks by addresses ({shown} of the least, {rule}; {known} of {accesses} were executed)"
    return least * factors[0], text


def _memory(arch: str, moved: float) -> str:
    """How many bytes a clock are wanted while the bound is kept, and how many a card has."""
    text = f"{moved:.1f} bytes a clock meanwhile"
    card = memory_rate(arch)
    if card is None:
        return text
    limits = "; it limits instead, unless caches give the rest" if moved > card[1] else ""
    return f"{text}, {card[0]} has {card[1]:.1f} for each compute unit{limits}"


def _bound(arch: str, waves: int, step: Step, lds: float) -> list[str]:
    """Which unit limits, and how busy the others are meanwhile."""
    busy = units(arch, waves, step, lds)
    limit = max(busy, key=lambda name: busy[name])
    clocks = busy[limit]
    if not clocks or math.isnan(clocks):
        return ["bound: none of these units is used"]
    others = ", ".join(f"{name} {spent / clocks:.0%}" for name, spent in busy.items() if name != limit)
    text = (
        f"bound: {limit}, {clocks:.0f} clocks a step for a block of {waves} wave{'s' * (waves > 1)} on a compute unit"
    )
    if not compute_unit(arch).matrix_unit and step.clocks["matrix"]:
        share = step.clocks["matrix"] / sum(step.clocks[name] for name in ("matrix", "vector", "transcendental"))
        text += f" (matrix instructions {share:.0%} of the vector unit)"
    moved = (step.loaded + step.stored) * waves / clocks
    return [
        text,
        f"meanwhile: {others}",
        f"global memory: {_memory(arch, moved)}",
        f"rates: a vector instruction {vector_clocks(arch)}, a transcendental one {4 * vector_clocks(arch)} clocks of "
        f"a SIMD; shared memory {compute_unit(arch).read_bytes} bytes a clock",
    ]
