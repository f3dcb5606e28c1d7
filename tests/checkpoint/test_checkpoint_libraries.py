"""Checkpoints: names, shapes and dtypes without reading, data as it was written."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern.checkpoint import tensors as file_tensors
from rocmkern.runtime.errors import ArgumentError, CheckpointError

gguf = pytest.importorskip("gguf")
save_file = pytest.importorskip("safetensors.numpy").save_file

ARRAYS = {
    "weight": np.arange(35, dtype=np.float32).reshape(5, 7),
    "half": np.linspace(-1, 1, 24).astype(np.float16).reshape(2, 3, 4),
    "brain": np.linspace(-2, 2, 12).astype(ml_dtypes.bfloat16).reshape(3, 4),
    "bytes": np.arange(256, dtype=np.uint8),
    "empty": np.zeros((0, 3), np.float16),
    "number": np.array(7, np.int64),
}


@pytest.fixture
def saved(tmp_path):
    save_file(ARRAYS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("piece_bytes", [1, 60, 1 << 20])
def test_safetensors_arrive_as_they_were_saved(saved, monkeypatch, piece_bytes):
    monkeypatch.setattr(file_tensors, "PIECE_BYTES", piece_bytes)
    with rocmkern.open_checkpoint(saved / "model.safetensors") as checkpoint:
        assert set(checkpoint) == set(ARRAYS) and len(checkpoint) == len(ARRAYS)
        assert checkpoint.format == "safetensors"
        for name, array in ARRAYS.items():
            there = checkpoint[name]
            assert (there.shape, there.dtype, there.nbytes, there.format) == (
                array.shape,
                array.dtype,
                array.nbytes,
                None,
            )
            lazy = rocmkern.DeviceTensor.lazy(there)
            assert (lazy.shape, lazy.dtype, lazy.nbytes, lazy.loaded) == (array.shape, array.dtype, array.nbytes, False)
            np.testing.assert_array_equal(lazy.to_numpy(), array)
            np.testing.assert_array_equal(there.to_numpy(), array)


def test_a_lazy_tensor_outlives_its_checkpoint(saved):
    with rocmkern.open_checkpoint(str(saved / "model.safetensors")) as checkpoint:
        lazy = rocmkern.DeviceTensor.lazy(checkpoint["weight"])
    assert len(checkpoint) == 0
    np.testing.assert_array_equal(lazy.to_numpy(), ARRAYS["weight"])


def test_operations_take_lazy_tensors(saved):
    with rocmkern.open_checkpoint(saved) as checkpoint:
        lazy = rocmkern.DeviceTensor.lazy(checkpoint["weight"])
    with rocmkern.using("python"):
        out = rocmkern.scale(lazy[1:], 2.0)
    assert lazy.loaded
    np.testing.assert_array_equal(out.to_numpy(), ARRAYS["weight"][1:] * 2)


def test_several_files_and_the_configuration(tmp_path):
    save_file({"a": ARRAYS["weight"]}, tmp_path / "one.safetensors")
    save_file({"b": ARRAYS["half"]}, tmp_path / "two.safetensors")
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 7}))
    with rocmkern.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.metadata == {"hidden_size": 7}
        np.testing.assert_array_equal(checkpoint["b"].to_numpy(), ARRAYS["half"])
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"two\.safetensors"):
        rocmkern.open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not an index"):
        rocmkern.open_checkpoint(tmp_path)


QUANTIZED = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "Q5_1")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_tensor("plain", ARRAYS["weight"])
    writer.add_tensor("half", ARRAYS["half"])
    writer.add_tensor("brain", ARRAYS["brain"].view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    rng = np.random.default_rng(5)
    blocks = {}
    for name in QUANTIZED:
        kind = gguf.GGMLQuantizationType[name]
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        blocks[name] = rng.integers(0, 256, (3, 512 // elements * nbytes), np.uint8)
        writer.add_tensor(f"blocks.{name}", blocks[name], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, blocks


def test_gguf_tensors_and_blocks_arrive_as_they_were_written(model):
    path, blocks = model
    with rocmkern.open_checkpoint(path) as checkpoint:
        assert checkpoint.format == "gguf"
        assert checkpoint.metadata["general.architecture"] == "llama"
        assert checkpoint.metadata["llama.block_count"] == 3
        assert checkpoint.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
        for name, key in (("plain", "weight"), ("half", "half"), ("brain", "brain")):
            there = checkpoint[name]
            assert (there.shape, there.dtype, there.format) == (ARRAYS[key].shape, ARRAYS[key].dtype, None)
            np.testing.assert_array_equal(rocmkern.DeviceTensor.lazy(there).to_numpy(), ARRAYS[key])
        for name, expected in blocks.items():
            there = checkpoint[f"blocks.{name}"]
            assert (there.shape, there.dtype, there.format) == (expected.shape, np.uint8, name.lower())
            lazy = rocmkern.DeviceTensor.lazy(there)
            np.testing.assert_array_equal(lazy.to_numpy(), expected)


def test_a_directory_with_one_gguf_file(model):
    with rocmkern.open_checkpoint(model[0].parent) as checkpoint:
        assert "plain" in checkpoint and "other" not in checkpoint
        with pytest.raises(KeyError):
            checkpoint["other"]


def test_damaged_files_are_errors(tmp_path, model):
    path = model[0]
    data = path.read_bytes()
    for cut in (6, 40, len(data) - 64):
        (tmp_path / "cut.gguf").write_bytes(data[:cut])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            rocmkern.open_checkpoint(tmp_path / "cut.gguf")
    (tmp_path / "cut.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        rocmkern.open_checkpoint(tmp_path / "cut.safetensors")


def test_other_paths_are_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"PK\x03\x04")
    for path in (tmp_path / "missing.gguf", tmp_path / "model.bin", tmp_path):
        with pytest.raises(ArgumentError, match="path"):
            rocmkern.open_checkpoint(path)


def test_a_part_of_a_split_model_is_refused(tmp_path):
    path = tmp_path / "part.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint16("split.count", 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="one of 2 files"):
        rocmkern.open_checkpoint(path)


def test_of_a_directory_with_many_models_some_are_named(tmp_path):
    for number in range(60):
        (tmp_path / f"model-{number:03}.safetensors").write_bytes(b"")
    with pytest.raises(ArgumentError, match="a directory with one model") as caught:
        rocmkern.open_checkpoint(tmp_path)
    listed = str(caught.value).partition(" with ")[2].partition("...; allowed")[0]
    assert listed.startswith("model-000.safetensors, model-001.safetensors, ") and len(listed) == 400
