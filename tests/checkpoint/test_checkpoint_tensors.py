"""What is read comes from the file, whatever the memory held that it is read into."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from written import entry, gguf, safetensors, tensor

import rocmkern
from rocmkern.checkpoint import tensors


def test_memory_that_held_something_else_is_written_all_over(tmp_path, monkeypatch):
    array = np.arange(6000, dtype=np.float32).reshape(60, 100)
    header = {"x": entry("F32", (60, 100), 0, 24000), "none": entry("F32", (0, 100), 24000, 24000)}
    (tmp_path / "model.safetensors").write_bytes(safetensors(header, array.tobytes()))
    empty = np.empty

    def used(*given, **options):
        made = empty(*given, **options)
        made.reshape(-1).view(np.uint8)[:] = 0xA5
        return made

    with rocmkern.open_checkpoint(tmp_path / "model.safetensors") as checkpoint:
        monkeypatch.setattr(np, "empty", used)
        np.testing.assert_array_equal(checkpoint["x"].to_numpy(), array)
        assert checkpoint["none"].to_numpy().shape == (0, 100)


@pytest.mark.parametrize(
    ("dtype", "elements", "piece_bytes", "sizes"),
    [
        ("F32", 5, 1, [1] * 5),
        ("F32", 5, 8, [2, 2, 1]),
        ("F32", 5, 11, [2, 2, 1]),
        ("F32", 5, 20, [5]),
        ("U8", 6, 3, [3, 3]),
        ("F64", 0, 64, [0]),
        ("F4", 6, 1, [2, 2, 2]),
        ("F4", 6, 5, [4, 2]),
        ("F4", 6, 6, [6]),
    ],
)
def test_data_comes_in_pieces(tmp_path, monkeypatch, dtype, elements, piece_bytes, sizes):
    """Whole elements, whole bytes of those of four bits, and of nothing one piece."""
    nbytes = {"F32": 4, "U8": 1, "F64": 8, "F4": 0.5}[dtype] * elements
    data = bytes(range(1, 1 + int(nbytes)))
    (tmp_path / "some.safetensors").write_bytes(safetensors({"t": entry(dtype, (elements,), 0, int(nbytes))}, data))
    monkeypatch.setattr(tensors, "PIECE_BYTES", piece_bytes)
    there = rocmkern.open_checkpoint(tmp_path / "some.safetensors")["t"]
    pieces = [*there.pieces()]
    assert [piece.size for piece in pieces] == sizes
    assert np.concatenate(pieces).tobytes() == there.to_numpy().tobytes()
    if dtype != "F4":
        assert there.to_numpy().tobytes() == data and there.nbytes == nbytes


@pytest.mark.parametrize("itemsize", [1, 2, 4, 18])
def test_what_an_array_can_have(itemsize):
    """Less than 2**63 bytes, axes without elements counted as one."""
    most = ((1 << 63) - 1) // itemsize
    for others in ((), (1,), (0,), (0, 1, 0)):
        assert not tensors.is_too_large((most, *others), itemsize)
        assert tensors.is_too_large((*others, most + 1), itemsize)
    assert not tensors.is_too_large((), itemsize)


def test_what_a_tensor_of_a_file_says(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(safetensors({"a": entry("BF16", (3, 2), 0, 12)}, bytes(12)))
    (tmp_path / "b.gguf").write_bytes(gguf([], [tensor("b", [64, 3, 2], 8)], bytes(6 * 2 * 34)))
    a = rocmkern.open_checkpoint(tmp_path / "a.safetensors")["a"]
    b = rocmkern.open_checkpoint(tmp_path / "b.gguf")["b"]
    assert (a.name, a.shape, a.dtype, a.format, a.nbytes) == ("a", (3, 2), ml_dtypes.bfloat16, None, 12)
    assert (b.name, b.shape, b.dtype, b.format, b.nbytes) == ("b", (2, 3, 2 * 34), np.uint8, "q8_0", 6 * 2 * 34)
    assert (a.path, b.path) == (str(tmp_path / "a.safetensors"), str(tmp_path / "b.gguf"))
    # What tells tensors apart is said, and the open file is not.
    assert a == rocmkern.open_checkpoint(tmp_path / "a.safetensors")["a"] and a != b
    assert repr(a) == f"FileTensor(name='a', shape=(3, 2), dtype=dtype(bfloat16), format=None, path={a.path!r})"
    for name in ("name", "shape"):
        with pytest.raises(AttributeError):
            setattr(a, name, None)
