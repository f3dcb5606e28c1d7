"""Which matrix file a command means that is not told."""

from __future__ import annotations

from pathlib import Path


def default_matrix() -> Path:
    """``matrix.yaml`` here, else that of the library: in the package where it is installed, else in its checkout."""
    here, package = Path("matrix.yaml"), Path(__file__).parents[1]
    installed = package / "matrix" / "matrix.yaml"
    return here if here.exists() else installed if installed.exists() else package.parent / "matrix.yaml"
