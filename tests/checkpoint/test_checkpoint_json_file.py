"""JSON beside the tensors: an object of bounded size, no key twice."""

from __future__ import annotations

import os

import pytest
from written import entry, safetensors

import rocmkern
from rocmkern.checkpoint.json_file import read_object
from rocmkern.runtime.errors import CheckpointError


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_beside_the_tensors(tmp_path, name):
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": entry()}, b"12"))
    path = tmp_path / name
    for data in (
        b"[" * 10**5,
        b'{"a":' * 10**5,
        b"[]",
        b"3",
        b"{",
        b"\xff",
        b'{"a":1,"a":2}',
        b'{"a":' + b"9" * 5000 + b"}",
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=name):
            rocmkern.open_checkpoint(tmp_path)
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match=f"{name}.* at most"):
        rocmkern.open_checkpoint(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=f"{name} is a FIFO"):
        rocmkern.open_checkpoint(tmp_path)


@pytest.mark.parametrize(("name", "most"), [("config.json", 4 << 20), ("model.safetensors.index.json", 32 << 20)])
def test_the_longest_json(tmp_path, name, most):
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": entry()}, b"12"))
    for size, words in ((most, f"{name} is not JSON"), (most + 1, f"{name} has {most + 1} bytes; at most {most} are")):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
        with pytest.raises(CheckpointError, match=words):
            rocmkern.open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"a": {"b": 1, "b": 2}}', "{path} has the key 'b' twice"),
        ("[1]", "{path} is not a JSON object"),
        ("[" * 10**5, "{path} is nested too deeply"),
        ('{"a"}', "{path} is not JSON: Expecting ':' delimiter: line 1 column 5 (char 4)"),
    ],
)
def test_what_is_wrong_with_json_is_said(tmp_path, data, words):
    path = tmp_path / "some.json"
    path.write_text(data)
    with pytest.raises(CheckpointError) as caught:
        read_object(path, 1 << 20)
    assert str(caught.value) == words.replace("{path}", str(path))


def test_an_object_as_it_was_written(tmp_path):
    path = tmp_path / "some.json"
    path.write_text('{"a": {"b": [1, null]}, "b": 2}')
    assert read_object(path, 31) == {"a": {"b": [1, None]}, "b": 2}
