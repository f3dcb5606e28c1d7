"""Directories of a checkpoint, the index of several files, and the configuration beside them."""

from __future__ import annotations

import json

import pytest
from written import entry, gguf, safetensors

import rocmkern
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, CheckpointError


@pytest.fixture
def shards(tmp_path):
    """``shards(weight_map)``: a directory of two files that both hold b, and an index."""
    inner = tmp_path / "model"
    inner.mkdir()
    (tmp_path / "secret.safetensors").write_bytes(safetensors({"a": entry()}, b"xx"))
    (inner / "one.safetensors").write_bytes(safetensors({"a": entry(), "b": entry(begin=2, end=4)}, b"1234"))
    (inner / "two.safetensors").write_bytes(safetensors({"b": entry(), "c": entry(begin=2, end=4)}, b"5678"))

    def shards(weight_map):
        (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return inner

    return shards


def test_the_index_decides_where_a_tensor_is(shards):
    for place, data in (("one.safetensors", b"34"), ("two.safetensors", b"56")):
        with rocmkern.open_checkpoint(
            shards({"a": "one.safetensors", "b": place, "c": "two.safetensors"})
        ) as checkpoint:
            assert set(checkpoint) == {"a", "b", "c"}
            assert checkpoint["b"].to_numpy().tobytes() == data and checkpoint["b"].path.endswith(place)
    with rocmkern.open_checkpoint(shards({"a": "one.safetensors"})) as checkpoint:
        assert set(checkpoint) == {"a"}


@pytest.mark.parametrize(
    "place",
    [
        "../secret.safetensors", "/etc/passwd", "/tmp/secret.safetensors", "./one.safetensors", "sub/one.safetensors",
        "..", "", "one.bin", "C:one.safetensors", "..\\secret.safetensors", "one.safetensors\0", "one.safetensors\n",
        3, None, True, [], {"a": "one.safetensors"}, ["one.safetensors"],
    ],
)  # fmt: skip
def test_an_index_gives_plain_names(shards, place):
    with pytest.raises(CheckpointError, match=r"index\.json: 'a' is in .*plain name"):
        rocmkern.open_checkpoint(shards({"a": place}))


@pytest.mark.parametrize("weight_map", [None, 3, "a", [], ["one.safetensors"], {}])
def test_an_index_has_a_map(shards, weight_map):
    with pytest.raises(CheckpointError, match=r"index\.json is not an index"):
        rocmkern.open_checkpoint(shards(weight_map))


def test_an_index_against_its_files(shards):
    with pytest.raises(CheckpointError, match=r"index\.json: 'c' is in 'one\.safetensors', which has no such tensor"):
        rocmkern.open_checkpoint(shards({"a": "one.safetensors", "c": "one.safetensors"}))
    with pytest.raises(CheckpointError, match=r"not there: three\.safetensors"):
        rocmkern.open_checkpoint(shards({"a": "three.safetensors"}))
    path = shards({"a": "one.safetensors"})
    (path / "four.safetensors").symlink_to("one.safetensors")  # as caches of downloads have them
    with rocmkern.open_checkpoint(shards({"a": "four.safetensors"})) as checkpoint:
        assert checkpoint["a"].to_numpy().tobytes() == b"12"


@pytest.mark.parametrize("path", [7, None, 1.5, ["model.safetensors"]])
def test_a_path_of_another_type_is_an_error_that_names_it(path):
    with pytest.raises(ArgumentTypeError, match=r"path: got .*a path"):
        rocmkern.open_checkpoint(path)


def test_a_directory_of_several_models_or_none(tmp_path):
    def message():
        with pytest.raises(ArgumentError) as caught:
            rocmkern.open_checkpoint(tmp_path)
        return str(caught.value)

    allowed = "a directory with one model, or with model.safetensors.index.json"
    assert f"{str(tmp_path)!r} with no such file; allowed: {allowed}" in message()
    (tmp_path / "b.gguf").write_bytes(gguf())
    assert rocmkern.open_checkpoint(tmp_path).format == "gguf"
    (tmp_path / "a.gguf").write_bytes(gguf())
    assert f"{str(tmp_path)!r} with a.gguf, b.gguf; allowed: {allowed}" in message()
    # Beside a safetensors file, those of the other format are somebody's copies.
    (tmp_path / "c.safetensors").write_bytes(safetensors({"a": entry()}, b"12"))
    assert rocmkern.open_checkpoint(tmp_path).format == "safetensors"
    (tmp_path / "d.safetensors").write_bytes(b"")
    assert f"{str(tmp_path)!r} with c.safetensors, d.safetensors, a.gguf, b.gguf; allowed: {allowed}" in message()


def test_a_file_that_is_no_checkpoint_is_named_with_its_beginning(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"abcdefgh")
    with pytest.raises(
        ArgumentError, match=r"model\.bin', which is unknown, and starts with b'abcd'; allowed: a \.safe"
    ):
        rocmkern.open_checkpoint(tmp_path / "model.bin")
    (tmp_path / "model.gguf").write_bytes(b"abcdefgh")
    with pytest.raises(
        CheckpointError, match=r"model\.gguf is not a GGUF file: it is unknown, and starts with b'abcd'$"
    ):
        rocmkern.open_checkpoint(tmp_path / "model.gguf")


def test_an_index_is_opened_by_its_directory(shards):
    directory = shards({"a": "one.safetensors"})
    with pytest.raises(ArgumentError, match="which is an index of other files; allowed: the directory that it is in"):
        rocmkern.open_checkpoint(directory / "model.safetensors.index.json")


@pytest.mark.parametrize("path", ["missing.gguf", "a\0b"])
def test_a_path_that_is_not_there(path):
    with pytest.raises(ArgumentError) as caught:
        rocmkern.open_checkpoint(path)
    assert f"path: got {path!r}; allowed: a .safetensors or .gguf file, or a directory with such files" in str(
        caught.value
    )


def test_names_in_capitals(tmp_path):
    (tmp_path / "MODEL.SAFETENSORS").write_bytes(safetensors({"a": entry()}, b"12"))
    assert list(rocmkern.open_checkpoint(tmp_path / "MODEL.SAFETENSORS")) == ["a"]


def test_many_files_that_are_not_there_are_named_as_far_as_there_is_room(shards):
    names = [f"model-{number:03}.safetensors" for number in range(60)]
    with pytest.raises(CheckpointError) as caught:
        rocmkern.open_checkpoint(shards({name: name for name in names}))
    listed = str(caught.value).partition("names files that are not there: ")[2]
    assert listed == ", ".join(names)[:400] + "..."


def test_a_checkpoint_is_a_mapping_until_it_is_closed(shards):
    with rocmkern.open_checkpoint(shards({"a": "one.safetensors", "c": "two.safetensors"})) as checkpoint:
        assert repr(checkpoint) == "<Checkpoint of 2 tensors, safetensors>"
        assert dict(checkpoint)["c"] is checkpoint["c"] and checkpoint.metadata == {}
    assert repr(checkpoint) == "<Checkpoint of 0 tensors, safetensors>" and list(checkpoint) == []
