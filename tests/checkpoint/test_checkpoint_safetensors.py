"""Headers of safetensors files: tensors as they were written, limits as they are named, damage as an error."""

from __future__ import annotations

import json
import math
import random

import ml_dtypes
import numpy as np
import pytest
from written import entry, refusal, safetensors

import rocmkern
from rocmkern.runtime.errors import CheckpointError


def opened(path, data):
    path.write_bytes(data)
    return rocmkern.open_checkpoint(path)


TWO = {"a": entry(), "b": entry(begin=2, end=4)}
#: Bytes before the data of a header of one or two tensors.
ONE_AT, TWO_AT = 8 + len(json.dumps({"a": entry()})), 8 + len(json.dumps(TWO))
SHAPE_AT = json.dumps({"a": entry()}).index("[")
#: What the message of a damaged header says: what has which bytes at which byte, and what is wanted there.
DAMAGED = " has a damaged header: {} has {} at byte {}, not {}"
AN_ARRAY = "an array of at most 32 whole numbers that are not negative"


def damaged_shape(got, at=SHAPE_AT):
    return DAMAGED.format("the entry of 'a'", repr(got), at, AN_ARRAY)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (TWO, b"123", f" is incomplete: the data of 'b' ends at byte {TWO_AT + 4}, and the file at {TWO_AT + 3}"),
        (TWO, b"12345", " has 1 bytes behind the data of its last tensor"),
        ({"a": entry(), "b": entry(begin=3, end=5)}, b"12345",
         f" has a gap before the data of 'b', at byte {TWO_AT + 3}"),
        ({"a": entry(begin=1, end=3)}, b"123", f" has a gap before the data of 'a', at byte {ONE_AT + 1}"),
        ({"a": entry(), "b": entry(begin=1, end=3)}, b"123",
         f" has other data where the data of 'b', at byte {TWO_AT + 1}"),
        ({"a": entry(shape=(3,))}, b"12", ": 'a' of dtype U8 and shape [3] cannot have 2 bytes"),
        ({"a": entry(shape=(1,))}, b"12", ": 'a' of dtype U8 and shape [1] cannot have 2 bytes"),
        ({"a": entry("F4", (3,))}, b"12", ": 'a' of dtype F4 and shape [3] cannot have 2 bytes"),
        ({"a": entry("F4", (5,))}, b"12", ": 'a' of dtype F4 and shape [5] cannot have 2 bytes"),
        ({"a": entry(shape=(-2,))}, b"12", damaged_shape(b'[-2], "data_offsets":')),
        ({"a": entry(shape=(2.0,))}, b"12", damaged_shape(b'[2.0], "data_offsets"')),
        ({"a": entry(shape=(True,))}, b"12", damaged_shape(b'[true], "data_offsets')),
        ({"a": entry(shape=(1,) * 33)}, b"1", damaged_shape(b"[1, 1, 1, 1, 1, 1, 1,")),
        ({"a": entry(shape=(1 << 62, 1 << 62, 0), end=0)}, b"",
         f": 'a' has shape [{1 << 62}, {1 << 62}, 0], beyond what an array can have"),
        ({"a": entry(shape=(10**20 - 1,))}, b"12", f": 'a' has shape [{10**20 - 1}], beyond what an array can have"),
        ({"a": entry(shape=(10**20,))}, b"12", damaged_shape(b"[10000000000000000000")),
        ({"a": entry("I64", shape=[10**19] * 4)}, b"12",
         f": 'a' has shape {str([10**19] * 4)[:80]}..., beyond what an array can have"),
        ({"a": entry(begin=2, end=0)}, b"12", ": the entry of 'a' has data_offsets [2, 0], not a begin and an end"),
        ({"a": {"dtype": "U8", "shape": [2]}}, b"12", ": the entry of 'a' has no data_offsets"),
        ({"a": {"dtype": "U8", "data_offsets": [0, 2]}}, b"12", ": the entry of 'a' has no shape"),
        ({"a": {"shape": [2], "data_offsets": [0, 2]}}, b"12", ": the entry of 'a' has no dtype"),
        ({"a": entry() | {"more": 1}}, b"12", ": the entry of 'a' has an unknown key 'more'"),
        ({"a": {**entry(), "data_offsets": [0, 1, 2]}}, b"12",
         ": the entry of 'a' has data_offsets [0, 1, 2], not a begin and an end"),
        ({"a": {**entry(), "data_offsets": [0]}}, b"12",
         ": the entry of 'a' has data_offsets [0], not a begin and an end"),
        ({"": entry()}, b"12", ": the name of a tensor is empty"),
        ({"a": entry("")}, b"12", ": the dtype of 'a' is empty"),
        ({"a\0b": entry()}, b"12", r": the name of a tensor 'a\x00b' has characters that cannot be printed"),
        ({"\x1b[2J": entry()}, b"12", r": the name of a tensor '\x1b[2J' has characters that cannot be printed"),
        ({"x" * 1025: entry()}, b"12",
         f": the name of a tensor '{'x' * 79}... has 1025 bytes; at most 1024 are allowed"),
        ({"__metadata__": {"a": 1}}, b"", DAMAGED.format("a value of __metadata__", "b'1}}'", 23, "a string")),
        ({"__metadata__": []}, b"", DAMAGED.format("__metadata__", "b'[]}'", 17, "{")),
        ([], b"", DAMAGED.format("the header", "b'[]'", 0, "{")),
        (b'{"a":1,"a":1}', b"", DAMAGED.format("the entry of 'a'", """b'1,"a":1}'""", 5, "{")),
        (b'{"a" {}}', b"", DAMAGED.format("the header", "b'{}}'", 5, ":")),
        (b'{"a":{"shape":[] "dtype":""}}', b"",
         DAMAGED.format("the entry of 'a'", """b'"dtype":""}}'""", 17, ",")),
        (b'{"__metadata__":{"k":"v","k":"v"}}', b"", ": __metadata__ has 'k' twice"),
        (b"{" + json.dumps(TWO).encode()[1:-1] + b"," + json.dumps(TWO).encode()[1:], b"1234",
         ": the header has 'a' twice"),
        (b'{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"12",
         ": the entry of 'a' has 'dtype' twice"),
        (b'{"a":{"dtype":"U8","shape":[02],"data_offsets":[0,2]}}', b"12",
         damaged_shape(b'[02],"data_offsets":[', 27)),
        (b'{"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"12",
         r": the name of a tensor '\ud800' is not UTF-8"),
        (b'{"\xff":{}}', b"", r""": the header has a damaged string b'"\xff"'"""),
        (b'{"\\x":{}}', b"", r""": the header has a damaged string b'"\\x"'"""),
        (b'{"a\nb":{}}', b"", r""": the header has a damaged string b'"a\nb"'"""),
        (b'{"a\\":{}}', b"", DAMAGED.format("the header", r"""b'"a\\":{}}'""", 1, "a string")),
        (b'{"' + b"\\a" * 10**6 + b'":{}}', b"",
         ": the header has a damaged string " + ("b'\"" + r"\\a" * 26)[:80] + "..."),
        (b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(131073)) + b"}}", b"",
         ": __metadata__ has more than 131072 keys"),
        (b"{} x", b"", DAMAGED.format("the header", "b'x'", 3, "its end")),
        (b"{" + bytes(30), b"", DAMAGED.format("the header", (r"b'" + r"\x00" * 10)[:40] + "...", 1, "a string")),
        (b"{", b"", DAMAGED.format("the header", "b''", 1, "a string")),
        (b"", b"", " is not a safetensors file: it is too short"),
        (b'{"a":' + b"[" * 100_000, b"", DAMAGED.format("the entry of 'a'", f"b'{'[' * 21}'", 5, "{")),
        (b'{"a":{"shape":' + b"[" * 100_000, b"", damaged_shape(b"[" * 21, 14)),
        (b'{"a":{"shape":[' + b"1," * 100_000, b"", damaged_shape(b"[" + b"1," * 10, 14)),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_header_is_said(tmp_path, header, data, message):
    assert refusal(tmp_path / "some.safetensors", safetensors(header, data)) == "some.safetensors" + message


