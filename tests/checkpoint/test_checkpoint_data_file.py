"""Files that are not what their names say, no files, or not what they were; what is read is what was there."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tracemalloc

import numpy as np
import pytest
from written import entry, gguf, refusal, safetensors, tensor

import rocmkern
from rocmkern.checkpoint.data_file import DataFile, read_text
from rocmkern.runtime.errors import ArgumentError, CheckpointError


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
def test_what_a_file_is_instead_is_said(tmp_path, data, words):
    for name in ("model.safetensors", "model.gguf"):
        assert words in refusal(tmp_path / name, data)
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(ArgumentError, match=words):
        rocmkern.open_checkpoint(tmp_path / "model.bin")


@pytest.mark.parametrize("protocol", [1, 6])
def test_what_no_pickle_begins_with_is_not_called_one(tmp_path, protocol):
    assert "pickle" not in refusal(tmp_path / "model.safetensors", bytes([0x80, protocol]) + bytes(400))


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


LARGE = 1 << 20


@pytest.fixture(params=["safetensors", "gguf"])
def large(request, tmp_path):
    """A file with a tensor of 1 MiB, and its path."""
    data = np.arange(LARGE // 4, dtype="<u4").tobytes()
    if request.param == "gguf":
        file = gguf([], [tensor("t", [LARGE], kind=24)], data)
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


def test_a_model_of_the_other_format_is_said(tmp_path):
    """A file by its own path is opened as what it begins with; one of a directory or an index, as its name says."""
    (tmp_path / "model.safetensors").write_bytes(gguf([], [tensor("t", [8])], bytes(32)))
    assert rocmkern.open_checkpoint(tmp_path / "model.safetensors").format == "gguf"
    with pytest.raises(CheckpointError, match=r"a GGUF file: give it a name that ends in \.gguf"):
        rocmkern.open_checkpoint(tmp_path)


@pytest.mark.parametrize(("spaces", "words"), [(64 - len("<html"), "an HTML page"), (65 - len("<html"), "unknown")])
def test_what_a_file_is_follows_from_its_first_64_bytes(tmp_path, spaces, words):
    assert words in refusal(tmp_path / "model.gguf", b" " * spaces + b"<html>" + bytes(400))


def test_a_file_is_opened_for_this_process_alone_and_without_waiting(tmp_path):
    (tmp_path / "file").write_bytes(b"12")
    file = DataFile(tmp_path / "file")
    assert fcntl.fcntl(file._fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    flags = fcntl.fcntl(file._fd, fcntl.F_GETFL)
    assert flags & os.O_NONBLOCK and flags & os.O_ACCMODE == os.O_RDONLY


def test_reads_that_end_early_go_on_where_they_ended(tmp_path, monkeypatch):
    data = bytes(range(100))
    (tmp_path / "file").write_bytes(data)
    file, preadv = DataFile(tmp_path / "file"), os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: preadv(fd, [views[0][:7]], offset))
    for offset, count in ((0, 100), (3, 50), (93, 7), (100, 0)):
        assert file.read(offset, count, "some").tobytes() == data[offset : offset + count]


def test_of_a_file_that_was_cut_both_ends_are_said(tmp_path):
    (tmp_path / "file").write_bytes(bytes(100))
    file = DataFile(tmp_path / "file")
    os.truncate(tmp_path / "file", 30)
    with pytest.raises(CheckpointError) as caught:
        file.read(20, 60, "'t'")
    assert str(caught.value) == (
        f"{tmp_path}/file was cut since it was opened: 't' needs bytes 20 to 80, and it ends at 30. Fetch it again and "
        "open it again"
    )


def test_a_text_has_a_longest_length(tmp_path):
    path = tmp_path / "text"
    path.write_text("\u00e41")
    assert read_text(path, 3) == "\u00e41"
    with pytest.raises(CheckpointError, match=r"text has 3 bytes; at most 2 are read$"):
        read_text(path, 2)
    path.write_bytes(b"a\xff")
    with pytest.raises(CheckpointError, match=r"text is not UTF-8: .* in position 1"):
        read_text(path, 2)
