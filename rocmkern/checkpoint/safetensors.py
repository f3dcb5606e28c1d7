"""Tensors of safetensors files, through the library ``safetensors``, which maps the file into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rocmkern.checkpoint.files import FileTensor
from rocmkern.runtime.errors import CheckpointError

_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F32": np.float32, "F64": np.float64,
}  # fmt: skip
# The library copies what it reads: so much at a time, however large the tensor is.
PIECE_BYTES = 64 << 20


def tensors_of(path: Path) -> list[FileTensor]:
    """The tensors of a file, in the order of their data.

    Raises
    ------
    CheckpointError
        The file is not a safetensors file, or a tensor has a dtype that NumPy does not know.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError("reading safetensors files needs: pip install rocmkern[files]") from error
    try:
        file = safe_open(str(path), framework="numpy")
        return [_tensor(file, name, path) for name in file.offset_keys()]
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def _tensor(file: Any, name: str, path: Path) -> FileTensor:
    there = file.get_slice(name)
    shape, kind = tuple(there.get_shape()), there.get_dtype()
    if kind not in _DTYPES:
        raise CheckpointError(f"{path}: {name} has dtype {kind}; known here are {', '.join(_DTYPES)}")
    dtype = np.dtype(_DTYPES[kind])

    def pieces() -> Iterator[np.ndarray]:
        if len(shape) == 0 or 0 in shape:
            yield file.get_tensor(name)
            return
        row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        step = max(1, PIECE_BYTES // row_bytes)
        for start in range(0, shape[0], step):
            yield there[start : min(start + step, shape[0])]

    return FileTensor(name, shape, dtype, None, str(path), pieces)
