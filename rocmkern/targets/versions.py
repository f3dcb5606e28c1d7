"""Versions of what compiles, without importing it."""

from __future__ import annotations

import functools

from rocmkern.runtime.numba_switches import code_settings
from rocmkern.runtime.versions import installed_version


@functools.cache
def installed(*packages: str) -> str | None:
    """Names and versions of packages, in one line; None if one of them is not installed."""
    versions = [installed_version(package) for package in packages]
    if None in versions:
        return None
    return ", ".join(f"{package} {version}" for package, version in zip(packages, versions, strict=True))


def compiler_versions(*packages: str) -> str | None:
    """What of a compiler decides which code it makes: versions, and numba's variables; None if it is not installed."""
    found = installed(*packages)
    return found and ", ".join([found, *code_settings()])
