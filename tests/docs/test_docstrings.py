"""The examples in docstrings, which the reference shows, print what they say."""

from __future__ import annotations

import doctest
import importlib
import re

import numpy as np
import pytest
from pages import ROOT

import rocmkern

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "rocmkern").rglob("*.py"))
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


def test_there_are_examples():
    assert len(MODULES) >= 10


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name, monkeypatch, tmp_path):
    for library in ("torch", "transformers"):
        if name.startswith(f"rocmkern.{library}"):
            pytest.importorskip("torch", reason=f"{name} needs torch, which is not installed")
            pytest.importorskip(library, reason=f"{name} needs {library}, which is not installed")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = {**vars(rocmkern.tile), **vars(module), "np": np, "rocmkern": rocmkern, "T": rocmkern.tile}
    found = doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    with rocmkern.using("python"):
        for example in found:
            runner.run(example, out=said.append)
    assert sum(len(example.examples) for example in found) > 0
    assert runner.failures == 0, "".join(said)
