"""What the kernel says about the memory of an AMD card: it counts what all programs hold, the compositor's too."""

from __future__ import annotations

from pathlib import Path

from rocmkern.runtime.cap import Reading
from rocmkern.runtime.device import MemoryInfo


def vram_info(pci_id: str | None, filesystem_root: Path | str = "/") -> MemoryInfo:
    """Read ``mem_info_vram_total`` and ``mem_info_vram_used`` of a card.

    Parameters
    ----------
    pci_id : str or None
        ``"0000:03:00.0"``.
    filesystem_root : path
        Directory that stands for ``/``; another one is given by tests.

    Returns
    -------
    MemoryInfo
        None where a file is missing or does not hold a number, and where the card has no memory of its own.
    """
    directory = Path(filesystem_root) / "sys/bus/pci/devices" / (pci_id or "none").lower()
    total, used = (_number(directory / f"mem_info_vram_{name}") for name in ("total", "used"))
    name = f"/sys/bus/pci/devices/{(pci_id or 'none').lower()}/mem_info_vram"
    known = total if total else None
    free = None if known is None or used is None else max(0, known - used)
    return MemoryInfo(Reading(free, f"{name}_total minus _used"), Reading(known, f"{name}_total"))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
