"""Files that somebody damaged, or made to do damage: a clean error that names the file and what in it."""

from __future__ import annotations

import json
import os
import socket
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import written
from written import entry, pair, safetensors, tensor, text

import rocmkern
from rocmkern.checkpoint.gguf import KINDS
from rocmkern.runtime.errors import ArgumentError, CheckpointError

U32, STRING, ARRAY = 4, 8, 9


@pytest.fixture
def refused(tmp_path):
    """``refused(name, data)``: the message of opening a file with some bytes, which names the file."""

    def refused(name, data):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(CheckpointError) as caught:
            rocmkern.open_checkpoint(path)
        assert name in str(caught.value) and len(str(caught.value)) < 700
        return str(caught.value).replace(str(tmp_path), "")

    return refused


TWO = {"a": entry(), "b": entry(begin=2, end=4)}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (TWO, b"123", "the data of 'b' ends"),
        (TWO, b"12345", "1 bytes behind"),
        ({"a": entry(), "b": entry(begin=3, end=5)}, b"12345", "gap before the data of 'b'"),
        ({"a": entry(), "b": entry(begin=1, end=3)}, b"123", "other data where the data of 'b'"),
        ({"a": entry(shape=(3,))}, b"12", "'a' of dtype U8 and shape [3] cannot have 2 bytes"),
        ({"a": entry("F4", (3,))}, b"12", "'a' of dtype F4"),
        ({"a": entry(shape=(-2,))}, b"12", "not an array"),
        ({"a": entry(shape=(2.0,))}, b"12", "not an array"),
        ({"a": entry(shape=(True,))}, b"12", "not an array"),
        ({"a": entry(shape=(1,) * 33)}, b"1", "at most 32 whole numbers"),
        ({"a": entry(shape=(1 << 62, 1 << 62, 0), end=0)}, b"", "beyond what an array can have"),
        ({"a": entry(shape=(1 << 70,))}, b"12", "not an array"),
        ({"a": entry(begin=2, end=0)}, b"12", "not a begin and an end"),
        ({"a": {"dtype": "U8", "shape": [2]}}, b"12", "'a' has no data_offsets"),
        ({"a": entry() | {"more": 1}}, b"12", "unknown key 'more'"),
        ({"a": {**entry(), "data_offsets": [0, 1, 2]}}, b"12", "data_offsets"),
        ({"": entry()}, b"12", "the name of a tensor is empty"),
        ({"a\0b": entry()}, b"12", "cannot be printed"),
        ({"\x1b[2J": entry()}, b"12", "cannot be printed"),
        ({"x" * 1025: entry()}, b"12", "1025 bytes"),
        ({"__metadata__": {"a": 1}}, b"", "not a string"),
        ({"__metadata__": []}, b"", "__metadata__"),
        ([], b"", "the header has b'[]'"),
        (b'{"a":1,"a":1}', b"", "the entry of 'a'"),
        (b'{"__metadata__":{"k":"v","k":"v"}}', b"", "has 'k' twice"),
        (b"{" + json.dumps(TWO).encode()[1:-1] + b"," + json.dumps(TWO).encode()[1:], b"1234", "has 'a' twice"),
        (b'{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"12", "has 'dtype' twice"),
        (b'{"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}', b"12", "not an array"),
        (b'{"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"12", "is not UTF-8"),
        (b'{"\xff":{}}', b"", "damaged string"),
        (b'{"\\x":{}}', b"", "damaged string"),
        (b'{"a\nb":{}}', b"", "damaged string"),
        (b'{"a\\":{}}', b"", "not a string"),
        (b'{"' + b"\\a" * 10**6 + b'":{}}', b"", "damaged string"),
        (b"{" + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(131073)) + b"}",
         b"", "more than 131072 keys"),
        (b"{} x", b"", "not its end"),
        (b"{", b"", "not a string"),
        (b"", b"", "too short"),
        (b'{"a":' + b"[" * 100_000, b"", "not {"),
        (b'{"a":{"shape":' + b"[" * 100_000, b"", "not an array"),
        (b'{"a":{"shape":[' + b"1," * 100_000, b"", "not an array"),
    ],
)  # fmt: skip
def test_headers_of_safetensors(refused, header, data, message):
    assert message in refused("some.safetensors", safetensors(header, data))


