"""Which rank is gone: every process gives a sign of life, and who waits in vain looks whose sign has stopped.

A connection that breaks says that something is wrong, not with whom: a rank that waits for one that waits for a dead
one sees the error of a living one. So a thread of each process writes a number that grows into the store that the
processes met by (PyTorch's, such as the TCPStore that torchrun hosts). A process that was killed or stopped does not.
Who finds a rank missing leaves a note there, and the others take its word.

All use of the store is in that thread, on a connection of its own: a store that hangs does not hang the caller.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

#: Seconds between two signs, and without one until a rank counts as missing.
INTERVAL, SILENCE = 0.5, 2.5
_PREFIX = "rocmkern/distributed"


class Heartbeat:
    """The sign of life of this process, and what it sees of others.

    Parameters
    ----------
    store : torch.distributed.Store
    rank : int
        Of this process, among all.

    Attributes
    ----------
    doing : str
        What this process does at the moment, for others to read.
    """

    rank: int
    doing: str

    def __init__(self, store: Any, rank: int):
        self.origin = store
        self._store = store.clone() if hasattr(store, "clone") else store
        self.rank, self.doing = rank, "nothing yet"
        self._watched: tuple[int, ...] = ()
        self._changed: dict[int, tuple[bytes, float]] = {}
        self._note: tuple[list[int], str] | None = None
        self._topic, self._told = "", ""
        self._answered = time.monotonic()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="rocmkern-heartbeat", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Give no more signs."""
        self._ended.set()
        self._wake.set()
        self._thread.join(1.0)

    def missing(self, ranks: Sequence[int], topic: str) -> tuple[list[int], str]:
        """Which of some ranks do not live, and why that is said; watches them for `SILENCE` seconds at most.

        Parameters
        ----------
        ranks : sequence of int
            Among all processes.
        topic : str
            Name of their group: what one finds is known to all that ask for it.

        Returns
        -------
        list of int
            Empty where all live.
        str
        """
        self._note, self._changed, self._topic = None, {}, topic
        self._watched = tuple(rank for rank in ranks if rank != self.rank)
        began = time.monotonic()
        self._wake.set()
        try:
            while time.monotonic() - began < SILENCE:
                if self._note is not None:
                    return self._note
                time.sleep(0.05)
            if self._answered < began:
                hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and 0 in ranks
                return ([0] if hosted else []), "the store that the processes met by does not answer"
            silent = [rank for rank in self._watched if self._changed.get(rank, (b"", 0.0))[1] <= began]
            if not silent:
                return [], "all give signs of life: " + ", ".join(map(self._words, self._watched))
            never = ", ".join(str(rank) for rank in silent if rank not in self._changed)
            why = f"no sign of life for {SILENCE} s"
            if never:
                why += f", and none before of {never}: who has made no call yet, and loads, say, has none"
            self._told = json.dumps([silent, why])
            self._wake.set()
            return silent, why
        finally:
            self._watched = ()

    def _words(self, rank: int) -> str:
        return f"rank {rank} is in {self._changed[rank][0].decode().partition(' ')[2]}"

    def _run(self) -> None:
        count = 0
        while not self._ended.is_set() and self._is_current():
            try:
                self._store.set(f"{_PREFIX}/beat/{self.rank}", f"{count} {self.doing}")
                self._look()
                self._answered = time.monotonic()
            except Exception:  # the store's host is gone; `missing` tells by the time of the last answer
                if self._ended.wait(INTERVAL) or not self._watched:
                    return
            count += 1
            self._wake.wait(0.1 if self._watched else INTERVAL)
            self._wake.clear()

    def _is_current(self) -> bool:
        """Whether the processes still have the group that they met for."""
        # deferred: optional dependency
        import torch.distributed as dist

        return dist.is_initialized()

    def _look(self) -> None:
        told, self._told = self._told, ""
        note = f"{_PREFIX}/missing/{self._topic}"
        if told:
            self._store.set(note, told)
        if self._watched and self._note is None and self._store.check([note]):
            silent, why = json.loads(self._store.get(note))
            self._note = silent, why
        for rank in self._watched:
            key = f"{_PREFIX}/beat/{rank}"
            if not self._store.check([key]):
                continue
            value, now = self._store.get(key), time.monotonic()
            before = self._changed.get(rank)
            if before is None:
                self._changed[rank] = value, 0.0  # the first look is no sign yet
            elif before[0] != value:
                self._changed[rank] = value, now


_of_process: dict[int, Heartbeat] = {}


def heartbeat() -> Heartbeat:
    """That of this process, begun when it is first asked for."""
    # deferred: optional dependency
    import torch.distributed as dist

    found, store = _of_process.get(os.getpid()), dist.distributed_c10d._get_default_store()
    if found is None or found.origin is not store:
        if found is not None:
            found.stop()
        found = _of_process[os.getpid()] = Heartbeat(store, dist.get_rank())
    return found
