"""Headers of GGUF files: values and tensors as they were written, limits as they are named, damage as an error."""

from __future__ import annotations

import os
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import gguf, pair, refusal, tensor, text

import rocmkern
from rocmkern.checkpoint.gguf import KINDS, _Header
from rocmkern.runtime.errors import CheckpointError

U32, STRING, ARRAY = 4, 8, 9
UINT8 = 0


def opened(path, data):
    path.write_bytes(data)
    return rocmkern.open_checkpoint(path)


HEAD = 24


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"GGUF" + bytes(19), ": its head at byte 0 has 24 bytes more, and the file ends at 23"),
        (gguf(version=0), " has version 0 of GGUF; 2 and 3 are read"),
        (gguf(version=1), " has version 1 of GGUF; 2 and 3 are read"),
        (gguf(version=4), " has version 4 of GGUF; 2 and 3 are read"),
        (gguf(version=0x8000), " has version 32768 of GGUF; 2 and 3 are read"),
        (gguf(version=1 << 16), " has version 65536 of GGUF; it is big-endian: convert it with gguf-convert-endian"),
        (gguf(version=3 << 24), " has version 50331648 of GGUF; it is big-endian: convert it with gguf-convert-endian"),
        (gguf(counts=(1 << 60, 0)), f" is damaged: it cannot have {1 << 60} tensors and 0 pairs"),
        (gguf(counts=(0, 1 << 60)), f" is damaged: it cannot have 0 tensors and {1 << 60} pairs"),
        (gguf([pair("a", U32, b"1234")] * 2), " has the key 'a' twice"),
        (gguf([pair("a", 77, b"1234")]), ": 'a' has values of type 77, which are not read here"),
        (gguf([pair("a", 13, b"1234")]), ": 'a' has values of type 13, which are not read here"),
        (gguf([pair("a", 7, b"\2")]), ": 'a' has a truth value that is neither 0 nor 1"),
        (gguf([pair("a", STRING, text(b"\xff"))]), ": 'a' has a text that is not UTF-8"),
        (gguf([pair("a", STRING, struct.pack("<Q", 1 << 40))]),
         f": a at byte {HEAD + 9 + 4 + 8} has {1 << 40} bytes more, and the file ends at 64"),
        (gguf([pair("a", ARRAY, struct.pack("<IQ", U32, 1 << 61))]),
         f" is damaged: arrays up to 'a' have {1 << 61} elements; at most {1 << 22} are read"),
        (gguf([pair("a", ARRAY, struct.pack("<IQ", U32, 4))]),
         f": a at byte {HEAD + 9 + 4 + 12} has 16 bytes more, and the file ends at 64"),
        (gguf([pair("a", ARRAY, struct.pack("<IQ", STRING, 1 << 20))]),
         f": a at byte {HEAD + 9 + 4 + 12 + 8} has 8 bytes more, and the file ends at 64"),
        (gguf([pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1))]), ": 'a' has values of type 9, which are not read here"),
        (gguf([pair("\0", U32, b"1234")]), r": a key '\x00' has characters that cannot be printed"),
        (gguf([pair(b"\xff", U32, b"1234")]), r": a key b'\xff' is not UTF-8"),
        (gguf([pair("general.alignment", U32, b"\3\0\0\0")]), ": general.alignment is 3, not a power of two"),
        (gguf([pair("general.alignment", U32, b"\0\0\0\0")]), ": general.alignment is 0, not a power of two"),
        (gguf([pair("general.alignment", 5, b"\xff\xff\xff\xff")]), ": general.alignment is -1, not a power of two"),
        (gguf([pair("general.alignment", STRING, text("x"))]), ": general.alignment is 'x', not a power of two"),
        (gguf([pair("split.count", U32, b"\2\0\0\0")]),
         " is one of 2 files of a model: merge them with gguf-split --merge"),
        (gguf([pair("split.count", STRING, text("x"))]),
         " is one of 'x' files of a model: merge them with gguf-split --merge"),
        (gguf([], [tensor("t", [8])] * 2, bytes(64)), " has the tensor 't' twice"),
        (gguf([], [tensor("", [8])], bytes(64)), ": the name of a tensor is empty"),
        (gguf([], [tensor("t", [])], bytes(64)), ": the tensor 't' has 0 axes; 1 to 4 are allowed"),
        (gguf([], [tensor("t", [1] * 5)], bytes(64)), ": the tensor 't' has 5 axes; 1 to 4 are allowed"),
        (gguf([], [tensor("t", [1] * 4)[:-20]]),
         f": the tensor 't' at byte {HEAD + 9 + 4} has 32 bytes more, and the file ends at 64"),
        (gguf([], [tensor("t", [1] * 4)[:-1]], alignment=1),
         f": the tensor 't' at byte {HEAD + 9 + 4 + 32} has 12 bytes more, and the file ends at {HEAD + 9 + 4 + 43}"),
        (gguf([], [tensor("t", [8], kind=5)], bytes(64)),
         ": the tensor 't' is of type 5, which is not known here: quantize the model again"),
        (gguf([], [tensor("t", [8], kind=12)], bytes(64)),
         ": the tensor 't' has rows of 8 elements; q4_k has blocks of 256"),
        (gguf([], [tensor("t", [255, 256], kind=12)], bytes(64)),
         ": the tensor 't' has rows of 255 elements; q4_k has blocks of 256"),
        (gguf([], [tensor("t", [8], offset=8)], bytes(64)), ": the offset of 't' is 8, no multiple of 32"),
        (gguf([], [tensor("t", [17])], bytes(64)),
         " is incomplete: the data of 't' ends at byte 132, and the file at 128"),
        (gguf([], [tensor("t", [8], offset=1 << 60)], bytes(64)),
         f" is incomplete: the data of 't' ends at byte {64 + (1 << 60) + 32}, and the file at 128"),
        (gguf([], [tensor("t", [1 << 32, 1 << 31])], bytes(64)),
         f": the tensor 't' has the extents [{1 << 32}, {1 << 31}], beyond what an array can have"),
        (gguf([], [tensor("a", [16]), tensor("b", [8], offset=32)], bytes(64)), ": the data of 'a' and of 'b' overlap"),
        (gguf([], [tensor("b", [8], offset=32), tensor("a", [9])], bytes(64)), ": the data of 'a' and of 'b' overlap"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_header_is_said(tmp_path, file, message):
    got = refusal(tmp_path / "some.gguf", file)
    assert got.replace(" is incomplete or damaged:", ":") == "some.gguf" + message


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
    file = gguf(
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


#: Bytes of a block by its parts: scales and minima, high bits, codes, signs.
BLOCKS = {
    2: ("q4_0", 32, 2 + 16), 3: ("q4_1", 32, 4 + 16), 6: ("q5_0", 32, 2 + 4 + 16), 7: ("q5_1", 32, 4 + 4 + 16),
    8: ("q8_0", 32, 2 + 32), 10: ("q2_k", 256, 16 + 64 + 4), 11: ("q3_k", 256, 32 + 64 + 12 + 2),
    12: ("q4_k", 256, 4 + 12 + 128), 13: ("q5_k", 256, 4 + 12 + 32 + 128), 14: ("q6_k", 256, 128 + 64 + 16 + 2),
    15: ("q8_k", 256, 4 + 256 + 32), 16: ("iq2_xxs", 256, 2 + 64), 17: ("iq2_xs", 256, 2 + 64 + 8),
    18: ("iq3_xxs", 256, 2 + 64 + 32), 19: ("iq1_s", 256, 2 + 32 + 16), 20: ("iq4_nl", 32, 2 + 16),
    21: ("iq3_s", 256, 2 + 64 + 8 + 32 + 4), 22: ("iq2_s", 256, 2 + 64 + 8 + 8), 23: ("iq4_xs", 256, 2 + 2 + 4 + 128),
    29: ("iq1_m", 256, 32 + 16 + 8), 34: ("tq1_0", 256, 48 + 4 + 2), 35: ("tq2_0", 256, 64 + 2),
    39: ("mxfp4", 32, 1 + 16), 40: ("nvfp4", 64, 4 + 32), 41: ("q1_0", 128, 2 + 16),
}  # fmt: skip


def test_blocks_are_as_large_as_their_parts():
    assert {number: kind[:3] for number, kind in KINDS.items() if kind.dtype is None} == BLOCKS


def test_numbers_in_files_have_their_dtypes():
    found = {number: (kind.elements, kind.nbytes, np.dtype(kind.dtype)) for number, kind in KINDS.items() if kind.dtype}
    assert found == {number: (1, np.dtype(dtype).itemsize, np.dtype(dtype)) for number, dtype in PLAIN.items()}


def test_types_of_ggml_are_those_of_its_own_library():
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")
    theirs = {kind.value: (kind.name.lower(), *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    # Products of activations, which are never in a file; of those the library has another size than ggml.
    theirs.pop(gguf.GGMLQuantizationType.Q8_1.value)
    ours = {number: kind[:3] for number, kind in KINDS.items()}
    assert {number: ours.get(number) for number in theirs} == theirs


@pytest.mark.parametrize(("axes", "fits"), [(1, True), (4, True), (5, False), (0, False)])
def test_axes_of_gguf(tmp_path, axes, fits):
    data = gguf(tensors=[tensor("a", [1] * axes)], data=bytes(4))
    if fits:
        with opened(tmp_path / "a.gguf", data) as checkpoint:
            assert checkpoint["a"].shape == (1,) * axes
    else:
        with pytest.raises(CheckpointError, match=f"has {axes} axes; 1 to 4 are allowed"):
            opened(tmp_path / "a.gguf", data)


def test_elements_of_the_arrays_of_gguf(tmp_path):
    """All of them together; a vocabulary and its merges have some hundred thousand."""

    def array(key, count):
        return pair(key, ARRAY, struct.pack("<IQ", UINT8, count) + bytes(count))

    half = 1 << 21
    with opened(tmp_path / "a.gguf", gguf(pairs=[array("a", half), array("b", half)])) as checkpoint:
        assert all(len(np.asarray(checkpoint.metadata[name])) == half for name in "ab")
    with pytest.raises(CheckpointError, match="4194304 are read"):
        opened(tmp_path / "b.gguf", gguf(pairs=[array("a", half), array("b", half + 1)]))


def test_many_tensors_of_gguf(tmp_path):
    tensors = [tensor(f"{n:06}", [1], 24, 32 * n) for n in range(1000)]
    with opened(tmp_path / "a.gguf", gguf(tensors=tensors, data=bytes(32 * 1000))) as checkpoint:
        assert len(checkpoint) == 1000


@pytest.mark.parametrize("counts", [(1 << 17, 0), (0, 1 << 17)])
def test_tensors_and_pairs_that_a_file_may_have(tmp_path, counts):
    """What is beyond the limit is refused before it is looked for: the names of these would be empty."""
    path = tmp_path / "a.gguf"
    for more, words in ((0, "is empty"), (1, "cannot have")):
        given = tuple(n + more * (n > 0) for n in counts)
        path.write_bytes(gguf(counts=given))
        os.truncate(path, 8 << 20)
        with pytest.raises(CheckpointError, match=words):
            rocmkern.open_checkpoint(path)


@pytest.mark.parametrize(("counts", "least"), [((4, 0), 96), ((0, 5), 65), ((2, 2), 74)])
def test_numbers_are_believed_no_further_than_a_file_is_long(tmp_path, counts, least):
    """A tensor has 24 bytes at least, and a pair 13."""
    head = gguf(counts=counts)
    assert "cannot have" not in refusal(tmp_path / "a.gguf", head[:24] + bytes(least - 24))
    assert "cannot have" in refusal(tmp_path / "a.gguf", head[:24] + bytes(least - 25))


def test_bytes_of_a_header(tmp_path):
    """In a file that is no longer, its own end is the limit."""
    most, path = 100_000_000, tmp_path / "a.gguf"
    for more, limit in ((0, "the file"), (1, "what a header may have")):
        path.write_bytes(gguf([pair("a", STRING, struct.pack("<Q", most))]))
        os.truncate(path, most + more)
        with pytest.raises(CheckpointError, match=f"{most} bytes more, and {limit} ends at {most}$"):
            rocmkern.open_checkpoint(path)


def test_a_header_may_end_with_its_file(tmp_path):
    with opened(tmp_path / "a.gguf", gguf([pair("a", STRING, text("xyz"))], alignment=1)) as checkpoint:
        assert checkpoint.metadata == {"a": "xyz"} and not len(checkpoint)


#: By the number of a type: how `struct` calls it, and the least and the greatest value (of floats, exact ones).
NUMBERS = {
    0: ("B", 0, 255), 1: ("b", -128, 127), 2: ("H", 0, 65535), 3: ("h", -(1 << 15), (1 << 15) - 1),
    4: ("I", 0, (1 << 32) - 1), 5: ("i", -(1 << 31), (1 << 31) - 1), 6: ("f", -0.15625, 2.0**127),
    7: ("?", False, True), 10: ("Q", 0, (1 << 64) - 1),
    11: ("q", -(1 << 63), (1 << 63) - 1), 12: ("d", -0.1, 2.0**1000),
}  # fmt: skip


def test_numbers_of_all_types(tmp_path):
    pairs = []
    for kind, (code, least, greatest) in NUMBERS.items():
        pairs += [pair(f"least.{kind}", kind, struct.pack(f"<{code}", least))]
        pairs += [pair(f"both.{kind}", ARRAY, struct.pack(f"<IQ2{code}", kind, 2, least, greatest))]
    metadata = opened(tmp_path / "a.gguf", gguf(pairs)).metadata
    assert len(metadata) == 2 * len(NUMBERS)
    for kind, (_, least, greatest) in NUMBERS.items():
        got = [metadata[f"least.{kind}"], *metadata[f"both.{kind}"]]
        assert got == [least, least, greatest] and {type(x) for x in got} == {type(least)}


@pytest.mark.parametrize("window", [1, 7, 24, 1 << 20])
def test_a_header_is_read_by_windows(tmp_path, monkeypatch, window):
    monkeypatch.setattr(_Header, "WINDOW", window)
    pairs = [pair("a", STRING, text("x" * 50)), pair("b", ARRAY, struct.pack("<IQ3h", 3, 3, 1, -2, 3))]
    with opened(tmp_path / "a.gguf", gguf(pairs, [tensor("t", [2, 3])], bytes(range(24)))) as checkpoint:
        assert checkpoint.metadata == {"a": "x" * 50, "b": [1, -2, 3]}
        assert checkpoint["t"].to_numpy().tobytes() == bytes(range(24))


#: Numbers of the types that have a dtype.
PLAIN = {0: "f4", 1: "f2", 24: "i1", 25: "i2", 26: "i4", 27: "i8", 28: "f8", 30: ml_dtypes.bfloat16}


@given(st.data(), st.sampled_from([1, 8, 32, 64]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_tensors_lie_where_the_header_says(tmp_path_factory, data, alignment):
    """Of any types, anywhere, with or without room between them; where two share a byte, it is an error."""
    header, taken = [], np.zeros(4096, int)
    content = np.random.default_rng(0).integers(0, 256, taken.size + 8, np.uint8)
    content[3::4] &= 63  # no NaN
    expected = {}
    for number in range(data.draw(st.integers(1, 4))):
        kind = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
        extents = [kind.elements * data.draw(st.integers(0, 2)), *data.draw(st.lists(st.integers(0, 3), max_size=3))]
        offset = alignment * data.draw(st.integers(0, 256 // alignment))
        code = next(code for code, other in KINDS.items() if other is kind)
        header.append(tensor(f"t{number}", extents, code, offset))
        nbytes = int(np.prod(extents)) // kind.elements * kind.nbytes
        taken[offset : offset + nbytes] += 1
        expected[f"t{number}"] = (code, extents[::-1], offset, nbytes)
    pairs = [pair("general.alignment", U32, struct.pack("<I", alignment))]
    end = max(offset + nbytes for _, _, offset, nbytes in expected.values())
    path = tmp_path_factory.mktemp("gguf") / "some.gguf"
    path.write_bytes(gguf(pairs, header, content[:end].tobytes(), alignment=alignment))
    if taken.max() > 1:
        with pytest.raises(CheckpointError, match="overlap"):
            rocmkern.open_checkpoint(path)
        return
    with rocmkern.open_checkpoint(path) as checkpoint:
        assert list(checkpoint) == list(expected)
        for name, (code, shape, offset, nbytes) in expected.items():
            there, array = checkpoint[name], checkpoint[name].to_numpy()
            assert array.tobytes() == content[offset : offset + nbytes].tobytes()
            assert (array.dtype, array.shape) == (there.dtype, there.shape)
            if code in PLAIN:
                assert (there.dtype, there.shape, there.format) == (np.dtype(PLAIN[code]), tuple(shape), None)
            else:
                assert (there.dtype, there.shape[:-1], there.format) == (np.uint8, tuple(shape[:-1]), KINDS[code].name)
                assert there.shape[-1] == shape[-1] // KINDS[code].elements * KINDS[code].nbytes


@pytest.mark.parametrize(("sizes", "apart"), [((32, 9), True), ((33, 1), False), ((40, 1), False), ((96, 1), False)])
def test_data_ends_before_other_data_begins(tmp_path, sizes, apart):
    first, second = sizes
    data = gguf(
        [], [tensor("b", [second], 24, 64), tensor("none", [0], 24, 32), tensor("a", [first], 24, 32)], bytes(128)
    )
    if apart:
        assert len(opened(tmp_path / "a.gguf", data)) == 3
    else:
        assert refusal(tmp_path / "a.gguf", data) == "a.gguf: the data of 'a' and of 'b' overlap"
