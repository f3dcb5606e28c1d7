"""Reading the CUDA array interface."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.runtime.interface import read_cuda_array_interface

OWNER = object()


def interface(**changes):
    complete = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3, "strides": None, "stream": None}
    return {**complete, **changes}


def read(**changes):
    return read_cuda_array_interface(interface(**changes), OWNER, "q")


def test_a_plain_array():
    foreign = read()
    assert (foreign.address, foreign.shape, foreign.strides, foreign.dtype) == (4096, (2, 3), (12, 4), np.float32)
    assert (foreign.device_kind, foreign.device_index, foreign.read_only, foreign.stream) == (None, None, False, None)
    assert foreign.owner is OWNER


def test_strides_read_only_and_zero_size():
    assert read(strides=(-4, 8)).strides == (-4, 8)
    assert read(data=(4096, True)).read_only
    for nothing in (0, None):
        assert read(shape=(0, 3), data=(nothing, False)).address == 0


@pytest.mark.parametrize("key", ["strides", "stream"])
def test_version_two_and_optional_entries(key):
    given = interface(version=2)
    del given[key]
    assert read_cuda_array_interface(given, OWNER).stream is None


@pytest.mark.parametrize("stream", [None, 1, 2, 0xDEADBEEF, np.int64(7)])
def test_legal_streams(stream):
    assert read(stream=stream).stream == stream


@pytest.mark.parametrize(
    ("typestr", "dtype"),
    [("<V2", ml_dtypes.bfloat16), ("|V2", ml_dtypes.bfloat16), ("<f2", np.float16), ("|b1", bool), ("|u1", np.uint8)],
)
def test_type_strings(typestr, dtype):
    assert read(typestr=typestr).dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"stream": 0}, ArgumentError, "stream 0"),
        ({"stream": -1}, ArgumentError, "stream -1"),
        ({"stream": "1"}, ArgumentTypeError, "stream '1'"),
        ({"stream": True}, ArgumentTypeError, "stream True"),
        ({"mask": object()}, ArgumentTypeError, "mask"),
        ({"version": 1}, ArgumentTypeError, "version 1"),
        ({"version": 4}, ArgumentTypeError, "version 4"),
        ({"typestr": ">f4"}, ArgumentTypeError, "typestr '>f4'"),
        ({"typestr": "|V4"}, ArgumentTypeError, r"typestr '\|V4'"),
        ({"typestr": "|O"}, ArgumentTypeError, "typestr"),
        ({"typestr": 4}, ArgumentTypeError, "typestr 4"),
        ({"typestr": "nonsense"}, ArgumentTypeError, "typestr"),
        ({"data": (0, False)}, ArgumentError, "address 0"),
        ({"data": 4096}, ArgumentTypeError, "data 4096"),
        ({"data": ("a", False)}, ArgumentTypeError, "data"),
        ({"strides": (4,)}, ArgumentError, "strides"),
        ({"shape": (-1,)}, ArgumentError, r"q\.shape"),
    ],
)
def test_what_is_malformed_is_refused(changes, error, message):
    with pytest.raises(error, match=message) as caught:
        read(**changes)
    assert caught.value.argument.startswith("q")


@pytest.mark.parametrize("key", ["shape", "typestr", "data", "version"])
def test_missing_entries_are_named(key):
    given = interface()
    del given[key]
    with pytest.raises(ArgumentTypeError, match=f"without {key}"):
        read_cuda_array_interface(given, OWNER)
