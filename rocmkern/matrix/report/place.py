"""Where cases ran: one column of a report."""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern.targets import GPU_TARGETS


@dataclass(frozen=True)
class Place:
    """Where results come from: a target and what it was.

    Attributes
    ----------
    target, arch, name : str
    emulated : bool
    run : str
        Label of the run.
    """

    target: str
    arch: str
    name: str
    emulated: bool
    run: str

    @property
    def title(self) -> str:
        """Heading of a column."""
        return self.arch if self.arch.startswith(self.target) else f"{self.target} {self.arch}".strip()

    @property
    def is_card(self) -> bool:
        """Whether the machine code ran on a graphics card."""
        return self.target in GPU_TARGETS and not self.emulated
