"""What a wheel is told when it is built: the compiled kernels that it brings, and whom it is for.

They are what `rocmkern compile --common --into build/shipped` wrote (`make wheel` does that first). A wheel that brings
them is for Linux on x86-64; one without is for everybody, and so is an editable installation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: The kernels call libm and libc by names that have always been there, so the oldest tag that pip knows will do.
TAG = "py3-none-manylinux_2_17_x86_64"


class ShippedKernels(BuildHookInterface):
    """Adds the entries to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is built."""
        shipped = Path(self.root) / "build" / "shipped"
        found = sorted(shipped.glob("*.entry"))
        if version == "editable" or not found:
            return
        for entry in found:  # and not what a compilation that was killed left beside them
            build_data["force_include"][str(entry)] = f"rocmkern/targets/shipped/{entry.name}"
        build_data["pure_python"] = False
        build_data["tag"] = TAG