@pytest.mark.parametrize("length", [3, 40, 1 << 20, 99_999_999, 100_000_000, 100_000_001, 1 << 40, (1 << 64) - 1])
def test_lengths_of_headers(tmp_path, length):
    message = refusal(tmp_path / "some.safetensors", safetensors({"a": entry()}, b"12", length))
    if length > 100_000_000:
        assert message == (
            f"some.safetensors is not a safetensors file: a header of {length} bytes; at most 100000000 are allowed"
        )
    elif length > ONE_AT:
        assert message == (
            f"some.safetensors is incomplete, or not a safetensors file: its header ends at byte {8 + length}, the "
            f"file at {ONE_AT + 2}"
        )
    else:
        assert "damaged header" in message


@pytest.mark.parametrize("header", [b"{}", b'{"__metadata__":{}}', b" { } "])
def test_a_file_without_tensors(tmp_path, header):
    assert len(opened(tmp_path / "some.safetensors", safetensors(header))) == 0


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


@pytest.mark.parametrize(("axes", "fits"), [(0, True), (1, True), (32, True), (33, False)])
def test_axes_of_safetensors(tmp_path, axes, fits):
    data = safetensors({"a": entry(shape=[1] * axes, end=1)}, b"1")
    if fits:
        with opened(tmp_path / "a.safetensors", data) as checkpoint:
            assert checkpoint["a"].shape == (1,) * axes
    else:
        with pytest.raises(CheckpointError, match="an array of at most 32 whole numbers"):
            opened(tmp_path / "a.safetensors", data)


