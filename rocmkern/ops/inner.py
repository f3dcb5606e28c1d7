"""Inner results of an operation with several launches, and arrays in shapes that launches want."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from rocmkern.calls.arguments import INT32, INTEGERS
from rocmkern.calls.axes import rows_of
from rocmkern.calls.launch import inner_result, stream_of, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.runtime.geometry import reshape_strides


class Inner:
    """Memory for inner results of a call, which is given back at the end of a ``with`` block; beside an argument."""

    def __init__(self, beside: View, stream: Stream):
        self.target = target_for(beside)
        self.stream = stream_of(beside, stream)
        self._beside = beside
        self._stack = ExitStack()

    def __enter__(self) -> Inner:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)  # behind an error nothing is copied

    def room(self, shape: tuple[int, ...], dtype: np.dtype) -> View:
        """New memory."""
        return self._stack.enter_context(inner_result(shape, dtype, self._beside, self.target, self.stream))

    def reshaped(self, view: View, shape: tuple[int, ...]) -> View:
        """The elements in another shape; a copy of them where their strides allow no view, int32 of integers."""
        strides = reshape_strides(view.shape, view.strides, shape, view.itemsize)
        if strides is not None:
            return view.part(0, shape, strides)
        copy = self.room(view.shape, INT32[0] if view.dtype in INTEGERS else view.dtype)
        self._copy(view, copy)
        return copy.reshape(shape)

    def written(
        self, result: View, shape: tuple[int, ...], dtype: np.dtype | None = None, *, filled: bool = False
    ) -> View:
        """Where to write a result in another shape or dtype: another place, if need be, from which it is copied.

        ``filled``: with what the result holds.
        """
        strides = reshape_strides(result.shape, result.strides, shape, result.itemsize)
        if strides is not None and dtype in (None, result.dtype):
            return result.part(0, shape, strides)
        room = self.room(result.shape, dtype or result.dtype)
        if filled:
            self._copy(result, room)
        self._stack.push(lambda kind, *_: None if kind else self._copy(room, result))
        return room.reshape(shape)

    def _copy(self, source: View, into: View) -> None:
        # deferred: start-up
        from rocmkern.ops.rows.launch import launch_copy_integers, launch_copy_rows

        copy = launch_copy_integers if source.dtype in INTEGERS else launch_copy_rows
        for some, some_into in rows_of(source, into):
            copy(some, some_into, self.stream)
