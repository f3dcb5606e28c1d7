"""Versions of installed distributions."""

from __future__ import annotations

from importlib import metadata


def installed_version(distribution: str) -> str | None:
    """Version of a distribution in this environment, None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
