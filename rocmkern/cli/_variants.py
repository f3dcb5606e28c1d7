"""Every kernel variant that calls launch on an architecture, found by making them: those of a matrix's rows, say.

The calls go to an object that notes launches instead of running them, on arrays of the right shapes that are never
filled. So the list cannot differ from what `rocmkern.ops` really asks for, and an operation is on it as soon as it has
rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.architectures import architecture, known
from rocmkern.matrix import Document, Draw, expand
from rocmkern.matrix.registry import resolve
from rocmkern.runtime.errors import ArgumentError, TargetError
from rocmkern.targets import launching_on, source
from rocmkern.tile.language.kernel import Config, Kernel

#: Compute units of a large card: decoding splits its keys over so many blocks.
_PARALLELISM = 96


@dataclass(frozen=True)
class Variant:
    """A kernel, its configuration, and the element type of each of its tensors."""

    kernel: Kernel
    cfg: Config
    dtypes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.__name__

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the configuration, without the architecture."""
        return {name: getattr(self.cfg, name) for name in self.cfg.__dataclass_fields__ if name != "arch"}

    @property
    def features(self) -> str:
        """The configuration in a few words, without the architecture."""
        words = ((name, int(v) if isinstance(v, bool) else v) for name, v in self.settings.items())
        return " ".join(f"{name}={value}" for name, value in words if value != "")


class VariantRecorder:
    """A target that notes the variants of all launches."""

    device, parallelism = None, _PARALLELISM

    def __init__(self, arch: str, name: str = "hip"):
        self.arch, self.name = arch, name
        self.found: dict[Variant, None] = {}

    def launch(self, kernel: Kernel, cfg: Config, grid: Sequence[int], args: Sequence[Any], stream: Any = None) -> None:
        """Note a launch."""
        self.found[Variant(kernel, cfg, source.dtypes_of(kernel, args))] = None


class ShapeDraw(Draw):
    """Arrays of the shapes and dtypes of a case; zeros that take no memory until somebody writes."""

    def array(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        """An array that is not filled."""
        return np.zeros(shape, self.dtype if dtype is None else dtype)

    def made(self, shape: tuple[int, ...], dtype: Any, make: Callable[[], np.ndarray]) -> np.ndarray:
        """An array that is not filled."""
        return np.zeros(shape, dtype)


def check_archs(archs: Iterable[str], target: str) -> None:
    """Raise `ArgumentError` for ``--arch`` where one is not known, or another target compiles for it."""
    allowed = known(target)
    for arch in archs:
        if arch.split(":")[0] not in allowed:
            raise ArgumentError("--arch", arch, ", ".join(allowed))


def variants(
    archs: Iterable[str], matrix: Document, kernels: Sequence[str] = (), dtypes: Sequence[str] = ()
) -> list[Variant]:
    """All variants that the rows of a matrix launch, architecture by architecture.

    Parameters
    ----------
    archs : iterable of str
        AMD's, such as ``"gfx1100"``.
    matrix : Document
        Its rows say what is called.
    kernels : sequence of str
        Names to keep; empty: all.
    dtypes : sequence of str
        ``"float32"``, ``"float16"``, ``"bfloat16"``: what the first tensor may be of; empty: all.

    Raises
    ------
    TargetError
        If an architecture is not known, or not AMD's.
    """
    recorders = []
    for arch in archs:
        if architecture(arch).target != "hip":
            raise TargetError(f"{arch!r} is not an AMD architecture; allowed: such as 'gfx1100'")
        recorders.append(VariantRecorder(arch))
    record(recorders, matrix)
    return [
        v
        for recorder in recorders
        for v in recorder.found
        if (not kernels or v.name in kernels) and (not dtypes or v.dtypes[0] in dtypes)
    ]


def sample(variants: Iterable[Variant], count: int) -> list[Variant]:
    """``count`` variants of each kernel and type of its first tensor on each architecture, always the same ones.

    They are those with the smallest hashes, so that a new variant changes the sample by one; another architecture has
    others.
    """

    def place(variant: Variant) -> str:
        words = (variant.cfg.arch, variant.name, *variant.dtypes, variant.features)
        return hashlib.sha256(" ".join(words).encode()).hexdigest()

    found = list(variants)
    taken, counts = set[Variant](), Counter[tuple[str, ...]]()
    for variant in sorted(found, key=place):
        kind = (variant.cfg.arch, variant.name, variant.dtypes[0])
        counts[kind] += 1
        if counts[kind] <= count:
            taken.add(variant)
    return [variant for variant in found if variant in taken]


def record(recorders: Sequence[VariantRecorder], matrix: Document, operations: Sequence[str] = ()) -> None:
    """Make the calls of a matrix's rows to recorders of one target.

    Parameters
    ----------
    recorders : sequence of VariantRecorder
        Of one target and several architectures.
    matrix : Document
        Its rows say what is called.
    operations : sequence of str
        Names to keep; empty: all.
    """
    for case in expand(matrix):
        if operations and case.operation.name not in operations:
            continue
        if case.facts.expect_error is None and case.skip_reason(recorders[0].name) is None:
            call = case.operation.call(ShapeDraw(case))
            for recorder in recorders:
                with launching_on(recorder):
                    resolve(case.operation.function)(**call.arguments)
                    if recorder.name != "cpu" and case.operation.only_on_device is not None:
                        case.operation.only_on_device(call.arrays)
