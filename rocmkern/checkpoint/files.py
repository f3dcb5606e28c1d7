"""`Checkpoint`: the tensors of one or several files by name. The formats are in `safetensors.py` and `gguf.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, CheckpointError

_INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"


@dataclass(frozen=True)
class FileTensor:
    """A tensor in a file, whose data was not read: what `DeviceTensor.lazy` takes.

    Attributes
    ----------
    name : str
        Name in the file.
    shape, dtype : tuple of int, numpy.dtype
        Of the array that the data becomes. A quantised tensor is its blocks: uint8 ``[..., n_blocks * block_bytes]``.
    format : str or None
        Format of the blocks by its lower-case name (``"q4_0"``), as `quantized_linear` takes it; None: not quantised.
    path : str
        The file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    format: str | None
    path: str
    _pieces: Callable[[], Iterable[np.ndarray]] = field(repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterable[np.ndarray]:
        """The data, read now: arrays which, one after the other, hold all elements in C order."""
        return self._pieces()

    def to_numpy(self) -> np.ndarray:
        """The data in an array of its own."""
        out = np.empty(self.shape, self.dtype)
        flat, done = out.reshape(-1), 0
        for piece in self.pieces():
            flat[done : done + piece.size] = piece.reshape(-1)
            done += piece.size
        return out


class Checkpoint(Mapping[str, FileTensor]):
    """The tensors of a checkpoint by name; made by `open_checkpoint`. A context manager.

    Attributes
    ----------
    format : {"safetensors", "gguf"}
    metadata : dict
        What the checkpoint says of the model: the content of ``config.json`` beside safetensors files, or the key-value
        pairs of a GGUF file.
    """

    def __init__(
        self, format: str, tensors: dict[str, FileTensor], metadata: dict[str, Any], close: Callable[[], None]
    ):
        self.format, self.metadata = format, metadata
        self._tensors, self._close = tensors, close

    def __getitem__(self, name: str) -> FileTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<Checkpoint of {len(self)} tensors, {self.format}>"

    def close(self) -> None:
        """Let go of the files; lazy tensors that were not used keep those that they need open."""
        self._tensors = {}
        self._close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint without reading its tensors.

    Needs the packages of the extra ``files``: ``pip install rocmkern[files]``.

    Parameters
    ----------
    path : str or Path
        A ``.safetensors`` file, a ``.gguf`` file, or a directory as Hugging Face lays it out: one safetensors file, or
        several with ``model.safetensors.index.json``, and ``config.json``.

    Raises
    ------
    ArgumentError
        There is no such file, or none of these formats.
    CheckpointError
        A file is not as its format says.
    ImportError
        The format's library is not installed.

    Examples
    --------
    >>> with open_checkpoint("model.gguf") as checkpoint:  # doctest: +SKIP
    ...     blocks = DeviceTensor.lazy(checkpoint["blk.0.ffn_up.weight"])
    """
    try:
        path = Path(path)
    except TypeError:
        raise ArgumentTypeError("path", repr(path), "a path") from None
    if path.is_dir():
        return _directory(path)
    if not path.is_file():
        raise ArgumentError("path", repr(str(path)), "a .safetensors or .gguf file, or a directory with such files")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"GGUF":
        from rocmkern.checkpoint import gguf

        return gguf.open_file(path)
    if path.suffix != ".safetensors":
        raise ArgumentError("path", f"{str(path)!r}, which starts with {magic!r}", "a .safetensors or a GGUF file")
    return _safetensors([path], path.parent / _CONFIG)


def _directory(path: Path) -> Checkpoint:
    index = path / _INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{index} is not an index of safetensors files: {error!r}") from error
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise CheckpointError(f"{index} names files that are not there: {', '.join(missing)}")
        return _safetensors([path / name for name in names], path / _CONFIG)
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return _safetensors(files, path / _CONFIG)
    models = sorted(path.glob("*.gguf"))
    if not files and len(models) == 1:
        return open_checkpoint(models[0])
    found = ", ".join(file.name for file in [*files, *models]) or "no such file"
    raise ArgumentError("path", f"{str(path)!r} with {found}", f"a directory with one model, or with {_INDEX}")


def _safetensors(files: list[Path], config: Path) -> Checkpoint:
    from rocmkern.checkpoint import safetensors

    metadata: dict[str, Any] = {}
    if config.is_file():
        try:
            metadata = json.loads(config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{config} is not JSON: {error}") from error
    tensors: dict[str, FileTensor] = {}
    for file in files:
        for tensor in safetensors.tensors_of(file):
            if tensor.name in tensors:
                raise CheckpointError(f"{tensor.name} is in {tensors[tensor.name].path} and in {file}")
            tensors[tensor.name] = tensor
    return Checkpoint("safetensors", tensors, metadata, lambda: None)
