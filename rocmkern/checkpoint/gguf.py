"""Tensors of GGUF files, through the library ``gguf``, which maps the file into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rocmkern.checkpoint.files import Checkpoint, FileTensor
from rocmkern.runtime.errors import CheckpointError

# What is not listed is quantised, and arrives as blocks.
_PLAIN = {
    "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64, "I8": np.int8,
    "I16": np.int16, "I32": np.int32, "I64": np.int64,
}  # fmt: skip


def open_file(path: Path) -> Checkpoint:
    """Open a GGUF file.

    Raises
    ------
    CheckpointError
        The file is damaged, or one of several into which a model was split.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ImportError("reading GGUF files needs: pip install rocmkern[files]") from error
    try:
        reader: Any = GGUFReader(str(path))
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{path} is not a GGUF file: {error}") from error
    metadata = {name: value.contents() for name, value in reader.fields.items() if not name.startswith("GGUF.")}
    parts = metadata.get("split.count", 0)
    if parts > 1:
        raise CheckpointError(f"{path} is one of {parts} files of a model: merge them with gguf-split --merge")
    tensors = {tensor.name: _tensor(tensor, path) for tensor in reader.tensors}
    return Checkpoint("gguf", tensors, metadata, lambda: None)


def _tensor(tensor: Any, path: Path) -> FileTensor:
    kind, data = tensor.tensor_type.name, tensor.data
    if kind in _PLAIN:
        # bfloat16, which NumPy itself does not know, comes as bytes.
        data, block_format = data.view(_PLAIN[kind]), None
    else:
        data, block_format = data.view(np.uint8), kind.lower()

    def pieces() -> Iterator[np.ndarray]:
        yield data  # a view of the mapped file

    return FileTensor(tensor.name, data.shape, data.dtype, block_format, str(path), pieces)
