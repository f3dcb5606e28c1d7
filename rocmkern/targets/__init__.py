"""Where kernels run: ``hip``, ``cuda``, ``cpu`` or ``python``.

The choice, first match: a `using` block of this thread, `use`, the environment variable ``ROCMKERN_TARGET``, automatic
(see `rocmkern.runtime.target_choice`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

from rocmkern.runtime.device import Device
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.numba_switches import check_switches
from rocmkern.runtime.once import once
from rocmkern.runtime.target_choice import (
    GPU_TARGETS,
    NAMES,
    TargetName,
    choose_for_process,
    choose_for_thread,
    chosen,
)
from rocmkern.targets.interface import Target

__all__ = [
    "GPU_TARGETS",
    "NAMES",
    "Target",
    "TargetInfo",
    "TargetName",
    "current_target",
    "launching_on",
    "target",
    "target_of",
    "use",
    "using",
]


@dataclass(frozen=True)
class TargetInfo:
    """What `target` reports.

    Attributes
    ----------
    name : str
        ``"hip"``, ``"cuda"``, ``"cpu"`` or ``"python"``.
    arch : str
        Architecture that kernels are compiled for, such as ``"gfx1100"`` or ``"cpu-avx512"``.
    reason : str
        Why this one was chosen.
    """

    name: TargetName
    arch: str
    reason: str


#: The target object that this thread's launches on host arrays go to, if they are sent to one.
sent_to: ContextVar[Target | None] = ContextVar("sent_to", default=None)


class use:
    """Choose the target for the whole process.

    Parameters
    ----------
    name : {"hip", "cuda", "cpu", "python"} or None
        The target; None goes back to the automatic choice.

    Raises
    ------
    ArgumentError
        If the name is not one of the four.
    TargetError
        If the target cannot be used here; the message says what is missing.

    Notes
    -----
    The result is a context manager that restores the former choice::

        rocmkern.use("python")            # from now on
        with rocmkern.use("cpu"): ...     # within the block

    A single thread overrides the choice with `using`.
    """

    def __init__(self, name: TargetName | None):
        if name is not None:
            _get(name)
        self._before = choose_for_process(name)

    def __enter__(self) -> use:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        choose_for_process(self._before)


@contextmanager
def using(name: TargetName) -> Iterator[None]:
    """Choose the target for this thread, within the block; parameters and errors as for `use`."""
    _get(name)
    before = choose_for_thread(name)
    try:
        yield
    finally:
        choose_for_thread(before)


def target() -> TargetInfo:
    """The target that an operation on NumPy arrays uses now, and why."""
    name, reason = chosen()
    return TargetInfo(name, _get(name).arch, reason)


def current_target() -> Target:
    """The target object itself: ``name``, ``arch`` and ``launch(kernel, cfg, grid, args)``."""
    return sent_to.get() or _get(chosen()[0])


@contextmanager
def launching_on(target: Target) -> Iterator[None]:
    """Send this thread's launches on host arrays to a target object, within the block: for tools that look at them."""
    before = sent_to.get()
    sent_to.set(target)
    try:
        yield
    finally:
        sent_to.set(before)


@once
def target_of(device: Device) -> Target:
    """The target object that runs kernels on a GPU device."""
    if device.kind == "hip":
        # deferred: optional dependency
        from rocmkern.targets.hip import HipTarget

        return HipTarget(device)
    # deferred: optional dependency
    from rocmkern.targets.cuda import CudaTarget

    return CudaTarget(device)


def _get(name: str) -> Target:
    """The target object of a name, checked: variables may change between two calls."""
    if name in NAMES:
        check_switches(name)
    return _made(name)


@once
def _made(name: str) -> Target:
    if name == "python":
        # deferred: start-up
        from rocmkern.targets.python import PythonTarget

        return PythonTarget()
    if name == "cpu":
        # deferred: start-up
        from rocmkern.targets.cpu import CpuTarget

        return CpuTarget()
    if name in GPU_TARGETS:
        # deferred: start-up
        from rocmkern.runtime.devices import open_device

        return target_of(open_device(name))
    raise ArgumentError("target", repr(name), ", ".join(NAMES))
