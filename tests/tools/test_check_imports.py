"""The linter of imports finds circles, arrows that point up and deferred imports that do not say why; nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_imports  # noqa: E402

LAYERS = (("low",), ("left", "right"), ("high",))
MODULE = "import house.low.b"
DEFERRED = "def f():\n    import house.low.b  # deferred: start-up"
TYPES = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from house.low.b import B"


@pytest.fixture
def house(tmp_path):
    """Makes the complaints about a package from the texts of its modules."""

    def complaints(**texts):
        for name, text in texts.items():
            path = tmp_path / "house" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            (path.parent / "__init__.py").touch()
        return check_imports.complaints(check_imports.read(tmp_path / "house"), LAYERS)

    return complaints


@pytest.mark.parametrize(
    "there",
    [
        MODULE,
        DEFERRED,
        TYPES,
        "from house.low import b",
        "from house.low.b import B, C",
        "from . import b",
        "from .b import B",
        "async def f():\n    from house.low import b  # deferred: start-up",
        "class A:\n    import house.low.b",
        "try:\n    import house.low.b\nexcept ImportError:\n    pass",
        "import importlib\n\ndef f():\n    importlib.import_module('house.low.b')",
        "from importlib import import_module\n\nNAME = 'house.low.b'\nimport_module(NAME)",
    ],
)
@pytest.mark.parametrize(
    "back", ["import house.low.a", "def g():\n    from house.low.a import A  # deferred: start-up"]
)
def test_two_files_that_need_each_other_are_a_circle_however_they_ask(house, there, back):
    (complaint,) = house(low__a=there, low__b=back)
    assert complaint.startswith("a circle of 2 modules:")
    assert "house.low.a:" in complaint and "imports house.low.b" in complaint and "imports house.low.a" in complaint


def test_a_circle_names_the_arrows_within_it_only(house):
    (complaint,) = house(
        low__a="import os\nimport house.low.b", low__b="import house.low.c, house.low.d", low__c=TYPES, low__d=""
    )
    assert complaint.splitlines() == [
        "a circle of 2 modules:",
        "    house.low.b:1 imports house.low.c",
        "    house.low.c:4 imports house.low.b, types only",
    ]


def test_a_long_circle_is_one_and_so_are_two_that_meet(house):
    ring = {f"low__m{n}": f"import house.low.m{(n + 1) % 9}" for n in range(9)}
    (complaint,) = house(**ring, low__x="import house.low.m0")
    assert complaint.startswith("a circle of 9 modules:") and "house.low.x" not in complaint
    (complaint,) = house(low__m8="import house.low.m0, house.low.x")
    assert complaint.startswith("a circle of 10 modules:")


def test_no_circle_is_none(house):
    assert house(low__a="import house.low.b\nfrom house.low.c import C", low__b="import house.low.c", low__c="") == []


@pytest.mark.parametrize("text", ["import house.{}.there", "def f():\n    import house.{}.there  # deferred: start-up"])
@pytest.mark.parametrize(
    ("source", "target", "refused"),
    [
        ("high", "low", False), ("left", "low", False), ("low", "high", True), ("left", "right", True),
        ("left", "high", True), ("left", "left", False), ("elsewhere", "high", False), ("low", "elsewhere", False),
    ],
)  # fmt: skip
def test_packages_import_what_lies_below_them(house, text, source, target, refused):
    found = house(**{f"{target}__there": "", f"{source}__here": text.format(target)})
    assert [complaint.startswith(f"against the layers: house.{source}.here:") for complaint in found] == [
        True
    ] * refused


@pytest.mark.parametrize(
    "text",
    [
        "import numba  # deferred: start-up",
        "# deferred: start-up (a second)\n    import numba",
        "# deferred: optional dependency\n    import torch\n    import triton",
        "# Long words before it.\n    # deferred: platform\n    # and words behind it.\n    import fcntl",
        "from numba import (  # deferred: start-up\n        njit,\n        prange,\n    )",
    ],
)
def test_a_deferred_import_that_says_why_is_let_through(house, text):
    assert house(low__a=f"def f():\n    {text}\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "import numba",
        "import numba  # because it is slow",
        "import numba  # deferred: I like it so",
        "# deferred: start-up\n\n    import numba",
        "import os  # deferred: start-up\n    import numba",
        "# deferred: start-up\n    import os\n\n    import numba",
    ],
)
def test_one_that_does_not_is_found(house, text):
    (complaint,) = house(low__a=f"def f():\n    {text}\n")
    assert complaint.startswith("deferred, and does not say why: ") and complaint.endswith(": import numba")


def test_a_circle_of_packages_points_up_somewhere(house):
    found = house(low__a="import house.high.b", high__b="import house.low.a")
    assert [complaint.partition(":")[0] for complaint in found] == ["a circle of 2 modules", "against the layers"]


def test_what_is_plugged_in_by_name_is_said_once_and_used(tmp_path):
    (tmp_path / "house" / "low").mkdir(parents=True)
    (tmp_path / "house" / "high").mkdir()
    (tmp_path / "house" / "low" / "a.py").write_text("import importlib\n\nimportlib.import_module('house.high.b')")
    (tmp_path / "house" / "high" / "b.py").write_text("import house.low.a")
    package, plug = check_imports.read(tmp_path / "house"), ("house.low.a", "house.high.b")
    assert len(check_imports.complaints(package, LAYERS)) == 2
    assert check_imports.complaints(package, LAYERS, [plug]) == []
    (unused,) = check_imports.complaints(package, LAYERS, [plug, plug[::-1]])
    assert unused == "a plug that nobody uses: house.high.b for house.low.a"


def test_this_repository_passes():
    done = subprocess.run([sys.executable, "tools/check_imports.py"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_complaint_is_an_exit_status(house, tmp_path, capsys):
    house(low__a="def f():\n    import os")
    assert check_imports.main(tmp_path / "house") == 1
    assert "low/a.py:2: import os" in capsys.readouterr().out
