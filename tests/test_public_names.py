"""The public names: loaded lazily, and the same for type checkers."""

import sys
from pathlib import Path

import pytest

import rocmkern

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import public_names


@pytest.mark.parametrize("name", rocmkern.__all__)
def test_every_public_name_loads(name):
    assert getattr(rocmkern, name).__module__.startswith("rocmkern.")
    assert getattr(rocmkern, name).__doc__


def test_the_stub_is_what_the_families_say():
    """Where it is stale: python tools/public_names.py."""
    assert public_names.STUB.read_text() == public_names.stub()


def test_names_come_from_where_the_stub_says():
    named = {name: module for module, names in public_names.homes().items() for name in names}
    assert named | dict.fromkeys(public_names.SUBMODULES, "rocmkern") == rocmkern._MODULE_OF
    assert sorted(named) == rocmkern.__all__
    assert rocmkern.reference.softmax is not rocmkern.softmax


def test_operations_are_decorated_functions(tmp_path):
    text = "@planned\ndef b(): ...\n@unplanned\ndef a(): ...\n@other\ndef c(): ...\ndef d(): ...\n"
    (tmp_path / "api.py").write_text(text)
    assert public_names.operations(tmp_path / "api.py") == ["a", "b"]


def test_a_stale_stub_is_an_exit_status(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(public_names, "STUB", tmp_path / "__init__.pyi")
    monkeypatch.setattr(sys, "argv", ["public_names.py"])
    assert public_names.main() == 0
    monkeypatch.setattr(sys, "argv", ["public_names.py", "--check"])
    assert public_names.main() == 0 and not capsys.readouterr().out
    public_names.STUB.write_text("")
    assert public_names.main() == 1 and "python tools/public_names.py" in capsys.readouterr().out


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'flash_atention'"):
        _ = rocmkern.flash_atention
