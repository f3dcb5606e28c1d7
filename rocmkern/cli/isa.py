"""Compile the kernels for AMD architectures, without a card, and check what they need.

Every variant that the rows of a matrix file launch is compiled for each architecture. A table says how many registers
and how much memory it takes, how many waves a SIMD can hold, and what the main loop consists of. The exit status is 1
if a kernel cannot be compiled, needs scratch memory, spills registers, has flat_* instructions, exceeds shared memory,
or does not keep a budget of the matrix file.

Columns: vector registers (accumulators included), accumulators, scalar registers, bytes of shared memory and of
scratch,
spilled vector and scalar registers, flat instructions, waves per SIMD as registers and shared memory allow; and of the
shortest way round the main loop: matrix, other vector, transcendental, shared memory, global memory instructions, and
the share of FMAs among the operations of the vector instructions.

With --explain the kernels' instructions are counted by unit, for a step that also fetches, and held against the rates
that AMD documents: which unit limits. With --lds a line tells what the virtual GPU counted of bank conflicts.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rocmkern.cli._lds_check import LdsCheck
from rocmkern.cli._matrix_file import default_matrix
from rocmkern.runtime.errors import ArgumentError, RocmkernError, TargetError

SUMMARY = "compile the kernels for AMD architectures without a card, and check registers and memory"

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
DTYPES = ("float32", "float16", "bfloat16")
#: Where to look for what the virtual GPU counted, unless told.
DEFAULT_LDS = "amd-test-lds.json"
_HEADINGS = (
    "vgpr", "agpr", "sgpr", "lds", "scratch", "spills", "flat", "waves", "matrix", "vector", "trans", "ds", "global",
    "fma",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What one variant needs on one architecture; ``error`` where it does not compile.

    ``code`` is the sha256 of the code object, which is what the runtime is given when the variant is launched.
    ``conflicts`` is what the virtual GPU counted of shared memory, ``explanation`` the lines of ``--explain``.
    """

    arch: str
    kernel: str
    dtypes: tuple[str, ...]
    config: str
    resources: dict[str, int]
    waves_by_registers: int
    waves_by_lds: float
    loop: dict[str, int]
    problems: tuple[str, ...] = ()
    error: str = ""
    code: str = ""
    conflicts: str = ""
    explanation: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to compile, how many at a time, where the result goes."""
    parser.add_argument(
        "--arch",
        default=",".join(ARCHITECTURES),
        metavar="LIST",
        help="architectures, or: all (default: %(default)s)",
    )
    parser.add_argument(
        "--matrix",
        type=Path,
        default=default_matrix(),
        metavar="FILE",
        help="matrix file: what to compile, and budgets (default: %(default)s)",
    )
    parser.add_argument("--kernel", default="", metavar="LIST", help="kernels (default: all)")
    parser.add_argument(
        "--dtype", default="", metavar="LIST", help=f"types of the first tensor: {', '.join(DTYPES)} (default: all)"
    )
    parser.add_argument(
        "--explain", nargs="+", default=[], metavar="KERNEL", help="count a step of these kernels by unit: what limits?"
    )
    parser.add_argument(
        "--config", default="", metavar="LIST", help="of configurations with these values: head_dim=128,waves=4"
    )
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="N variants of each kernel and type on each architecture, always the same ones (default: all)",
    )
    parser.add_argument(
        "--lds",
        type=Path,
        metavar="FILE",
        help='conflicts of shared memory that the virtual GPU counted: make amd-test ARGS="--lds FILE" '
        f"(default: {DEFAULT_LDS}, where it exists)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="kernels at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to a file, as JSON")
    parser.add_argument("--list", action="store_true", help="name the variants and compile nothing")


def run(arguments: argparse.Namespace) -> int:
    """Compile, print, save, check."""
    # deferred: start-up
    from rocmkern.architectures import known
    from rocmkern.cli import _budgets
    from rocmkern.cli._variants import check_archs, sample, variants
    from rocmkern.matrix import load

    archs, kernels, dtypes = (_words(text) for text in (arguments.arch, arguments.kernel, arguments.dtype))
    if archs == ["all"]:
        archs = known("hip")
    if arguments.jobs < 1:
        raise ArgumentError("--jobs", str(arguments.jobs), "a number of processes, 1 or more")
    if arguments.sample is not None and arguments.sample < 1:
        raise ArgumentError("--sample", str(arguments.sample), "a number of variants, 1 or more")
    check_archs(archs, "hip")
    kernels += [word for text in arguments.explain for word in _words(text)]
    settings = _settings(arguments.config)
    lds = arguments.lds or (Path(DEFAULT_LDS) if Path(DEFAULT_LDS).exists() else None)
    check = None if lds is None else LdsCheck.read(lds)
    matrix = load(arguments.matrix)
    found = variants(archs, matrix, kernels, dtypes)
    wanted = [v for v in found if all(_is(v.settings.get(name), value) for name, value in settings.items())]
    if not wanted:
        given = " ".join(filter(None, (*kernels, *dtypes, arguments.config)))
        raise ArgumentError("--kernel, --explain, --dtype, --config", given, "what fits a kernel")
    if arguments.sample is not None:
        wanted = sample(wanted, arguments.sample)
    if arguments.list:
        for variant in wanted:
            print(f"{variant.cfg.arch:<8} {variant.name:<17} {_short(variant.dtypes):<24} {variant.features}")
        return 0
    if len(wanted) == len(found) and not kernels and not dtypes and set(archs) == set(ARCHITECTURES):
        unused = _budgets.without_kernel(matrix, wanted)
        if unused is not None:
            raise unused
    require_compiler()
    started = time.perf_counter()
    rows: list[Row] = []
    work = functools.partial(examine, check=check, explained=bool(arguments.explain))
    for variant, row in zip(wanted, _compiled(work, wanted, arguments.jobs), strict=True):
        if not row.error:
            row = replace(row, problems=problems(row, variant.settings, matrix.matrix.budgets or {}))
        if not rows or rows[-1].arch != row.arch:
            print(f"\n{row.arch}\n{'kernel and configuration':<100}" + _cells(_HEADINGS))
        print("\n".join(describe(row)), flush=True)
        rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    bad = sum(bool(row.problems) for row in rows)
    seconds = time.perf_counter() - started
    print(f"\n{len(rows)} kernels in {seconds:.0f} s: {len(rows) - bad} within their limits, {bad} not")
    return 1 if bad else 0


def require_compiler() -> None:
    """Raise `TargetError` with the line that mends it, unless numba-hip can be imported."""
    # deferred: start-up
    from rocmkern.targets.numba_hip import numba_hip

    numba_hip()
    try:
        # deferred: optional dependency
        import rocmkern.targets.hip  # noqa: F401
    except Exception as error:  # without ROCm's libraries it is not always an ImportError
        words = f"{type(error).__name__}: {error}"
        raise TargetError(f"the HIP target cannot be imported ({words}); what is missing: rocmkern doctor") from None


def examine(variant: Any, check: LdsCheck | None = None, explained: bool = False) -> Row:
    """Compile one variant and look at its assembly, and at what was counted of its accesses to shared memory."""
    # deferred: start-up
    from rocmkern.cli._explain import explain
    from rocmkern.targets import code_object
    from rocmkern.targets.apart import apart

    # deferred: optional dependency
    from rocmkern.targets.hip import compile_kernel

    arch = variant.cfg.arch
    try:
        compiled = apart(lambda: compile_kernel(variant.kernel, variant.cfg, variant.dtypes))
        assembly, code_sha256 = compiled.assembly, code_object.read(compiled.code).code_sha256
    except (RocmkernError, RuntimeError) as error:  # the latter is the code generator's
        return Row(arch, variant.name, variant.dtypes, variant.features, {}, 0, 0, {}, (str(error),), str(error))
    row = replace(row_of(variant, assembly), code=hashlib.sha256(compiled.code).hexdigest())
    conflicts = check.of(code_sha256) if check is not None else None
    lines = explain(variant, assembly, products(variant), code_sha256, check) if explained else ()
    return replace(row, conflicts="" if conflicts is None else str(conflicts), explanation=tuple(lines))


def row_of(variant: Any, assembly: str) -> Row:
    """What the assembly of a variant says; budgets are another matter."""
    # deferred: start-up
    from rocmkern.cli import _assembly

    arch, resources = variant.cfg.arch, _assembly.resources(assembly)
    by_registers, by_lds = _assembly.occupancy(arch, variant.cfg.waves, resources["vgpr"], resources["lds"])
    return Row(
        arch=arch,
        kernel=variant.name,
        dtypes=variant.dtypes,
        config=variant.features,
        resources=resources,
        waves_by_registers=by_registers,
        waves_by_lds=by_lds,
        loop=_assembly.mix(_assembly.main_loop(assembly, *products(variant))),
    )


def products(variant: Any) -> tuple[int, int]:
    """Matrix instructions and FMAs of one step of a kernel's main loop, in one wave; 0 where this is not known."""
    # deferred: start-up
    from rocmkern.architectures import architecture
    from rocmkern.tile._lowering.shared.atoms import ATOMS

    cfg, hardware, dtype = variant.cfg, architecture(variant.cfg.arch), variant.dtypes[0]
    atom = ATOMS[hardware.matrix or "fma"]
    columns = getattr(cfg, "head_dim", 0) + getattr(cfg, "value_dim", 0)
    if not columns:
        return 0, 0
    multiplications = cfg.block_m // cfg.waves * cfg.block_n * columns
    if dtype in atom.intrinsics and cfg.wave_rows == 16:
        return multiplications // (16 * 16 * atom.instruction_k(dtype)), 0
    return 0, multiplications // hardware.wave


