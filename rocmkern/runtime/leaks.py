"""Is a buffer still alive, or memory of the device missing, after all work is done?"""

from __future__ import annotations

import gc
from collections.abc import Callable

from rocmkern.runtime.errors import ArgumentError, LeakError
from rocmkern.runtime.ledger import LedgerEntry
from rocmkern.runtime.memory import DeviceMemory

_LISTED = 10


def live_buffers(memory: DeviceMemory, manager: int | None = None) -> list[LedgerEntry]:
    """Return the live buffers of a manager (None: of all), oldest first, without what managers keep for themselves."""
    memory.settle()
    return [entry for entry in memory.ledger.entries(manager) if not entry.kept]


def live_in_process() -> list[LedgerEntry]:
    """Return the live buffers of all devices that this process uses, without what managers keep for themselves."""
    return [entry for memory in DeviceMemory.all() for entry in live_buffers(memory)]


def check(memory: DeviceMemory, manager: int, trim: Callable[[], int], tolerance_percent: float) -> None:
    """Raise `LeakError` if a buffer of a manager is alive or memory of the device is missing.

    Parameters
    ----------
    memory : DeviceMemory
        Of the device.
    manager : int
        The manager's number in the ledger.
    trim : callable
        Returns the idle memory of the pool to the driver.
    tolerance_percent : float
        How much of the memory that was free when the device was opened may be missing now, in percent.
    """
    if not 0 <= tolerance_percent <= 100:
        raise ArgumentError("tolerance_percent", repr(tolerance_percent), "0 to 100")
    alive = live_buffers(memory, manager)
    if alive:
        # A reference cycle that nobody holds is no leak.
        gc.collect()
        alive = live_buffers(memory, manager)
    if alive:
        lines = [f"  {entry}" for entry in alive[:_LISTED]]
        if len(alive) > _LISTED:
            lines.append(f"  and {len(alive) - _LISTED} more")
        total = sum(entry.nbytes for entry in alive)
        raise LeakError(f"{len(alive)} buffers with {total} bytes are alive:\n" + "\n".join(lines))
    trim()
    before, now = memory.baseline, memory.device.memory_info().free.value
    if not memory.device.free_memory_is_ours or before is None or now is None:
        return
    missing = before - (now + memory.reserved)
    if missing > before * tolerance_percent / 100:
        raise LeakError(
            f"{missing} bytes are missing on {memory.device.info}: {before} bytes were free when it was opened, now "
            f"{now} are free and {memory.reserved} are held by other managers; tolerance {tolerance_percent} %"
        )
