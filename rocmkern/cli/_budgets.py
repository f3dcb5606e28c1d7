"""Whether a compiled kernel keeps the budgets of a matrix file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rocmkern.architectures import architecture
from rocmkern.matrix import Document, MatrixError
from rocmkern.matrix.schema import KernelBudget

_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def matches(budget: KernelBudget, kernel: str, arch: str, dtypes: Sequence[str], settings: Mapping[str, Any]) -> bool:
    """Whether a budget holds for a variant of a kernel; ``settings`` are the fields of its configuration."""
    return (
        fnmatchcase(kernel, budget.kernel)
        and fnmatchcase(arch, budget.arch)
        and (budget.dtypes is None or _SHORT.get(dtypes[0], dtypes[0]) in budget.dtypes)
        and all(name in settings and settings[name] == value for name, value in (budget.config or {}).items())
    )


def exceeded(
    arch: str,
    resources: Mapping[str, int],
    occupancy: float,
    loop: Mapping[str, int],
    budgets: Mapping[str, KernelBudget] = {},
) -> tuple[str, ...]:
    """What is wrong with the numbers of a kernel.

    Parameters
    ----------
    arch : str
    resources : mapping
        Of `_assembly.resources`.
    occupancy : float
        Waves for each SIMD.
    loop : mapping
        Of `_assembly.mix`, for the main loop.
    budgets : mapping of str to KernelBudget
        Those that match the kernel, by name.
    """

    def allowed(name: str) -> int:
        return max((getattr(budget, name) or 0 for budget in budgets.values()), default=0)

    found = []
    if resources["scratch"] > allowed("scratch"):
        found.append(f"{resources['scratch']} bytes of scratch")
    spills = resources["vgpr_spills"] + resources["sgpr_spills"]
    if spills > allowed("spills"):
        found.append(f"{resources['vgpr_spills']} vector and {resources['sgpr_spills']} scalar registers spilled")
    if resources["flat"]:
        found.append(f"{resources['flat']} flat instructions")
    most = architecture(arch).shared_bytes
    if resources["lds"] > most:
        found.append(f"{resources['lds']} bytes of shared memory of {most}")
    for name, budget in budgets.items():
        found += [f"{words} (budget {name})" for words in _over(budget, resources, occupancy, loop)]
    return tuple(found)


def _over(
    budget: KernelBudget, resources: Mapping[str, int], occupancy: float, loop: Mapping[str, int]
) -> Iterable[str]:
    """The limits of one budget that do not hold, in words."""
    if budget.vgpr is not None and resources["vgpr"] > budget.vgpr:
        yield f"{resources['vgpr']} vector registers, at most {budget.vgpr}"
    if budget.lds is not None and resources["lds"] > budget.lds:
        yield f"{resources['lds']} bytes of shared memory, at most {budget.lds}"
    if budget.occupancy is not None and occupancy < budget.occupancy:
        yield f"{occupancy:.2g} waves for each SIMD, at least {budget.occupancy:g}"
    if budget.vector_per_matrix is not None:
        work = loop.get("vector", 0) + loop.get("transcendental", 0)
        if not loop.get("matrix"):
            yield "no matrix instruction in the main loop"
        elif work / loop["matrix"] > budget.vector_per_matrix:
            ratio = work / loop["matrix"]
            yield f"{ratio:.2f} vector instructions for each matrix instruction, at most {budget.vector_per_matrix:g}"
    if budget.fma_share is not None:
        share = loop["fma"] / loop["vector_operations"] if loop.get("vector_operations") else 0.0
        if share < budget.fma_share:
            yield f"{share:.1%} FMAs in the main loop, at least {budget.fma_share:.0%}"


def without_kernel(matrix: Document, variants: Iterable[Any]) -> MatrixError | None:
    """The error for the first budget of a matrix that no variant keeps or breaks, because none matches it."""
    variants = list(variants)
    for name, budget in (matrix.matrix.budgets or {}).items():
        if not any(matches(budget, v.name, v.cfg.arch, v.dtypes, v.settings) for v in variants):
            return matrix.source.error(("budgets", name), "matches no kernel that the rows launch", key=True)
    return None
