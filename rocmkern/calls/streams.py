"""On which stream a launch goes, and its order with the streams that its arrays are used on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from rocmkern.calls import notes
from rocmkern.runtime.interface import LEGACY_STREAM, PER_THREAD_STREAM
from rocmkern.runtime.memory import Buffer

Result = TypeVar("Result")


@dataclass(frozen=True)
class Origin:
    """Where the library that owns an array goes on with it.

    Attributes
    ----------
    stream : int
        Handle of the library's current stream: the array is ready on it.
    certain : bool
        False where the library does not tell its stream: the operation then ends when its work is done.
    """

    stream: int
    certain: bool = True


#: Where the streams of PyTorch, CuPy and Numba have their handle; Numba's is a ctypes object.
STREAM_HANDLES = ("cuda_stream", "ptr", "handle", "value")


def handle_of(stream: Any) -> int:
    """Handle of a stream: a number, or an object of PyTorch, CuPy or Numba."""
    for name in STREAM_HANDLES:
        stream = getattr(stream, name, stream)
    handle = 0 if stream is None else int(stream)
    return 0 if handle == LEGACY_STREAM else handle


def library_of(x: Any) -> ModuleType | None:
    """The module with ``from_dlpack`` that the class of x comes from (torch, cupy); None if there is none."""
    for kind in type(x).__mro__:
        module = sys.modules.get(kind.__module__.partition(".")[0])
        if module is not None and hasattr(module, "from_dlpack"):
            return module
    return None


def origin_of(x: Any, index: int) -> Origin:
    """The current stream of the library that x comes from, on device number `index`."""
    library: Any = library_of(x)
    if library is not None and library.__name__ == "torch":
        return Origin(current_stream_of_torch(index))
    if library is not None and library.__name__ == "cupy":
        return Origin(handle_of(library.cuda.get_current_stream()))
    return Origin(0, certain=False)


def current_stream_of_torch(index: int) -> int:
    """Handle of PyTorch's current stream on device number `index`; PyTorch is loaded."""
    torch: Any = sys.modules["torch"]
    try:
        # What PyTorch's own compiler calls for each launch: `current_stream` makes an object, for 20 times the time.
        handle: int = torch._C._cuda_getCurrentRawStream(index)
    except AttributeError:
        handle = torch.cuda.current_stream(index).cuda_stream
    return handle


def choose(manager: Any, views: Sequence[Any], stream: Any = None) -> int:
    """The stream of a launch: the one asked for, else that of the first array of another library, else our own."""
    if stream is not None:
        return handle_of(stream)
    handle: int = next((view.origin.stream for view in views if view.origin is not None), manager.stream)
    return handle


def launched_on(manager: Any, stream: int) -> int:
    """Where work is submitted that was asked for on `stream`: there, or on our own stream instead.

    The default stream of a thread is ours to use, but by its handle it is another stream in each thread: nobody else
    could say what waits for work on it, or which memory is idle on it. So the work goes on our own stream, and the two
    wait for each other (`ordered`). A graph is recorded by the stream itself: it has memory of its own.
    """
    elsewhere = stream == PER_THREAD_STREAM and not manager.device.is_capturing(stream)
    return manager.stream if elsewhere else stream


def ordered(
    submit: Callable[[], Result], manager: Any, views: Sequence[Any], stream: int, name: str, asked: int | None = None
) -> Result:
    """Return what `submit()` does, between all earlier uses of some device arrays and all later ones.

    A function that is called, and no ``with`` block: an exception could come between the block and what follows it.

    Parameters
    ----------
    submit : callable
        Submits work to `stream`.
    manager : ResourceManager
        Of the device.
    views : sequence of View
        The arrays.
    stream : int
        Handle.
    name : str
        What is submitted, for the error of a wait that does not end.
    asked : int, optional
        Handle of the stream that `stream` stands for: all earlier work there comes before, and all later work after.
    """
    manager.check_process()
    origins = {view.origin for view in views if view.origin is not None}
    if asked is not None and asked != stream:
        origins.add(Origin(asked))
    return between_uses(submit, manager, origins, _buffers(views), stream, name)


def between_uses(
    submit: Callable[[], Result],
    manager: Any,
    origins: Collection[Origin],
    buffers: Sequence[Any],
    stream: int,
    name: str,
) -> Result:
    """As `ordered`, for arrays of other libraries by their origins and for our own by what holds their memory."""
    theirs = {origin.stream for origin in origins}
    users: set[int] = set()
    for buffer in buffers:
        users |= buffer.streams() if isinstance(buffer, Buffer) else {manager.stream}
    theirs.discard(stream)
    users -= {stream, *theirs}
    # A graph that is being recorded is started from its stream, and its recorder has waited for everything before. An
    # event of another stream that records would make this one record the same graph, for a user that only looks on.
    recording = bool(theirs or users) and manager.is_recording(stream)
    if not recording:
        for other in theirs:
            manager.device.follow(stream, other)
        for other in users:
            if not manager.is_recording(other):
                manager.device.follow(stream, other)
    for buffer in buffers:
        if isinstance(buffer, Buffer):
            buffer.record_stream(stream)
    if recording or not theirs:
        result = submit()
    else:
        # Also where a launch has failed: there may have been one before it.
        result = manager.device.call_followed(submit, theirs, stream)
    if not recording and not all(origin.certain for origin in origins):
        manager.wait(name, stream=stream)
    return result


def wait_for(views: Sequence[Any], name: str, stream: Any) -> None:
    """Wait for a launch on device arrays that was given this ``stream=`` argument, and raise what it reports."""
    notes.refuse("a wait within the call")
    manager = views[0].owner.manager
    manager.wait(name, stream=choose(manager, views, stream))


def _buffers(views: Sequence[Any]) -> list[Any]:
    """What holds the memory of the arrays that are our own."""
    owners = {id(view.owner): view.owner for view in views if view.origin is None}
    return [owner.keep_alive() for owner in owners.values()]