@pytest.mark.parametrize("length", [3, 40, 1 << 20, 99_999_999, 100_000_001, 1 << 40, (1 << 64) - 1])
def test_lengths_of_headers(refused, length):
    refused("some.safetensors", safetensors({"a": entry()}, b"12", length))


def test_spaces_and_metadata_in_a_header(tmp_path):
    tensors = b'"x" : {"shape":[ 1 , 2 ],"data_offsets":[0,2],"dtype":"U8"}'
    header = b'{ "__metadata__" : { "format":"pt" , "a\\n":"\\\\", "\\\\\\"":"" },\n' + tensors + b" }   "
    (tmp_path / "model.safetensors").write_bytes(safetensors(header, b"\1\2"))
    with rocmkern.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint["x"].shape == (1, 2)
        np.testing.assert_array_equal(checkpoint["x"].to_numpy(), [[1, 2]])


NARROW = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip


def test_narrow_dtypes_arrive_as_those_of_ml_dtypes(tmp_path):
    data = bytes(range(256))
    header = {name: entry(name, (16, 16), 256 * i, 256 * i + 256) for i, name in enumerate(NARROW)}
    header |= {"F4": entry("F4", (8, 64), 1280, 1536), "F6_E2M3": entry("F6_E2M3", (8, 8), 1536, 1584)}
    header |= {"plain": entry("F32", (2,), 1584, 1592)}
    (tmp_path / "some.safetensors").write_bytes(safetensors(header, 6 * data + data[:48] + bytes(8)))
    with rocmkern.open_checkpoint(tmp_path) as checkpoint:
        for name, dtype in NARROW.items():
            there = checkpoint[name]
            assert (there.dtype, there.shape, there.format) == (np.dtype(dtype), (16, 16), None)
            assert there.to_numpy().tobytes() == data
        codes = np.stack([np.arange(256) & 15, np.arange(256) >> 4], axis=-1).astype(np.uint8)
        four = checkpoint["F4"]
        expected = codes.view(ml_dtypes.float4_e2m1fn).reshape(8, 64)
        assert (four.dtype, four.nbytes) == (expected.dtype, 512)
        np.testing.assert_array_equal(four.to_numpy().view(np.uint8), expected.view(np.uint8))
        np.testing.assert_array_equal(np.concatenate([*four.pieces()]), expected.reshape(-1))
        # What no dtype here is: its bytes.
        six = checkpoint["F6_E2M3"]
        assert (six.dtype, six.shape, six.format) == (np.uint8, (48,), "f6_e2m3")
        assert six.to_numpy().tobytes() == data[:48]
        np.testing.assert_array_equal(rocmkern.DeviceTensor.lazy(checkpoint["plain"]).to_numpy(), [0, 0])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (written.gguf(version=1), "version 1"),
        (written.gguf(version=3 << 24), "big-endian"),
        (written.gguf(counts=(1 << 60, 0)), "cannot have"),
        (written.gguf(counts=(0, 1 << 60)), "cannot have"),
        (written.gguf([pair("a", U32, b"1234")] * 2), "the key 'a' twice"),
        (written.gguf([pair("a", 77, b"1234")]), "'a' has values of type 77"),
        (written.gguf([pair("a", 7, b"\2")]), "neither 0 nor 1"),
        (written.gguf([pair("a", STRING, text(b"\xff"))]), "'a' has a text that is not UTF-8"),
        (written.gguf([pair("a", STRING, struct.pack("<Q", 1 << 40))]), "a at byte"),
        (written.gguf([pair("a", ARRAY, struct.pack("<IQ", U32, 1 << 61))]), "a' have"),
        (written.gguf([pair("a", ARRAY, struct.pack("<IQ", STRING, 1 << 20))]), "a at byte"),
        (written.gguf([pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "values of type 9"),
        (written.gguf([pair("\0", U32, b"1234")]), "cannot be printed"),
        (written.gguf([pair(b"\xff", U32, b"1234")]), "is not UTF-8"),
        (written.gguf([pair("general.alignment", U32, b"\3\0\0\0")]), "not a power of two"),
        (written.gguf([pair("general.alignment", STRING, text("x"))]), "not a power of two"),
        (written.gguf([pair("split.count", STRING, text("x"))]), "one of 'x' files"),
        (written.gguf([], [tensor("t", [8])] * 2, bytes(64)), "the tensor 't' twice"),
        (written.gguf([], [tensor("t", [])], bytes(64)), "0 axes"),
        (written.gguf([], [tensor("t", [1] * 5)], bytes(64)), "5 axes"),
        (written.gguf([], [tensor("t", [8], kind=5)], bytes(64)), "of type 5"),
        (written.gguf([], [tensor("t", [8], kind=12)], bytes(64)), "q4_k has blocks of 256"),
        (written.gguf([], [tensor("t", [8], offset=8)], bytes(64)), "no multiple of 32"),
        (written.gguf([], [tensor("t", [17])], bytes(64)), "the data of 't' ends"),
        (written.gguf([], [tensor("t", [8], offset=1 << 60)], bytes(64)), "the data of 't' ends"),
        (written.gguf([], [tensor("t", [1 << 32, 1 << 31])], bytes(64)), "beyond what an array can have"),
        (written.gguf([], [tensor("a", [16]), tensor("b", [8], offset=32)], bytes(64)), "'a' and of 'b' overlap"),
    ],
)  # fmt: skip
def test_headers_of_gguf(refused, file, message):
    assert message in refused("some.gguf", file)


