"""What the fingerprint of a compiled kernel covers."""

from __future__ import annotations

from pathlib import Path

import pytest

import rocmkern
from rocmkern.targets.source import TARGETS, library_files

ROOT = Path(rocmkern.__file__).parent


@pytest.mark.parametrize("target", TARGETS)
def test_files_of_a_target_and_what_all_share(target):
    files = {path.relative_to(ROOT).as_posix() for path in library_files(target)}
    assert {"tile/language/operation.py", "tile/types.py", "targets/source.py", f"targets/{target}.py"} <= files
    assert not {f"targets/{other}.py" for other in TARGETS if other != target} & files


def test_every_file_of_the_tile_language_counts_for_some_target():
    files = {path for target in TARGETS for path in library_files(target)}
    assert files == {path for folder in ("tile", "targets") for path in (ROOT / folder).rglob("*.py")}
    assert ROOT / "tile" / "_lowering" / "hip" / "pipeline.py" in files
