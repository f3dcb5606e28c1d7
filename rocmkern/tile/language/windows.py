"""The circle of a stage: fetch, acquire, release, and what may come when.

The interpreter goes through it with a stage's windows, `check` with a kernel's text; both say the same of a false step.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocmkern.tile.language.kinds import refuse

IN_USE = "a stage has a window in use at the end of the kernel: release it"
ON_ITS_WAY = "a stage has a window on its way at the end of the kernel: acquire and release it, or call T.finish"


@dataclass(frozen=True)
class Windows:
    """Where a stage is in its circle.

    Attributes
    ----------
    num_stages : int
        Windows that may be on their way.
    needs_pages : bool
        Whether `paged` has to say where the rows are, and has not.
    on_their_way : int
    in_use : bool
    """

    num_stages: int
    needs_pages: bool = False
    on_their_way: int = 0
    in_use: bool = False

    def paged(self) -> Windows:
        """After `paged`."""
        if self.on_their_way or self.in_use:
            refuse("the stage has been used already")
        if not self.needs_pages:
            refuse("the stage must be made with paged=True")
        return Windows(self.num_stages)

    def fetch(self) -> Windows:
        """After `fetch`."""
        if self.on_their_way == self.num_stages:
            if self.num_stages == 1:
                refuse("a window is already on its way; acquire it first")
            refuse(f"{self.num_stages} windows are already on their way; acquire the first of them")
        if self.needs_pages:
            refuse("a stage made with paged=True needs `paged` first")
        return Windows(self.num_stages, False, self.on_their_way + 1, self.in_use)

    def acquire(self) -> Windows:
        """After `acquire`."""
        if not self.on_their_way:
            refuse("nothing was fetched")
        if self.in_use:
            refuse("the window in use must be released before the next one overwrites it")
        return Windows(self.num_stages, False, self.on_their_way - 1, True)

    def release(self) -> Windows:
        """After `release`."""
        if not self.in_use:
            refuse("the stage is not acquired")
        return Windows(self.num_stages, False, self.on_their_way, False)

    def finish(self) -> Windows:
        """After `finish`."""
        if self.in_use:
            refuse("the window in use must be released first")
        return Windows(self.num_stages, self.needs_pages)

    def product(self) -> None:
        """Refuse a product with a window that is not in use."""
        if not self.in_use:
            refuse("this stage is not acquired: call acquire() before the product and release() after it")

    def end(self) -> None:
        """Refuse the end of the kernel while something is in use or on its way."""
        if self.in_use:
            refuse(IN_USE)
        if self.on_their_way:
            refuse(ON_ITS_WAY)