def test_tensors_of_safetensors(tmp_path):
    entries = b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % number for number in range(1 << 17))
    with opened(tmp_path / "a.safetensors", safetensors(b"{" + entries + b"}")) as checkpoint:
        assert len(checkpoint) == 1 << 17


DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "U32": "u4", "I32": "i4", "U64": "u8", "I64": "i8",
    "F16": "f2", "BF16": ml_dtypes.bfloat16, "F32": "f4", "F64": "f8", "C64": "c8", **NARROW,
}  # fmt: skip
NAME = 'a.0_"\\/\u00e4\u20ac\U0001f600 '
TEXT = NAME + "\n\0\t\ud800"


@pytest.mark.parametrize("seed", range(30))
def test_tensors_are_what_the_header_says(tmp_path, seed):
    """Of any names, dtypes and shapes, in any order, in JSON with any escapes and spaces."""
    rng = random.Random(seed)

    def text(letters):
        return "".join(rng.choices(letters, k=rng.randint(1, 6)))

    def spaced(*marks):
        return "".join(rng.choice(["", " ", "\n\t", "\r \n"]) + mark for mark in marks)

    def an_object(pairs):
        rng.shuffle(pairs)
        literals = [
            (json.dumps(key, ensure_ascii=rng.random() < 0.5 or "\ud800" in key), value) for key, value in pairs
        ]
        return spaced("{") + spaced(",").join(spaced(key, ":", value) for key, value in literals) + spaced("}")

    tensors, end = {}, 0
    for name in {text(NAME) for _ in range(rng.randint(0, 5))}:
        kind, shape = rng.choice(list(DTYPES)), rng.choices(range(4), k=rng.randint(0, 4))
        begin, end = end, end + math.prod(shape) * np.dtype(DTYPES[kind]).itemsize
        tensors[name] = (kind, shape, begin, end)
    content = bytes(rng.choices(range(2), k=end))
    entries = [
        (name, an_object([(key, json.dumps(value)) for key, value in entry(*stated).items()]))
        for name, stated in tensors.items()
    ]
    if rng.random() < 0.5:
        entries.append(("__metadata__", an_object([(text(TEXT) + str(n), json.dumps(text(TEXT))) for n in range(3)])))
    header = spaced(an_object(entries), "").encode()
    with opened(tmp_path / "some.safetensors", safetensors(header, content)) as checkpoint:
        assert set(checkpoint) == set(tensors)
        for name, (kind, shape, begin, end) in tensors.items():
            there = checkpoint[name]
            assert (there.name, there.dtype, there.shape) == (name, np.dtype(DTYPES[kind]), tuple(shape))
            assert there.format is None and there.to_numpy().tobytes() == content[begin:end]
        begins = [tensors[name][2] for name in checkpoint]
        assert begins == sorted(begins)  # in the order of their data