def test_values_of_gguf(tmp_path):
    values = [
        pair("byte", 0, b"\xff"), pair("small", 1, b"\xff"), pair("bool", 7, b"\1"),
        pair("text", STRING, text("\u00e4")),
        pair("long", 11, struct.pack("<q", -5)), pair("double", 12, struct.pack("<d", 0.5)),
        pair("truths", ARRAY, struct.pack("<IQ", 7, 3) + b"\0\1\1"), pair("none", ARRAY, struct.pack("<IQ", STRING, 0)),
        pair("texts", ARRAY, struct.pack("<IQ", STRING, 2) + text("") + text("x" * 70)),
        pair("numbers", ARRAY, struct.pack("<IQ3f", 6, 3, 0.5, 1, 2)),
        pair("general.alignment", U32, struct.pack("<I", 64)),
    ]  # fmt: skip
    file = written.gguf(
        values, [tensor("t", [2, 3], offset=64)], bytes(64) + np.arange(6.0, dtype="<f4").tobytes(), 2, alignment=64
    )
    (tmp_path / "some.gguf").write_bytes(file)
    with rocmkern.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.metadata == {
            "byte": 255, "small": -1, "bool": True, "text": "\u00e4", "long": -5, "double": 0.5,
            "truths": [False, True, True], "none": [], "texts": ["", "x" * 70], "numbers": [0.5, 1.0, 2.0],
            "general.alignment": 64,
        }  # fmt: skip
        np.testing.assert_array_equal(checkpoint["t"].to_numpy(), np.arange(6.0).reshape(3, 2))


def test_types_of_ggml_are_those_of_its_own_library():
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")
    theirs = {kind.value: (kind.name.lower(), *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    # Products of activations, which are never in a file; of those the library has another size than ggml.
    theirs.pop(gguf.GGMLQuantizationType.Q8_1.value)
    ours = {number: kind[:3] for number, kind in KINDS.items()}
    assert {number: ours.get(number) for number in theirs} == theirs


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>" * 9, "HTML page"),
        (b"\n<HTML>nothing</HTML>" * 9, "HTML page"),
        (b"PK\x03\x04" + bytes(400), "ZIP archive"),
        (b"\x80\x02}q\x00." + bytes(400), "pickle"),
        *((bytes([0x80, protocol]) + bytes(400), "pickle") for protocol in (3, 4, 5)),
        (b"\x89HDF\r\n\x1a\n" + bytes(400), "HDF5"),
        *((magic + bytes(400), "GGML file of before GGUF") for magic in (b"tjgg", b"fmgg", b"lmgg")),
        (b"\x1f\x8b\x08" + bytes(400), "gzip"),
        (b"", "empty"),
    ],
)
def test_what_a_file_is_instead_is_said(refused, tmp_path, data, words):
    for name in ("model.safetensors", "model.gguf"):
        assert words in refused(name, data)
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(ArgumentError, match=words):
        rocmkern.open_checkpoint(tmp_path / "model.bin")


@pytest.mark.parametrize("protocol", [1, 6])
def test_what_no_pickle_begins_with_is_not_called_one(refused, protocol):
    assert "pickle" not in refused("model.safetensors", bytes([0x80, protocol]) + bytes(400))


