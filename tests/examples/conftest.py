"""The examples are scripts beside the package: their folder is put on the path."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def examples_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")
