"""Every exception that rocmkern raises on purpose.

An argument error names the argument, what was given and what is allowed; the other errors say what to do next.
Each class also derives from the built-in exception that a caller would expect, so ``except ValueError`` works.
"""

from __future__ import annotations


class RocmkernError(Exception):
    """Base of all errors of this library."""


class ArgumentError(RocmkernError, ValueError):
    """An argument has a value that is not allowed.

    Parameters
    ----------
    argument : str
        Name of the argument as the caller wrote it.
    given : str
        What was given, in words.
    allowed : str
        What is allowed, in words.

    Attributes
    ----------
    argument : str
        Name of the offending argument.
    """

    argument: str
    given: str
    allowed: str

    def __init__(self, argument: str, given: str, allowed: str):
        self.argument, self.given, self.allowed = argument, given, allowed
        super().__init__(f"{argument}: got {given}; allowed: {allowed}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.argument, self.given, self.allowed)


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type or dtype that is not allowed (same attributes as `ArgumentError`)."""


def masked_array_error(argument: str) -> ArgumentTypeError:
    """What is said of a NumPy array with a mask, which nothing here looks at."""
    allowed = f"an array without a mask of its own: {argument}.data, or {argument}.filled() (attention takes a mask=)"
    return ArgumentTypeError(argument, "a masked array", allowed)


class TileError(RocmkernError, TypeError):
    """A kernel misuses the tile language: shapes that do not match, a consumed tile, too much shared memory."""


class TargetError(RocmkernError, RuntimeError):
    """A target (hip, cuda, cpu, python) cannot be used; the message says why and what to install or set."""


class DeviceUnavailableError(TargetError):
    """A GPU was required and none can be used."""


class ReentryError(RocmkernError, RuntimeError):
    """A signal handler or a finalizer called the library in the middle of a call that cannot be divided."""


class DriverError(TargetError):
    """A call of the driver failed.

    Attributes
    ----------
    call : str
        The function, such as ``"hipMemcpyAsync"``.
    status : str
        The driver's name of the error.
    """

    call: str
    status: str
    device: str

    def __init__(self, call: str, status: str, device: str):
        self.call, self.status, self.device = call, status, device
        super().__init__(
            f"{call} failed on {device}: {status}. If later calls fail too, this process has lost the device: end it"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.call, self.status, self.device)


class DeviceMemoryError(RocmkernError, MemoryError):
    """An allocation was refused by the cap or failed in the driver; nothing was changed.

    Attributes
    ----------
    asked, allowed, free, held, total : int
        Bytes: requested, still allowed under the cap, free on the device, held by this process, size of the device.
    """

    asked: int
    allowed: int
    free: int
    held: int
    total: int

    def __init__(self, asked: int, allowed: int, free: int, held: int, total: int, why: str = "over the cap"):
        self.asked, self.allowed, self.free, self.held, self.total = asked, allowed, free, held, total
        self.why = why
        super().__init__(
            f"cannot allocate {asked} bytes ({why}): allowed {allowed}, free {free}, held {held}, total {total} bytes; "
            "free tensors, call trim(), or raise cap= (at most 0.90)"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.asked, self.allowed, self.free, self.held, self.total, self.why)


class DeadlineError(RocmkernError, TimeoutError):
    """Work on a stream did not finish before its deadline; the message names the operation that is stuck."""


class PeerError(RocmkernError, RuntimeError):
    """Another process of a group has ended, hangs, or refused a call; the message says what is left to do.

    Attributes
    ----------
    ranks : tuple of int
        Which ones, by their numbers in the group; empty where all live and one of them did not come.
    """

    ranks: tuple[int, ...]
    size: int
    why: str

    def __init__(self, ranks: tuple[int, ...], size: int, why: str):
        self.ranks, self.size, self.why = ranks, size, why
        named = " and ".join(f"rank {rank}" for rank in ranks) or "a rank"
        super().__init__(f"{named} of {size}: {why}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.ranks, self.size, self.why)


class LockTimeoutError(DeadlineError):
    """The lock of a device was not free in time; the message says who holds it. The device may be well."""


class LeakError(RocmkernError, AssertionError):
    """Buffers are still alive, or the driver reports less free memory than before."""


class GuardBandError(RocmkernError, AssertionError):
    """A kernel wrote outside a buffer; the message names the kernel, the buffer and the first byte that changed."""


class ClosedError(RocmkernError, ValueError):
    """A tensor or a manager was used after it was closed."""


class IndexOutOfRangeError(RocmkernError, IndexError):
    """An index in device memory named something that is not there; the kernel left it out."""


class OutOfBlocksError(RocmkernError, MemoryError):
    """A `KVCache` has not enough free blocks; nothing was changed.

    Attributes
    ----------
    needed, free, total : int
        Blocks: needed for the call, free, of the whole cache.
    """

    needed: int
    free: int
    total: int

    def __init__(self, needed: int, free: int, total: int):
        self.needed, self.free, self.total = needed, free, total
        super().__init__(
            f"{needed} blocks are needed and {free} of {total} are free; free() a sequence or make a larger cache"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.needed, self.free, self.total)


class CheckpointError(RocmkernError, ValueError):
    """A checkpoint is not as its format says, lacks a tensor, or holds one that nothing here knows what to do with."""


class MatrixError(RocmkernError, ValueError):
    """A matrix file has a mistake: the message gives file, line, column, path and the nearest valid name.

    Attributes
    ----------
    file : str
        Name of the file; empty when the mistake is not in a file.
    line, column : int
        Position, counted from 1; 0 when unknown.
    path : str
        Where in the data, for example ``groups.flash_causal.rows[2].axes.head_dim``.
    """

    message: str
    file: str
    line: int
    column: int
    path: str

    def __init__(self, message: str, *, file: str = "", line: int = 0, column: int = 0, path: str = ""):
        self.message, self.file, self.line, self.column, self.path = message, file, line, column, path
        place = (f"{file}:{line}:{column}: " if line else f"{file}: ") if file else ""
        super().__init__(f"{place}{path}: {message}" if path else f"{place}{message}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_matrix_error, (self.message, self.file, self.line, self.column, self.path)


def _rebuild_matrix_error(message: str, file: str, line: int, column: int, path: str) -> MatrixError:
    return MatrixError(message, file=file, line=line, column=column, path=path)


class RocmkernWarning(UserWarning):
    """Something works, but not as it could; the message says what to do."""
