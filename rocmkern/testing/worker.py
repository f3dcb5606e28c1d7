"""The process that runs GPU cases for pytest: it can be killed when a kernel hangs, and may crash without harm.

One worker serves all cases of a pytest process. It is told what to call, ``"package.module:function"`` with arguments
that can be pickled, and answers with the result or with how it failed. Meanwhile it reports what it does, above all the
name of each kernel before its launch. A call has a deadline: when it is over, the worker is killed, which frees the
lock of its device, and the device is marked as suspect. After a crash or a kill the next call gets a new worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from rocmkern.matrix.forked import status_text
from rocmkern.matrix.fuzz import FuzzFailure
from rocmkern.matrix.runner import CaseFailure
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import (
    DeadlineError,
    DeviceUnavailableError,
    DriverError,
    LockTimeoutError,
    MatrixError,
    RocmkernError,
)
from rocmkern.runtime.lock import DEFAULT_TIMEOUT_S
from rocmkern.runtime.probe import suspect
from rocmkern.targets.launches import Watcher, watching

DEFAULT_DEADLINE_S = 300.0
# Imports and the first look at a driver; a machine may be busy.
START_S = 120.0
END_S = 10.0
# Of what a worker has printed, the last characters are shown.
SHOWN = 6000

_MAIN = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rocmkern.testing.worker import serve; serve()"
_LENGTH = struct.Struct("<Q")
# What these say is all there is to say; of other errors the traceback is shown.
_SHOWN_AS_THEMSELVES = (CaseFailure, FuzzFailure, MatrixError, LockTimeoutError, DeviceUnavailableError)


class WorkerError(RocmkernError, AssertionError):
    """A call in the worker failed by an error that is not shown as itself.

    Attributes
    ----------
    kind : str
        Name of the exception's class, ``"hang"`` or ``"crash"``.
    kernel : str or None
        The kernel that was launched last within the call.
    """

    kind: str
    kernel: str | None

    def __init__(self, kind: str, message: str, kernel: str | None = None):
        self.kind, self.kernel = kind, kernel
        super().__init__(message)


@dataclass(frozen=True)
class _Failure:
    """How a call failed, as the worker sends it.

    Attributes
    ----------
    error : Exception or None
        The exception, where it can be sent.
    kind, message, text : str
        Its class, its message, and its traceback.
    stuck, lost : bool
        Work on the device does not end; the driver reported an error, after which a process may be unusable.
    """

    error: Exception | None
    kind: str
    message: str
    text: str
    stuck: bool
    lost: bool


class Worker:
    """The parent's end: starts a process when one is needed.

    Parameters
    ----------
    start_s : float
        Seconds that a new process, and waiting beside a lock, may take.
    """

    def __init__(self, start_s: float = START_S):
        self._start_s = start_s
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: queue.Queue[Any] = queue.Queue()
        self._log: IO[bytes] | None = None
        self._log_start = 0
        self._device: DeviceInfo | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process, if there is one."""
        return None if self._process is None else self._process.pid

    def call(self, function: str, *arguments: Any, deadline_s: float = DEFAULT_DEADLINE_S, what: str = "") -> Any:
        """Call a function in the worker and return its result.

        Parameters
        ----------
        function : str
            ``"package.module:function"``.
        *arguments
            What can be pickled.
        deadline_s : float
            Seconds from the last `progress` of the call; none are counted while it waits for a device's lock.
        what : str
            What is done, in words, for errors; default: the function.

        Raises
        ------
        WorkerError
            The call hung, or the process died, or its exception cannot be shown as itself; the message has all of
            its text. Exceptions of this library and of the matrix are raised as they are.
        """
        what = what or function
        self._ensure_started()
        assert self._process is not None and self._process.stdin is not None
        self._log_start = self._log_size()
        kernel: str | None = None
        try:
            _send(self._process.stdin, (function, arguments))
        except OSError:
            # It died between two calls: nobody's fault but its own.
            raise self._crash(what, None) from None
        # Until the call is heard of, the process is still busy with its start.
        limit = deadline_s + self._start_s
        while True:
            try:
                kind, content = self._messages.get(timeout=limit)
            except queue.Empty:
                raise self._hang(what, f"did not finish within {limit:g} s", kernel) from None
            if kind == "progress":
                limit = deadline_s
            elif kind == "waiting":
                limit = DEFAULT_TIMEOUT_S + self._start_s
            elif kind == "device":
                self._device = content
            elif kind == "launch":
                kernel = content
            elif kind == "end":
                raise self._crash(what, kernel)
            elif kind == "failed":
                self._raise(content, what, kernel)
            else:
                return content

    def printed(self) -> str:
        """What the worker has printed since the last call began."""
        if self._log is None:
            return ""
        self._log.seek(self._log_start)
        text = self._log.read().decode(errors="replace").strip()
        return text if len(text) <= SHOWN else f"...{text[-SHOWN:]}"

    def close(self) -> None:
        """End the process; it is killed if it does not end by itself."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            _kill(process)
        if process.stdout is not None:
            process.stdout.close()

    def _ensure_started(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        if self._log is None:
            self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as this object
        self._messages, self._device = queue.Queue(), None
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        reader = threading.Thread(target=_read_all, args=(self._process.stdout, self._messages), daemon=True)
        reader.start()

    def _log_size(self) -> int:
        return 0 if self._log is None else os.fstat(self._log.fileno()).st_size

    def _raise(self, failure: _Failure, what: str, kernel: str | None) -> None:
        if failure.stuck:
            raise self._hang(what, failure.message, kernel)
        if failure.lost:
            self.close()
        if failure.error is not None:
            raise failure.error
        raise WorkerError(failure.kind, failure.text, kernel)

    def _hang(self, what: str, how: str, kernel: str | None) -> WorkerError:
        """Kill the process and mark its device."""
        process, device, self._process = self._process, self._device, None
        assert process is not None
        launched = f"the kernel launched last is {kernel}" if kernel else "no kernel was launched"
        lines = [f"{what} {how}; {launched}"]
        ended = _kill(process)
        if device is None:
            lines.append(f"the worker process {process.pid} was killed")
        else:
            suspect.mark(device, f"{what} {how}; {launched}")
            lines += [
                f"the worker process {process.pid} was killed and the lock of {device} is free. The device is marked "
                "as suspect: nobody uses it until `rocmkern doctor` has found that it answers",
                "ending a hung kernel of an AMD card can reset the whole card, and with it a display that it drives",
            ]
        if not ended:
            lines.append(f"process {process.pid} has not ended: the driver holds it, and perhaps the lock with it")
        return WorkerError("hang", self._with_printed("\n".join(lines)), kernel)

    def _crash(self, what: str, kernel: str | None) -> WorkerError:
        """Say how the process ended."""
        process, self._process = self._process, None
        assert process is not None
        try:
            status = process.wait(END_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            status = None
        how = "ended" if status is None else status_text(status)
        launched = f"the kernel launched last is {kernel}" if kernel else "no kernel was launched"
        message = f"the worker process {process.pid} {how} while it ran {what}; {launched}"
        return WorkerError("crash", self._with_printed(message), kernel)

    def _with_printed(self, message: str) -> str:
        printed = self.printed()
        return f"{message}\nit printed:\n{printed}" if printed else message


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill a process; whether it has ended."""
    process.kill()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _send(file: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def _receive(file: IO[bytes]) -> Any:
    """The next message; EOFError at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    data = file.read(_LENGTH.unpack(head)[0])
    return pickle.loads(data)


def _read_all(file: IO[bytes], messages: queue.Queue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError, ValueError):
        while True:
            messages.put(_receive(file))
    messages.put(("end", None))


# The worker's own end


class _Reports:
    """What the worker tells its parent; nothing in any other process."""

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def send(self, kind: str, content: Any = None) -> None:
        if self.file is not None:
            with self._lock:
                _send(self.file, (kind, content))


_reports = _Reports()


def progress() -> None:
    """In a worker: the deadline of the call begins anew."""
    _reports.send("progress")


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """In a worker: wait for a lock; the deadline begins anew behind the block."""
    _reports.send("waiting")
    yield
    _reports.send("progress")


def using_device(info: DeviceInfo) -> None:
    """In a worker: say which device would be to blame."""
    _reports.send("device", info)


def serve() -> None:
    """Take calls from the parent until it goes away. The process's whole life."""
    # Nobody else writes to the parent: what is printed goes where errors go.
    _reports.file = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    faulthandler.enable(2)
    # At Ctrl-C the parent ends the session, and us by the end of our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls: queue.Queue[tuple[str, tuple] | None] = queue.Queue()
    busy = threading.Event()
    threading.Thread(target=_take_calls, args=(sys.stdin.buffer, calls, busy), daemon=True).start()

    with watching(Watcher(before=lambda kernel: _reports.send("launch", kernel))):
        while (job := calls.get()) is not None:
            _answer(*job, busy.clear)


def _take_calls(file: IO[bytes], calls: queue.Queue[Any], busy: threading.Event) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            job = _receive(file)
            busy.set()
            calls.put(job)
    calls.put(None)
    if busy.is_set():
        # The parent died while we work for it: nobody would wait for us, and a hung kernel would keep us for ever.
        os._exit(1)


def _answer(function: str, arguments: tuple, done: Callable[[], None]) -> None:
    """Do a job; `done` is called before it is told, for the parent may go away as soon as it knows."""
    try:
        call = _find(function)
        _reports.send("progress")  # what is imported for it took none of its time
        result = call(*arguments)
        sys.stdout.flush()
        done()
        _reports.send("done", result)
    except (Exception, SystemExit) as error:
        sys.stdout.flush()
        done()
        _reports.send("failed", _failure(error))


def _find(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _failure(error: BaseException) -> _Failure:
    sent = error if isinstance(error, _SHOWN_AS_THEMSELVES) and _can_be_sent(error) else None
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    stuck = any(isinstance(each, DeadlineError) and not isinstance(each, LockTimeoutError) for each in chain)
    lost = any(isinstance(each, DriverError) for each in chain)
    return _Failure(sent, type(error).__name__, str(error), text, stuck, lost)


def _can_be_sent(error: BaseException) -> bool:
    try:
        return str(pickle.loads(pickle.dumps(error))) == str(error)
    except Exception:
        return False


_shared: Worker | None = None


def shared_worker() -> Worker:
    """The worker of this process."""
    global _shared
    if _shared is None:
        _shared = Worker()
    return _shared


def close_shared_worker() -> None:
    """End it, if there is one."""
    global _shared
    worker, _shared = _shared, None
    if worker is not None:
        worker.close()
