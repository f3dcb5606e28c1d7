"""`Checkpoint`: the tensors of one or several files by name. The formats are in `safetensors.py` and `gguf.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rocmkern.checkpoint import gguf, safetensors
from rocmkern.checkpoint.data_file import DataFile
from rocmkern.checkpoint.json_file import read_object
from rocmkern.checkpoint.names import short, shown
from rocmkern.checkpoint.tensors import FileTensor
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, CheckpointError

_INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"
#: Bytes that these files have at most; an index has about a hundred for each tensor.
_LONGEST_INDEX, _LONGEST_CONFIG = 32 << 20, 4 << 20


class Checkpoint(Mapping[str, FileTensor]):
    """The tensors of a checkpoint by name; made by `open_checkpoint`. A context manager.

    Attributes
    ----------
    format : {"safetensors", "gguf"}
    metadata : dict
        What the checkpoint says of the model: the content of ``config.json`` beside safetensors files, or the key-value
        pairs of a GGUF file.
    """

    format: str
    metadata: dict[str, Any]

    def __init__(self, format: str, tensors: dict[str, FileTensor], metadata: dict[str, Any]):
        self.format, self.metadata = format, metadata
        self._tensors = tensors

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

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint without reading its tensors.

    Files are checked completely when they are opened: names, shapes, sizes and places of all tensors, and an index
    against the files that it names. Nothing in them is executed, and no file beside them is opened.

    Parameters
    ----------
    path : str or Path
        A ``.safetensors`` file, a ``.gguf`` file, or a directory as Hugging Face lays it out: one safetensors file, or
        several with ``model.safetensors.index.json``, and ``config.json``. An index decides which tensors there are,
        and in which file.

    Raises
    ------
    ArgumentError
        There is no such file, or none of these formats.
    CheckpointError
        A file is not as its format says, or cannot be read; the message names it, and the tensor or key.

    Examples
    --------
    >>> with open_checkpoint("model.gguf") as checkpoint:  # doctest: +SKIP
    ...     blocks = DeviceTensor.lazy(checkpoint["blk.0.ffn_up.weight"])
    """
    try:
        path = Path(path)
    except TypeError:
        raise ArgumentTypeError("path", repr(path), "a path") from None
    allowed = "a .safetensors or .gguf file, or a directory with such files"
    try:
        if os.path.isdir(path):
            return _directory(path)
        if not os.path.lexists(path):
            raise ArgumentError("path", repr(str(path)), allowed)
    except ValueError as error:  # a NUL in it
        if isinstance(error, (ArgumentError, CheckpointError)):
            raise
        raise ArgumentError("path", repr(str(path)), allowed) from None
    file, suffix = DataFile(path), path.suffix.lower()
    if file.head()[:4] == b"GGUF":
        metadata, tensors = gguf.contents_of(file)
        return Checkpoint("gguf", {tensor.name: tensor for tensor in tensors}, metadata)
    if suffix == ".safetensors":
        return _safetensors([path], path.parent / _CONFIG)
    if path.name.endswith(".index.json"):
        got = f"{str(path)!r}, which is an index of other files"
        raise ArgumentError("path", got, f"the directory that it is in, if it is called {_INDEX}")
    kind = file.other_kind() or f"unknown, and starts with {file.head()[:4]!r}"
    if suffix == ".gguf":
        raise CheckpointError(f"{path} is not a GGUF file: it is {kind}")
    raise ArgumentError("path", f"{str(path)!r}, which is {kind}", "a .safetensors or a GGUF file")


def _directory(path: Path) -> Checkpoint:
    index = path / _INDEX
    if os.path.lexists(index):
        places = _places(index)
        return _safetensors([path / name for name in sorted(set(places.values()))], path / _CONFIG, index, places)
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return _safetensors(files, path / _CONFIG)
    models = sorted(path.glob("*.gguf"))
    if not files and len(models) == 1:
        return open_checkpoint(models[0])
    found = ", ".join(file.name for file in [*files, *models]) or "no such file"
    raise ArgumentError(
        "path", f"{str(path)!r} with {short(found, 400)}", f"a directory with one model, or with {_INDEX}"
    )


def _places(index: Path) -> dict[str, str]:
    """The file of each tensor, by an index: a file of the same directory."""
    places = read_object(index, _LONGEST_INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index} is not an index of safetensors files: it has no weight_map with names in it")
    for name, place in places.items():
        plain = isinstance(place, str) and place.isprintable() and not set(place) & set("/\\:")
        if not plain or not place.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: {shown(name)} is in {shown(place)}, which is not the plain name of a "
                ".safetensors file beside the index"
            )
    missing = [place for place in sorted(set(places.values())) if not os.path.lexists(index.parent / place)]
    if missing:
        raise CheckpointError(f"{index} names files that are not there: {short(', '.join(missing), 400)}")
    return places


def _safetensors(
    files: list[Path], config: Path, index: Path | None = None, places: dict[str, str] | None = None
) -> Checkpoint:
    """The tensors of some files: all of one file, or those that an index names."""
    metadata = read_object(config, _LONGEST_CONFIG) if os.path.lexists(config) else {}
    tensors: dict[str, FileTensor] = {}
    for path in files:
        for tensor in safetensors.tensors_of(DataFile(path)):
            if places is None or places.get(tensor.name) == path.name:
                tensors[tensor.name] = tensor
    for name, place in (places or {}).items():
        if name not in tensors:
            raise CheckpointError(f"{index}: {shown(name)} is in {shown(place)}, which has no such tensor")
    return Checkpoint("safetensors", tensors, metadata)
