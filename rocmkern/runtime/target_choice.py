"""Which target operations use, by its name: what is opened and compiled for it is the business of `rocmkern.targets`.

The choice, first match: that of this thread, that of the process, the environment variable ``ROCMKERN_TARGET``,
automatic (HIP if a usable AMD card is there, else CUDA, else CPU).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.numba_switches import compiles, switches, variable
from rocmkern.runtime.once import once

TargetName: TypeAlias = Literal["hip", "cuda", "cpu", "python"]
#: Targets that run on a graphics card, and all targets, best first.
GPU_TARGETS: tuple[TargetName, ...] = ("hip", "cuda")
NAMES: tuple[TargetName, ...] = (*GPU_TARGETS, "cpu", "python")

_process: TargetName | None = None
# A compilation has its caller's context, in a thread of its own.
_thread: ContextVar[TargetName | None] = ContextVar("_thread", default=None)


def choose_for_process(name: TargetName | None) -> TargetName | None:
    """Choose for the whole process; None goes back to the automatic choice. Return what was chosen before."""
    global _process
    before, _process = _process, name
    return before


def choose_for_thread(name: TargetName | None) -> TargetName | None:
    """Choose for this thread; None goes back to what the process chose. Return what was chosen before."""
    before = _thread.get()
    _thread.set(name)
    return before


def state() -> tuple[Any, ...]:
    """Return all that the choice follows from, and whether its target may launch: equal states, the same target."""
    return _thread.get() or _process or (variable("ROCMKERN_TARGET"),), switches()


def chosen() -> tuple[TargetName, str]:
    """Return the name of the target that an operation on NumPy arrays uses now, and why; nothing is opened."""
    override = _thread.get()
    if override:
        return override, "chosen by using() in this thread"
    if _process:
        return _process, "chosen by use()"
    wanted = (variable("ROCMKERN_TARGET") or "").strip()
    if wanted:
        if wanted not in NAMES:
            raise ArgumentError("ROCMKERN_TARGET", repr(wanted), ", ".join(NAMES))
        return wanted, f"ROCMKERN_TARGET={wanted}"
    if not compiles():
        return "python", "automatic: NUMBA_DISABLE_JIT is set, so nothing is compiled"
    return _automatic()


@once
def _automatic() -> tuple[TargetName, str]:
    # deferred: start-up
    from rocmkern.runtime.probe.status import gpu_status

    status = gpu_status()
    if status.available and status.chosen is not None:
        kind: Any = status.chosen.kind  # one of GPU_TARGETS
        return kind, f"automatic: {status.chosen}"
    return "cpu", f"automatic: {status.reason}"
