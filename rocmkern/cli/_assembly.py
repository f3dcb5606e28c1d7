"""What the assembly text of an AMD kernel says: registers, memory, occupancy, and the instructions of its main loop."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rocmkern.architectures import ComputeUnit, architecture
from rocmkern.runtime.errors import TargetError

_CONTROL = "wait|nop|barrier|delay|sleep|branch|cbranch|endpgm|clause|code_end|set_inst|sethalt|setprio|inst_pref"
#: First match counts; an instruction of no class moves no data and computes nothing (waits, barriers, branches).
CLASSES = {
    "matrix": r"v_(swmmac|wmma|smfmac|mfma)_",
    "transcendental": r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_",
    "vector": r"v_",
    "lds": r"ds_",
    "scratch": r"scratch_",
    "flat": r"flat_",
    "global": r"(global|buffer)_",
    "scalar": rf"s_(?!{_CONTROL})",
}
_FMA = re.compile(r"v_(dual_|pk_)?(fma|fmac|mac)_?(ak|mk)?_?(f32|legacy)")
_RESOURCES = {
    "vgpr": "vgpr_count",
    "agpr": "agpr_count",
    "sgpr": "sgpr_count",
    "lds": "group_segment_fixed_size",
    "scratch": "private_segment_fixed_size",
    "vgpr_spills": "vgpr_spill_count",
    "sgpr_spills": "sgpr_spill_count",
}


def compute_unit(arch: str) -> ComputeUnit:
    """The compute unit of an AMD architecture."""
    found = architecture(arch).compute_unit
    if found is None:
        raise TargetError(f"{arch!r} is not an AMD architecture; allowed: such as 'gfx1100'")
    return found


def resources(assembly: str) -> dict[str, int]:
    """Registers (``vgpr`` with ``agpr`` in it), bytes of shared memory and scratch, spills, ``flat_*`` instructions.

    Raises
    ------
    ValueError
        If the text has no metadata of a kernel.
    """
    counts = {}
    for name, key in _RESOURCES.items():
        match = re.search(rf"\.{key}:\s+(\d+)", assembly)
        if match is None and name != "agpr":
            raise ValueError(f"assembly without .{key}")
        counts[name] = int(match.group(1)) if match else 0
    return counts | {"flat": len(re.findall(r"^\s+flat_", assembly, re.MULTILINE))}


def occupancy(arch: str, waves: int, vgpr: int, lds: int) -> tuple[int, float]:
    """Waves that a SIMD may hold as registers allow, and on average as shared memory allows, if a block has so many."""
    unit = compute_unit(arch)
    by_registers = unit.registers // (-(-max(vgpr, 1) // unit.granule) * unit.granule)
    by_lds = architecture(arch).shared_bytes // lds * waves / unit.simds if lds else unit.waves
    return min(unit.waves, by_registers), min(unit.waves, by_lds)


def operations(instruction: str) -> list[str]:
    """The operations of a line: two for a pair (``v_dual_mul_f32 ... :: v_dual_add_f32 ...``)."""
    return [part.split()[0] for part in instruction.split("::") if part.split()]


def class_of(operation: str) -> str | None:
    """The class of an operation, or None."""
    return next((name for name, pattern in CLASSES.items() if re.match(pattern, operation)), None)


def mix(instructions: Iterable[str]) -> dict[str, int]:
    """Instructions by class (a pair is one), and ``fma`` and ``vector_operations``, which count both of a pair."""
    counts: Counter[str] = Counter(dict.fromkeys((*CLASSES, "fma", "vector_operations"), 0))
    for instruction in instructions:
        found = operations(instruction)
        name = class_of(found[0])
        if name is None:
            continue
        counts[name] += 1
        if name == "vector":
            counts["vector_operations"] += len(found)
            counts["fma"] += sum(bool(_FMA.match(operation)) for operation in found)
    return dict(counts)


@dataclass
class Block:
    """Instructions without a branch among them, and the blocks that may follow."""

    instructions: list[str] = field(default_factory=list)
    next: list[int] = field(default_factory=list)


def blocks(assembly: str) -> list[Block]:
    """The basic blocks of the first function in the text."""
    found = [Block()]
    labels: dict[str, int] = {}
    jumps: dict[int, str] = {}
    falls: dict[int, bool] = {}
    for line in assembly.splitlines():
        line = line.split(";")[0].rstrip()
        label = re.match(r"(\.L\w+):", line)
        if label and label[1].startswith(".Lfunc_end"):
            break
        if label:
            if found[-1].instructions:
                found.append(Block())
            labels[label[1]] = len(found) - 1
        if not re.match(r"\s+[a-z]", line):
            continue
        instruction = line.strip()
        operation, *operands = instruction.split(None, 1)
        found[-1].instructions.append(instruction)
        here = len(found) - 1
        if operation.startswith(("s_cbranch", "s_branch")):
            jumps[here] = operands[0]
        if operation.startswith(("s_cbranch", "s_branch", "s_endpgm", "s_setpc")):
            falls[here] = operation.startswith("s_cbranch")
            found.append(Block())
    for here, block in enumerate(found):
        if falls.get(here, True) and here + 1 < len(found):
            block.next.append(here + 1)
        if jumps.get(here) in labels:
            block.next.append(labels[jumps[here]])
    return found


def main_loop(assembly: str, matrix: int = 0, fma: int = 0) -> list[str]:
    """The instructions of the shortest way once round the main loop that computes enough; empty without a loop.

    Rare ways (borders, NaN, a maximum that grew) are longer ones, so they are left out. Some short ways are impossible,
    because two branches depend on one flag: those do not compute everything that a step must.

    Parameters
    ----------
    assembly : str
        Text of a kernel.
    matrix, fma : int
        Matrix instructions and FMAs that a step has at least. If no loop has so many, the loop with the most
        instructions on its shortest way is returned.
    """
    found = blocks(assembly)
    above = _dominators(found)
    heads = _heads(found, above)
    ways = [way for head in heads if (way := _shortest_round(found, head, above, matrix, fma))]
    if ways:
        return min(ways, key=len) if matrix or fma else max(ways, key=len)
    return main_loop(assembly) if heads and (matrix or fma) else []


def fetching_loop(assembly: str, matrix: int = 0, fma: int = 0, nbytes: int = 0) -> list[str]:
    """As `main_loop`, of a way that also loads what the next step needs: the shortest way round does not, for the last
    step has nothing to fetch.

    Parameters
    ----------
    assembly : str
        Text of a kernel.
    matrix, fma : int
        As of `main_loop`.
    nbytes : int
        What a lane loads from global memory in a step. Where this is unknown (0), the way has as much as any by loads
        of 8 bytes and more: narrow ones are what borders, tables and unaligned rows are loaded by.
    """
    found = blocks(assembly)
    above = _dominators(found)
    loads = [sum(loaded_bytes(i, 1 if nbytes else _WIDE) for i in block.instructions) for block in found]
    ways = []
    for head in _heads(found, above):
        most = _most_loaded(found, head, above, loads)
        wanted = min(nbytes, most) if nbytes else most
        # A way that computes enough may not be one that loads enough.
        for_each = (_shortest_round(found, head, above, matrix, fma, (loads, n)) for n in (wanted, 0))
        ways.append(next(filter(None, for_each), []))
    if any(ways):
        ways = [way for way in ways if way]
        return min(ways, key=len) if matrix or fma else max(ways, key=len)
    return fetching_loop(assembly, nbytes=nbytes) if matrix or fma else []


def loaded_bytes(instruction: str, narrowest: int = 1) -> int:
    """What a lane loads from global memory; nothing by a load that is narrower than so many bytes."""
    operation = instruction.split()[0]
    nbytes = width(operation) if re.match(r"(global|buffer)_load", operation) else 0
    return nbytes if nbytes >= narrowest else 0


_WIDE = 8
_WIDTHS = (
    (16, r"_(b|dwordx?|x)(128|4)(_|$)"),
    (12, r"_(b96|dwordx3)"),
    (8, r"_([bfui]64|dwordx2)"),
    (4, r"_([bfui]32|dword)(_|$)"),
    (2, r"_([bui]16|[us]?short)"),
    (1, r"_([bui]8|[us]?byte)"),
)


def width(operation: str) -> int:
    """Bytes of a lane that a memory instruction moves, both addresses of ``ds_read2_*`` and ``ds_load_2addr_*``; 0 for
    one that moves none (a cache is written back, say).
    """
    nbytes = next((nbytes for nbytes, pattern in _WIDTHS if re.search(pattern, operation)), 0)
    return nbytes * (2 if re.match(r"ds_(read2|write2|load_2addr|store_2addr)", operation) else 1)


def _heads(found: list[Block], above: list[int]) -> set[int]:
    """The first blocks of the loops."""
    return {target for here, block in enumerate(found) for target in block.next if above[here] >> target & 1}


def _most_loaded(found: list[Block], head: int, above: list[int], loads: list[int]) -> int:
    """The most that a lane loads on a way round a loop, without going round a loop in it; ``loads`` is each block's."""
    # Without the edges that close a loop, what may follow within this one.
    follows = [[t for t in b.next if above[t] >> head & 1 and not above[i] >> t & 1] for i, b in enumerate(found)]
    order: list[int] = []
    waiting, entered = [(head, False)], {head}
    while waiting:
        here, done = waiting.pop()
        if done:
            order.append(here)
            continue
        waiting.append((here, True))
        for target in follows[here]:
            if target not in entered:
                entered.add(target)
                waiting.append((target, False))
    # From the ends to the head: the most from each block on, minus infinity where it does not lead to the head.
    known: dict[int, float] = {}
    for here in order:
        ends = [0.0] if head in found[here].next else []
        known[here] = loads[here] + max(ends + [known.get(t, -math.inf) for t in follows[here]], default=-math.inf)
    return int(max(known[head], 0))


