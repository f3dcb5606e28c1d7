"""Targets and devices of a test run: which are usable, the lock around a GPU, the lines of the header."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import rocmkern
from rocmkern.matrix.loader import unknown_name
from rocmkern.runtime import lock
from rocmkern.runtime.devices import open_device
from rocmkern.runtime.errors import RocmkernError
from rocmkern.runtime.manager import default_manager
from rocmkern.runtime.probe import suspect
from rocmkern.runtime.probe.driver import check_driver
from rocmkern.runtime.probe.status import gpu_status, require_gpu
from rocmkern.targets import GPU_TARGETS, NAMES
from rocmkern.testing import worker

if TYPE_CHECKING:  # locks are taken without pytest too
    import pytest

# Under test the shared manager may hold this share more or less of the driver's free memory at the end than before.
LEAK_PERCENT = 5
GIB = 1 << 30


def usable_targets() -> tuple[str, ...]:
    """The targets that work on this machine, best first."""
    return tuple(target for target in NAMES if target_reason(target) is None)


@cache
def target_reason(target: str) -> str | None:
    """Why a target cannot be used here, or None. A GPU is opened in the worker process only."""
    if target not in GPU_TARGETS:
        return reason_here(target)

    try:
        check_driver(target)
        return worker.shared_worker().call(f"{__name__}:reason_here", target, what=f"opening {target}")
    except RocmkernError as error:
        return str(error)


def reason_here(target: str) -> str | None:
    """Why a target cannot be used in this process, or None."""
    try:
        with rocmkern.using(target):
            return None
    except RocmkernError as error:
        return str(error)


def chosen_targets(config: pytest.Config) -> tuple[str, ...]:
    """The targets of ``--rocmkern-target``, or every usable one."""
    option = config.getoption("rocmkern_target")
    if option is None:
        return usable_targets()
    names = tuple(name.strip() for name in option.split(",") if name.strip())
    for name in names or ("",):
        if name not in NAMES:
            import pytest  # deferred: optional dependency

            raise pytest.UsageError(f"--rocmkern-target: {unknown_name('target', name, NAMES)}")
    return names


def gpu_reason() -> str | None:
    """Why there is no GPU for tests, or None."""
    status = gpu_status()
    if status.chosen is None:
        return f"no GPU: {status.reason}"
    return None


def device_lines() -> list[str]:
    """Lines of the header: the GPU with its memory, or why there is none and what to check."""
    status = gpu_status()
    if status.chosen is None:
        checks = [f"  check {number}: {check}" for number, check in enumerate(status.checks, 1)]
        return [f"rocmkern device: no GPU: {status.reason}", *checks]
    if status.chosen.kind not in GPU_TARGETS:
        return [f"rocmkern device: {status.chosen}; {memory_here(status.chosen.kind)}"]
    try:
        kind = status.chosen.kind
        memory = worker.shared_worker().call(f"{__name__}:memory_here", kind, what=f"opening {kind}")
    except RocmkernError as error:
        memory = f"cannot be used: {error}"
    return [f"rocmkern device: {status.chosen}; {memory}"]


def memory_here(kind: str) -> str:
    """Memory of the device of a kind, which is opened in this process."""
    manager = default_manager(kind)
    stats = manager.memory_stats()
    return (
        f"total {stats.total / GIB:.1f} GiB, free {stats.free / GIB:.1f} GiB, "
        f"safe limit {manager.safe_alloc_size() / GIB:.1f} GiB"
    )


@contextmanager
def device_lock(kind: str) -> Iterator[Any]:
    """Hold the lock of the GPU that ``"hip"`` or ``"cuda"`` stands for, so that others wait; gives its `Device`.

    A device that is suspect is refused.
    """
    device = open_device(kind)
    worker.using_device(device.info)
    with ExitStack() as held:
        with worker.waiting():
            held.enter_context(lock.device_lock(device.info))
        # Who held it before us may have found that it hangs.
        suspect.check(device.info)
        yield device


@contextmanager
def locked_manager() -> Iterator[Any]:
    """The shared manager of the chosen GPU, under its lock; a buffer that is alive afterwards is an error."""
    with device_lock(require_gpu().kind) as device:
        manager = default_manager(device)
        yield manager
        manager.assert_no_leak(tolerance_percent=LEAK_PERCENT)