def test_a_header_may_have_a_length_that_looks_like_something_else(tmp_path):
    """640 are the bytes 80 02, with which a pickle begins, and 35615 are those of gzip."""
    for length in (640, 35615):
        data = safetensors(json.dumps({"a": entry()}).encode().ljust(length), b"12")
        (tmp_path / "model.safetensors").write_bytes(data)
        with rocmkern.open_checkpoint(tmp_path) as checkpoint:
            assert list(checkpoint) == ["a"]


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_what_is_no_file_is_not_waited_for(tmp_path, monkeypatch, name):
    path = tmp_path / name

    def message():
        with pytest.raises(CheckpointError, match=name) as caught:
            rocmkern.open_checkpoint(path)
        return str(caught.value)

    os.mkfifo(path)
    assert "is a FIFO" in message()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # the name of a socket is short
        listening.bind(name)
        assert "it is a socket" in message()
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "is a device" in message()
    path.unlink()
    path.symlink_to(path)
    assert "symbolic links" in message()
    path.unlink()
    path.write_bytes(safetensors({"a": entry()}, b"12"))
    path.chmod(0)
    if os.geteuid():
        assert "Permission denied" in message()
    path.unlink()
    path.mkdir()
    (path / "inner").mkdir()
    with pytest.raises(ArgumentError, match="no such file"):
        rocmkern.open_checkpoint(path)


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


LARGE = 1 << 20


@pytest.fixture(params=["safetensors", "gguf"])
def large(request, tmp_path):
    """A file with a tensor of 1 MiB, and its path."""
    data = np.arange(LARGE // 4, dtype="<u4").tobytes()
    if request.param == "gguf":
        file = written.gguf([], [tensor("t", [LARGE], kind=24)], data)
    else:
        file = safetensors({"t": entry(shape=(LARGE,), end=LARGE)}, data)
    path = tmp_path / f"model.{request.param}"
    path.write_bytes(file)
    return path, data


@pytest.mark.parametrize("size", [0, 100, LARGE // 2, LARGE])
def test_a_file_that_is_cut_while_it_is_open(large, size):
    path, _ = large
    with rocmkern.open_checkpoint(path) as checkpoint:
        there, lazy = checkpoint["t"], rocmkern.DeviceTensor.lazy(checkpoint["t"])
    os.truncate(path, size)
    for read in (there.to_numpy, lambda: [*there.pieces()], lazy.to_numpy):
        with pytest.raises(CheckpointError, match=rf"{path.name} was cut since it was opened: 't'"):
            read()
    assert not lazy.loaded


def test_a_file_that_is_written_while_it_is_open(large):
    path, _ = large
    there = rocmkern.open_checkpoint(path)["t"]
    with path.open("r+b") as file:
        file.seek(LARGE // 2)
        file.write(b"other")
    os.utime(path, ns=(0, 0))
    with pytest.raises(CheckpointError, match=rf"{path.name} was written since"):
        there.to_numpy()


def test_a_file_that_is_replaced_while_it_is_open_is_read_as_it_was(large):
    path, data = large
    there = rocmkern.open_checkpoint(path)["t"]
    (path.parent / "new").write_bytes(b"new")
    os.replace(path.parent / "new", path)
    assert there.to_numpy().tobytes() == data


def test_files_are_closed_with_the_last_tensor(large):
    def is_open():
        names = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
        return any(os.path.exists(name) and os.path.samefile(name, path) for name in names)

    path, data = large
    with rocmkern.open_checkpoint(path) as checkpoint:
        there = checkpoint["t"]
    assert is_open() and there.to_numpy().tobytes() == data
    del there
    assert not is_open()
    path.write_bytes(b"GGUF" if path.suffix == ".gguf" else b"{")
    for _ in range(3):
        with pytest.raises(CheckpointError):
            rocmkern.open_checkpoint(path)
    assert not is_open()


def test_opening_takes_memory_for_the_header_alone(tmp_path):
    size = 1 << 32
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors({"t": entry("F32", (size // 4,), end=size)}))
    os.truncate(path, path.stat().st_size + size)
    tracemalloc.start()
    try:
        with rocmkern.open_checkpoint(path) as checkpoint:
            assert next(iter(checkpoint["t"].pieces())).nbytes == 16 << 20
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
