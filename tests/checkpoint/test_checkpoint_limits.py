"""What a header may have at most: that much is read, and one more is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from written import entry, gguf, pair, safetensors, tensor

import rocmkern
from rocmkern.runtime.errors import CheckpointError

UINT8, ARRAY = 0, 9


def opened(path, data):
    path.write_bytes(data)
    return rocmkern.open_checkpoint(path)


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


def test_tensors_of_gguf(tmp_path):
    """Their number is believed no further than the file is long."""
    tensors = [tensor(f"{n:06}", [1], 24, 32 * n) for n in range(1000)]
    with opened(tmp_path / "a.gguf", gguf(tensors=tensors, data=bytes(32 * 1000))) as checkpoint:
        assert len(checkpoint) == 1000
    with pytest.raises(CheckpointError):
        opened(tmp_path / "b.gguf", gguf(tensors=tensors, data=bytes(8 << 20), counts=((1 << 17) + 1, 0)))


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