def problems(row: Row, settings: Mapping[str, Any], budgets: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with the numbers of a kernel, by the budgets that match it."""
    # deferred: start-up
    from rocmkern.cli import _budgets

    kept = {n: b for n, b in budgets.items() if _budgets.matches(b, row.kernel, row.arch, row.dtypes, settings)}
    occupancy = min(row.waves_by_registers, row.waves_by_lds)
    return _budgets.exceeded(row.arch, row.resources, occupancy, row.loop, kept)


def describe(row: Row) -> list[str]:
    """A row of the table as text; what is wrong follows on a line of its own."""
    name = f"{row.kernel} {_short(row.dtypes)} {row.config}"
    if row.error:
        return [name, f"    FAILS: {row.error}"]
    r, loop = row.resources, row.loop
    share = loop["fma"] / loop["vector_operations"] if loop["vector_operations"] else 0.0
    cells = (
        r["vgpr"], r["agpr"], r["sgpr"], r["lds"], r["scratch"], f"{r['vgpr_spills']}+{r['sgpr_spills']}", r["flat"],
        f"{row.waves_by_registers}/{row.waves_by_lds:.2g}", loop["matrix"], loop["vector"], loop["transcendental"],
        loop["lds"], loop["global"], f"{share:.0%}",
    )  # fmt: skip
    lines = [f"{name:<100}" + _cells(cells)]
    if row.conflicts:
        lines.append(f"    shared memory: {row.conflicts}")
    lines += row.explanation
    if row.problems:
        lines.append(f"    FAILS: {', '.join(row.problems)}")
    return lines


def _compiled(work: Callable[[Any], Row], wanted: list[Any], jobs: int) -> Iterable[Row]:
    """The rows in the order of the variants."""
    if jobs == 1 or len(wanted) == 1:
        yield from map(work, wanted)
        return

    # deferred: start-up
    from rocmkern.cli._processes import processes

    with processes(min(jobs, len(wanted))) as pool:
        yield from pool.map(work, wanted)


def _settings(text: str) -> dict[str, str]:
    """``head_dim=128,paged=True`` by name."""
    pairs = [word.partition("=") for word in _words(text)]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ArgumentError("--config", f"{name}{equals}{value}", "NAME=VALUE, as --list shows them")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _is(value: Any, text: str) -> bool:
    """Whether a field of a configuration is what was written: ``1`` and ``True`` are the same."""
    return text in (str(value), str(int(value)) if isinstance(value, bool) else "")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _short(dtypes: tuple[str, ...]) -> str:
    """The element types of a kernel's tensors, runs of equal ones counted: ``4f16,f32,2i32``."""
    letters = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "bool": "b", "uint8": "u8"}
    runs = [(letters.get(name, name), len(list(run))) for name, run in itertools.groupby(dtypes)]
    return ",".join(f"{count if count > 1 else ''}{name}" for name, count in runs)


def _cells(values: Iterable[Any]) -> str:
    return "".join(f"{value!s:>9}" for value in values)
