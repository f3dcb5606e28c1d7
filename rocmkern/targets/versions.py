"""Versions of what compiles, without importing it."""

from __future__ import annotations

import functools
import importlib.metadata


@functools.cache
def installed(*packages: str) -> str | None:
    """Names and versions of packages, in one line; None if one of them is not installed."""
    try:
        return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    except importlib.metadata.PackageNotFoundError:
        return None
