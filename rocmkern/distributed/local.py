"""`LocalRanks`: processes of this machine that are the ranks of a group, for tests, and to try things out.

Programs are started by torchrun. Here the processes stay, and are given one function after the other to call.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Literal

from rocmkern.runtime.errors import ArgumentError, RocmkernError

#: Seconds that a call may take.
DEADLINE = 300.0


class RankFailedError(RocmkernError, RuntimeError):
    """A function failed in a process of `LocalRanks`; the message is its traceback."""


class LocalRanks:
    """Processes on this machine, with a thread for arithmetic each; not on Windows.

    PyTorch records nothing for gradients in them: a function that wants some says ``with torch.enable_grad():``.

    Parameters
    ----------
    size : int
        Processes.
    backend : {"gloo", "nccl"}
        Of their groups. With "nccl", which is RCCL on AMD's cards, process n has card n as its current device.

    Raises
    ------
    ArgumentError
        No such backend, no process, or more processes than PyTorch sees cards.

    Examples
    --------
    >>> from rocmkern.distributed import LocalRanks
    >>> with LocalRanks(2) as ranks:  # doctest: +SKIP
    ...     parts = ranks.call("my_module:step", [(0,), (1,)])
    """

    def __init__(self, size: int, backend: Literal["gloo", "nccl"] = "gloo"):
        # deferred: optional dependency
        import torch
        from torch.distributed import TCPStore

        if size < 1:
            raise ArgumentError("size", str(size), "a number of processes of at least 1")
        if backend not in ("gloo", "nccl"):
            raise ArgumentError("backend", repr(backend), '"gloo" or "nccl"')
        if backend == "nccl" and size > torch.cuda.device_count():
            allowed = f'the cards that PyTorch sees at most, {torch.cuda.device_count()}, or backend="gloo"'
            raise ArgumentError("size", f"{size} processes", allowed)
        self.size = size
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._pipes: list[Any] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        # They look for modules where this process does, but do not run its program again.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for rank in range(size):
            here, there = multiprocessing.Pipe()
            given = map(str, (backend, rank, size, self._store.port, there.fileno()))
            command = [sys.executable, "-m", "rocmkern.distributed.local", *given]
            self.processes.append(subprocess.Popen(command, pass_fds=[there.fileno()], env=environment))
            there.close()
            self._pipes.append(here)

    def call(self, function: str, arguments: Sequence[tuple[Any, ...]], *, deadline: float = DEADLINE) -> list[Any]:
        """Call a function in the first processes at once.

        Parameters
        ----------
        function : str
            ``module:name``; it is called with ``group, *arguments``, where the group is that of the processes which
            take part.
        arguments : sequence of tuple
            For each process that takes part; they are pickled, and so are results.
        deadline : float
            Seconds.

        Returns
        -------
        list
            What each process returned.

        Raises
        ------
        RankFailedError
            One of them raised.
        """
        results = self.outcomes(function, arguments, deadline=deadline)
        for rank, result in enumerate(results):
            if isinstance(result, BaseException):
                raise RankFailedError(f"rank {rank}: {result}\n{getattr(result, 'remote', '')}") from result
        return results

    def outcomes(self, function: str, arguments: Sequence[tuple[Any, ...]], *, deadline: float = DEADLINE) -> list[Any]:
        """As `call`, with what was raised in place of a result; a process that has ended is an ``EOFError``."""
        self.begin(function, arguments)
        found: list[Any] = []
        for rank in range(len(arguments)):
            try:
                found.append(self.answer(rank, deadline))
            except EOFError as error:
                found.append(error)
        return found

    def begin(self, function: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        """Let the first processes call a function; each has an `answer`."""
        for pipe, given in zip(self._pipes, arguments, strict=False):
            with contextlib.suppress(BrokenPipeError):
                pipe.send((function, len(arguments), given))

    def answer(self, rank: int, deadline: float = DEADLINE) -> Any:
        """What a process returned or raised; ``EOFError`` where it has ended, or says nothing for so many seconds."""
        try:
            if self._pipes[rank].poll(deadline):
                return pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            raise EOFError(f"rank {rank} has ended") from None
        raise EOFError(f"rank {rank} gave no answer within {deadline} s")

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> LocalRanks:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _serve(backend: str, rank: int, size: int, port: int, pipe: Any) -> None:
    """What a process does: one call after the other, until the pipe is closed."""
    os.environ["ROCMKERN_NUM_THREADS"] = "1"
    # deferred: optional dependency
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=DEADLINE))
    # Groups have numbers in PyTorch, so all processes make all of them.
    groups = {count: dist.new_group(list(range(count)), backend=backend) for count in range(1, size)} | {size: None}
    while True:
        try:
            function, count, given = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # destructors of groups wait for processes that end at the same time
        try:
            module, _, name = function.partition(":")
            result = getattr(importlib.import_module(module), name)(groups[count], *given)
            answer = pickle.dumps(result)
        except Exception as error:
            answer = _pickled(error)
        pipe.send_bytes(answer)


def _pickled(error: Exception) -> bytes:
    """An error with its traceback, or with its words alone if it cannot be sent."""
    try:
        error.remote = traceback.format_exc()  # type: ignore[attr-defined]
        return pickle.dumps(error) if pickle.loads(pickle.dumps(error)) else b""
    except Exception:
        return pickle.dumps(RankFailedError(traceback.format_exc()))


if __name__ == "__main__":
    # By its name, so that errors are pickled as this module's.
    from rocmkern.distributed import local

    _rank, _size, _port, _descriptor = map(int, sys.argv[2:])
    local._serve(sys.argv[1], _rank, _size, _port, Connection(_descriptor))
