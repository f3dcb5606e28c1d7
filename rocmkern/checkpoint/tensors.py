"""`FileTensor`: a tensor in a file, by where its data lies there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rocmkern.checkpoint.data_file import DataFile

#: Data is read into memory so much at a time, however large the tensor is.
PIECE_BYTES = 16 << 20


#: Bytes that an array can have.
_MOST = 1 << 63


def is_too_large(shape: tuple[int, ...], itemsize: int) -> bool:
    """Whether there is no array of a shape, be it without elements."""
    return math.prod(max(n, 1) for n in shape) * itemsize >= _MOST


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a file, whose data was not read: what `DeviceTensor.lazy` takes.

    Attributes
    ----------
    name : str
        Name in the file.
    shape, dtype : tuple of int, numpy.dtype
        Of the array that the data becomes. A quantized tensor is its blocks: uint8 ``[..., n_blocks * block_bytes]``.
    format : str or None
        Format of the blocks by its lower-case name (``"q4_0"``), as `quantized_linear` takes it if there are operations
        for it; None: not quantized.
    path : str
        The file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    format: str | None
    path: str
    _file: DataFile = field(repr=False, compare=False)
    _offset: int = field(repr=False)
    _per_byte: int = field(default=1, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the data as an array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[np.ndarray]:
        """The data, read now: arrays which, one after the other, hold all elements in C order.

        Raises
        ------
        CheckpointError
            The file was cut or written since it was opened, or cannot be read.
        """
        whole, done = math.prod(self.shape), 0
        step = max(1, PIECE_BYTES // self.dtype.itemsize // self._per_byte) * self._per_byte
        while done < whole or not whole:
            piece = np.empty(min(step, whole - done), self.dtype)
            self._read(piece, done)
            yield piece
            done += step
            if not whole:
                return

    def to_numpy(self) -> np.ndarray:
        """The data in an array of its own. Raises as `pieces`."""
        out = np.empty(self.shape, self.dtype)
        flat, step = out.reshape(-1), PIECE_BYTES * self._per_byte
        for start in range(0, out.size, step):
            self._read(flat[start : start + step], start)
        return out

    def _read(self, into: np.ndarray, start: int) -> None:
        """Read elements from one of them on."""
        offset, what = self._offset + start * self.dtype.itemsize // self._per_byte, repr(self.name)
        if self._per_byte == 1:
            self._file.read_into(into.view(np.uint8), offset, what)
            return
        packed = self._file.read(offset, into.size // 2, what)
        codes = into.view(np.uint8)
        codes[0::2], codes[1::2] = packed & 15, packed >> 4
