"""Work in a forked child that may crash, exit or hang without harm: whatever ends it is named, and the rest goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.lock import DEFAULT_TIMEOUT_S
from rocmkern.runtime.probe import suspect

Job = TypeVar("Job")
# A killed process that the driver holds may not end.
END_S = 10.0


@dataclass(frozen=True)
class Ended:
    """How a job ended its process; the text says it."""

    text: str


def can_fork() -> bool:
    """Whether this system can fork processes."""
    return hasattr(os, "fork")


def in_child(
    jobs: Sequence[Job],
    do: Callable[[Job, Callable[[DeviceInfo | None], None]], Any],
    deadline_of: Callable[[Job], float],
) -> Iterator[tuple[Job, Any]]:
    """Do jobs one after another in one forked child; gives each with its result, as it comes.

    Parameters
    ----------
    jobs : sequence
    do : callable
        ``do(job, begin)`` returns what can be pickled. It calls ``begin(info)`` when it holds what it waited for, such
        as the lock of the device `info` (None: the host): from then on the deadline counts.
    deadline_of : callable
        Seconds for a job.

    Yields
    ------
    tuple
        A job, and its result or how it `Ended` the child. That one is the last: the child and its memory are gone.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_serve, args=(sending, jobs, do), daemon=True)
    child.start()
    sending.close()
    try:
        for job in jobs:
            device, limit = None, DEFAULT_TIMEOUT_S + deadline_of(job)
            while True:
                message = _next(receiving, child, limit)
                if message is None:
                    yield job, _hung(child, device, limit)
                    return
                kind, content = message
                if kind == "begun":
                    device, limit = content, deadline_of(job)
                elif kind == "ended":
                    child.join(END_S)
                    yield job, Ended(f"the process {status_text(child.exitcode)}")
                    return
                else:
                    yield job, content
                    break
    finally:
        child.kill()
        child.join(END_S)
        receiving.close()


def _next(receiving: Connection, child: Any, limit: float) -> tuple[str, Any] | None:
    """The next message, ``("ended", None)`` where there will be none, None after the limit."""
    if not wait([receiving, child.sentinel], limit):
        return None
    # What a child sent before it ended counts first.
    with contextlib.suppress(EOFError, OSError):
        if receiving.poll():
            return receiving.recv()
    return "ended", None


def _hung(child: Any, device: DeviceInfo | None, limit: float) -> Ended:
    """Kill the child, and mark the device that it may have hung on."""
    child.kill()
    child.join(END_S)
    text = f"did not finish within {limit:g} s and was killed"
    if device is not None:
        suspect.mark(device, f"a case {text}")
        text += (
            f"; {device} is marked as suspect: nobody uses it until `rocmkern doctor` has found that it answers. "
            "Ending a hung kernel of an AMD card can reset the whole card, and with it a display that it drives"
        )
    return Ended(text)


def _serve(sending: Connection, jobs: Sequence[Job], do: Callable[..., Any]) -> None:
    """The child's whole life."""
    # At Ctrl-C the parent ends the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = 1
    try:
        for job in jobs:
            sending.send(("done", do(job, lambda info: sending.send(("begun", info)))))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Whatever happens, this process must not go on with what its parent does.
        os._exit(status)


def status_text(status: int | None) -> str:
    """How a process ended, in words, from its exit status; a negative one is a signal's number."""
    if status is None:
        return "has not ended"
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