def _dominators(found: list[Block]) -> list[int]:
    """For each block a bit for every block that all ways to it go through, itself included; 0 where nothing leads."""
    reached, waiting = {0}, [0]
    while waiting:
        fresh = set(found[waiting.pop()].next) - reached
        reached |= fresh
        waiting += fresh
    # What fills the place before an aligned block leads on, but is never reached.
    before: list[list[int]] = [[] for _ in found]
    for here in reached:
        for target in found[here].next:
            before[target].append(here)
    everything = (1 << len(found)) - 1
    above = [1, *[everything] * (len(found) - 1)]
    changed = True
    while changed:
        changed = False
        for here in range(1, len(found)):
            common = everything
            for b in before[here]:
                common &= above[b]
            common = common | 1 << here if before[here] else 0
            changed |= common != above[here]
            above[here] = common
    return above


def _shortest_round(
    found: list[Block], head: int, above: list[int], matrix: int, fma: int, loading: tuple[list[int], int] | None = None
) -> list[str]:
    """The instructions of the shortest way from a loop's head to itself that computes enough, and loads enough (what
    each block loads, and how much is enough); empty if none does.
    """
    counts = [mix(block.instructions) for block in found]
    loads, nbytes = loading or ([0] * len(found), 0)
    waiting: list[tuple[int, int, int, int, int, tuple[int, ...]]] = [(0, head, matrix, fma, nbytes, (head,))]
    reached: set[tuple[int, int, int, int]] = set()
    while waiting:
        length, here, matrix_left, fma_left, nbytes_left, way = heapq.heappop(waiting)
        if (here, matrix_left, fma_left, nbytes_left) in reached:
            continue
        reached.add((here, matrix_left, fma_left, nbytes_left))
        length += len(found[here].instructions)
        matrix_left = max(0, matrix_left - counts[here]["matrix"])
        fma_left = max(0, fma_left - counts[here]["fma"])
        nbytes_left = max(0, nbytes_left - loads[here])
        for target in found[here].next:
            if target == head and not matrix_left and not fma_left and not nbytes_left:
                return [instruction for number in way for instruction in found[number].instructions]
            # A block that the head does not dominate is outside the loop: in the one around it.
            if target not in way and above[target] >> head & 1:
                heapq.heappush(waiting, (length, target, matrix_left, fma_left, nbytes_left, (*way, target)))
    return []
