"""The public names: loaded lazily, and the same for type checkers."""

import ast
from pathlib import Path

import pytest

import rocmkern


@pytest.mark.parametrize("name", rocmkern.__all__)
def test_every_public_name_loads(name):
    assert getattr(rocmkern, name).__module__.startswith("rocmkern.")
    assert getattr(rocmkern, name).__doc__


def test_the_stub_names_the_same():
    stub = ast.parse(Path(rocmkern.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    named = {alias.asname: node.module for node in imports for alias in node.names}
    assert named == rocmkern._MODULE_OF | dict.fromkeys(rocmkern._SUBMODULES, "rocmkern")
    assert rocmkern.reference.softmax is not rocmkern.softmax


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'flash_atention'"):
        _ = rocmkern.flash_atention
