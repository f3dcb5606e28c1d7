"""How a kernel says that a number in device memory, such as an index, is not what it must be.

Such numbers are not copied back to be checked. The kernel guards them, and where one is wrong it writes to an *error
word*: four bytes of page-locked host memory that the device reaches by the same address. So nobody has to copy it:
whoever has waited for the kernel reads it, and raises.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from rocmkern.runtime import fork
from rocmkern.runtime.errors import RocmkernError
from rocmkern.runtime.mutex import Mutex, alone

_NBYTES = 4


class ErrorWord:
    """One float32 that kernels write and the host reads; 0 is no error.

    Attributes
    ----------
    address : int
        Valid in kernels and on the host.
    """

    address: int

    def __init__(self, address: int, owner: Any, make_error: Callable[[], RocmkernError]):
        self.address, self._owner, self._make_error = address, owner, make_error

    def take(self) -> RocmkernError | None:
        """The error if a kernel has written one, which is then forgotten."""
        if not ctypes.c_uint32.from_address(self.address).value:
            return None
        ctypes.memset(self.address, 0, _NBYTES)
        return self._make_error()


class ErrorWords:
    """The error words of one device: one for each kind of error, made when it is first asked for.

    Parameters
    ----------
    device : Device
        Allocates the memory, which is kept as long as the process lives.
    """

    def __init__(self, device: Any):
        self._device = device
        self._words: dict[str, ErrorWord] = {}
        self._lock = Mutex()
        fork.renew_locks(self, "_lock")

    def get(self, kind: str, make_error: Callable[[], RocmkernError]) -> ErrorWord:
        """The word of a kind of error, such as an operation and an argument."""
        word = self._words.get(kind)
        if word is None:
            with alone(self._lock):
                word = self._words.get(kind)
                if word is None:
                    word = self._words[kind] = self._make(make_error)
        return word

    def check(self) -> None:
        """Raise the first error that a kernel has written; each is raised once."""
        for word in tuple(self._words.values()):
            error = word.take()
            if error is not None:
                raise error

    def _make(self, make_error: Callable[[], RocmkernError]) -> ErrorWord:
        address, owner = self._device.allocate_pinned(_NBYTES), None
        if not address:
            # Where any host memory serves as well.
            owner = ctypes.create_string_buffer(_NBYTES)
            address = ctypes.addressof(owner)
        ctypes.memset(address, 0, _NBYTES)
        return ErrorWord(address, owner, make_error)
