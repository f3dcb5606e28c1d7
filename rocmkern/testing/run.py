"""What the parts of the pytest plugin know of a run: its matrix files, and the names of what reports carry."""

from __future__ import annotations

from pathlib import Path

import pytest

MATRIX_INI = "rocmkern_matrix"
PROPERTY = "rocmkern"
# On every report of a case, also where it was skipped or failed: which case, on which target.
CASE_PROPERTY = "rocmkern_case"


def matrix_files(config: pytest.Config) -> list[Path]:
    """The matrix files of a run: those of ``--matrix``, or else the project's."""
    named = config.getoption("matrix")
    if named:
        return [(config.invocation_params.dir / name).resolve() for name in named]
    return [(config.rootpath / name).resolve() for name in config.getini(MATRIX_INI)]
