"""Exceptions that arrive between two instructions of chosen functions, at every place in turn.

What is raised is an asynchronous exception of CPython's own (`PyThreadState_SetAsyncExc`): it is asked for at the n-th
instruction and raised where the interpreter looks for it the next time, where it also raises KeyboardInterrupt.
So every n together are all places at which a signal can strike, and no others.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

_set = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set.argtypes = (ctypes.c_ulong, ctypes.py_object)
# A tracing function that does nothing, in C: the exception would be raised in one of Python.
_trace_no_more = ctypes.PYFUNCTYPE(None, *[ctypes.py_object] * 3)(("Py_IsInitialized", ctypes.pythonapi))


class Interrupt(BaseException):
    """What is raised."""


class _Trigger:
    """Reading ``pull`` asks for the exception.

    An attribute whose getter is written in C: the interpreter does not look between it and the return of the tracing
    function, in which the exception would be raised after a call.
    """

    _as_parameter_ = 0

    def __init__(self, ident: int):
        type(self).pull = property(functools.partial(_set, ident, Interrupt))  # type: ignore[attr-defined]


def interrupted(action: Callable[[], Any], where: Callable[[CodeType], bool], at: int) -> bool:
    """Call `action` with an exception asked for at instruction number `at` of the functions that `where` picks.

    Returns
    -------
    bool
        Whether there were so many instructions. `Interrupt`, if it gets out of the call, is caught.
    """
    count, trigger, fired = 0, type("_Trigger", (_Trigger,), {})(threading.get_ident()), False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count, fired
        frame.f_trace_opcodes = True
        if not where(frame.f_code):
            return trace
        if event == "opcode":
            if count == at:
                fired = True
                caller: FrameType | None = frame
                while caller is not None:
                    caller.f_trace = _trace_no_more
                    caller = caller.f_back
                trigger.pull  # noqa: B018
                return None
            count += 1
        return trace

    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks when tracing begins whether anybody wants instructions
    try:
        sys.settrace(trace)
        try:
            action()
        finally:
            sys.settrace(None)  # at the latest here an exception is raised that was asked for
    except Interrupt:
        pass
    return fired


def of_modules(*modules: ModuleType) -> Callable[[CodeType], bool]:
    """Picks the functions of some modules."""
    files = {module.__file__ for module in modules}
    return lambda code: code.co_filename in files


def everywhere(action: Callable[[], Any], where: Callable[[CodeType], bool], step: int = 1) -> Iterator[int]:
    """Call `action` again and again, interrupted one instruction later each time; yield the number after each."""
    at = 0
    while interrupted(action, where, at):
        yield at
        at += step
