"""From checked arguments to a launch: on which target, on whose stream, staged or in place.

Arrays are views in the order of the kernel's axes with any strides; they were checked by the public functions. Every
family of operations has its own ``launch.py`` with one function per kernel: configuration, grid, arguments.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rocmkern.calls import recording as _recording
from rocmkern.calls import results as _results
from rocmkern.calls import streams as _streams
from rocmkern.calls import view as _view
from rocmkern.calls.staging import Staging
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View, view_of
from rocmkern.runtime.errors import IndexOutOfRangeError, RocmkernError
from rocmkern.runtime.manager import DeviceTensor, default_manager
from rocmkern.targets import Target, current_target, target_of
from rocmkern.tile.language.kernel import Config, Kernel

#: Where kernels write that an index is wrong if nobody reads it.
_UNREAD_WORD = view_of(np.zeros(1, np.float32))


def target_for(view: View) -> Target:
    """Where an operation on this array runs: on its own device, or on the chosen target for host memory."""
    place = view.place
    return current_target() if isinstance(place, str) or place.host_accessible else target_of(place)


def stream_of(view: View, stream: Stream) -> Stream:
    """The stream of all launches of an operation, of which `view` is an argument; ``stream`` is what was asked for.

    A later launch may see nothing but inner results and a new result, and would go elsewhere by itself.
    """
    return _streams.choose(view.owner.manager, [view], stream) if view.on_device else stream


def bind(kernel: Kernel, given: Mapping[str, Any]) -> list[Any]:
    """The arguments of a kernel in their order, tensors that are None or not given as absent ones."""
    args, missing = [], set()
    for name, parameter in kernel.parameters:
        value = given.get(name)
        if value is None:
            if not parameter.absent:
                missing.add(name)
                continue
            beside = given.get(parameter.absent)
            value = _view.absent(parameter.ndim, parameter.absent if beside is None else beside.dtype)
        args.append(value)
    known = _names(kernel)
    if missing or not given.keys() <= known:
        wrong = missing | (given.keys() - known)
        raise RocmkernError(f"launch of {kernel.__name__}: arguments unknown or missing: {', '.join(sorted(wrong))}")
    return args


@functools.cache
def _names(kernel: Kernel) -> frozenset[str]:
    return frozenset(name for name, _ in kernel.parameters)


def launch(
    target: Target, kernel: Kernel, cfg: Config, grid: tuple[int, int, int], given: Mapping[str, Any], stream: Stream
) -> None:
    """Launch a kernel with arguments by the names of its parameters (see `bind`); nothing where the grid is empty."""
    if not all(grid):
        return
    args = bind(kernel, given)
    if target.device is None:
        target.launch(kernel, cfg, grid, args)
        return
    manager = default_manager(target.device)
    with Staging(target.device) as staging:
        args = staging.on_device(kernel, args)
        views = [a for a in args if isinstance(a, View) and a.on_device]
        asked = _streams.choose(manager, views, stream)
        handle = _streams.launched_on(manager, asked)
        if handle != asked:
            _recording.instead_of(asked)
        _streams.ordered(
            lambda: target.launch(kernel, cfg, grid, args, handle), manager, views, handle, kernel.__name__, asked
        )
        staging.collect()


def error_word(
    target: Target,
    operation: str,
    indices: str,
    of: str,
    consequence: str = "what it should have brought is 0 in the result",
) -> View:
    """Where a kernel writes 1 if a number of argument ``indices`` is no index of argument ``of``.

    On a GPU it is an error word, which the next wait looks at. Elsewhere indices are checked before a launch.
    """

    def make_error() -> IndexOutOfRangeError:
        return IndexOutOfRangeError(
            f"{operation}: {indices}, in device memory, has a number that is no index of {of}; {consequence}"
        )

    return error_word_for(target, f"{operation}: {indices}", make_error)


def error_word_for(target: Target, kind: str, make_error: Callable[[], RocmkernError]) -> View:
    """Where a kernel writes 1 for a kind of error that the next wait raises; off GPUs, an array of no consequence."""
    if target.device is None:
        _recording.keep(_UNREAD_WORD.owner)
        return _UNREAD_WORD
    manager = default_manager(target.device)
    word = manager.error_word(kind, make_error)
    tensor = DeviceTensor.from_foreign(word, word.address, (1,), np.float32, device=target.device)
    return view_of(tensor)


def constant(target: Target, array: np.ndarray) -> View:
    """A read-only array that many calls read, as kernels take it: on a GPU one copy of it stays in device memory."""
    if target.device is None:
        _recording.keep(array)
        return view_of(array)
    with _recording.constant_made():
        tensor = default_manager(target.device).constant(array)
    _recording.keep(tensor)
    return view_of(tensor)


def counters(shape: tuple[int, ...], target: Target, stream: Stream) -> View:
    """int32 zeros with which the blocks of a launch on `stream` count, and which they leave as zeros."""
    if target.device is None:
        zeros = view_of(np.zeros(shape, np.int32))
        recorder = _recording.active()
        if recorder is not None:
            recorder.allocated(zeros, None, zeros=True)
        return zeros
    manager = default_manager(target.device)
    handle = _streams.launched_on(manager, _streams.choose(manager, (), stream))
    tensor = manager.counters(math.prod(shape), handle)
    _recording.count_with(tensor)
    return view_of(tensor)[: math.prod(shape)].reshape(shape)


def temporary(shape: tuple[int, ...], dtype: np.dtype, beside: View, target: Target, stream: Stream) -> DeviceTensor:
    """A new `DeviceTensor` for inner results of an operation, its content undefined; to be closed after the launches.

    It comes from the manager's pool: counted by the cap, and reused by the next call. `beside` is an argument of the
    operation, on whose device (or on the target's, for host memory) it lies.
    """
    if beside.on_device:
        return _results.temporary(shape, dtype, beside, stream)
    tensor = default_manager("host" if target.device is None else target.device).empty(shape, dtype, uninitialized=True)
    recorder = _recording.active()
    if recorder is not None:
        recorder.allocated(view_of(tensor), beside)
    return tensor


@contextmanager
def inner_result(
    shape: tuple[int, ...], dtype: np.dtype, beside: View, target: Target, stream: Stream
) -> Iterator[View]:
    """A `temporary` as kernels take it, closed behind the ``with`` block."""
    with temporary(shape, dtype, beside, target, stream) as tensor:
        view = view_of(tensor)
        yield view
        _recording.released(view)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
