"""The processes of a group: what is sent among them, how long anyone waits, and who is to blame.

`Ranks` wraps a group of ``torch.distributed``, whatever its backend. Data goes by the group itself; the short messages
by which ranks agree go over gloo, so that a stream of a device never has to be waited for. All that is sent is counted
in one place, `Ranks.sent`.

Waiting is the backend's, with a deadline. gloo tells of a broken connection at once, so whoever finds that something is
wrong breaks its own ones, which wakes who waits for it; each then asks `heartbeat` who is missing. (Who has what that
rank gave, and waits for one that lives and does not come, does so until its own deadline.) NCCL and RCCL wait on a
stream, not in the host: there the next agreement finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from rocmkern.distributed.heartbeat import heartbeat
from rocmkern.runtime.errors import ArgumentError, DeviceUnavailableError, PeerError

#: Seconds that a rank waits for another one.
TIMEOUT = 60.0
#: Tag of a message that no rank sends; arrays have 0.
NEVER_SENT = 1

_known: weakref.WeakKeyDictionary[Any, Ranks] = weakref.WeakKeyDictionary()


def ranks_of(group: Any = None) -> Ranks:
    """The `Ranks` of a group of ``torch.distributed``; None stands for all processes."""
    # deferred: optional dependency
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise DeviceUnavailableError(
            "torch.distributed is not initialized: start the program with torchrun, and call "
            'torch.distributed.init_process_group("gloo") in it ("nccl" for GPUs, AMD\'s too)'
        )
    group = dist.group.WORLD if group is None else group
    found = _known.get(group)
    if found is None:
        found = _known[group] = Ranks(group)
    return found


def control_of(group: Any) -> Any:
    """gloo's own object for the short messages of a group: that of the group, or one for it.

    It is no group of ``torch.distributed``: those have numbers or names that count the groups of a process, so all of
    them would have to make it at the same time, also those that are in other groups.
    """
    # deferred: optional dependency
    import torch
    import torch.distributed as dist

    if "cpu:gloo" in dist.get_backend_config(group).split(","):
        return group._get_backend(torch.device("cpu"))
    store = dist.PrefixStore(f"rocmkern {group.group_name}", dist.distributed_c10d._get_default_store())
    waiting = timedelta(seconds=TIMEOUT)
    return dist.ProcessGroupGloo(store, dist.get_rank(group), dist.get_world_size(group), waiting)


class Ranks:
    """A group of processes, seen from one of them.

    Attributes
    ----------
    rank, size : int
        Number of this process in the group, and of processes.
    sent : int
        Bytes of arrays that this process has sent to others.
    """

    rank: int
    size: int

    def __init__(self, group: Any):
        # deferred: optional dependency
        import torch.distributed as dist

        self._dist, self._group = dist, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ArgumentError("group", "a group without this process", "a group that this process is in")
        self._members = dist.get_process_group_ranks(group)
        #: By kinds of devices: a group may have gloo for the host's memory and NCCL for cards.
        self._backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
        self._control = control_of(group)
        self._agreed: set[int] = set()
        self._connected: set[Any] = set()
        self._calls, self._timeout = 0, TIMEOUT
        self._failed: PeerError | None = None
        self.sent: int = 0

    # ------------------------------------------------------------------------------------------------------ agreement

    @contextlib.contextmanager
    def call(self, operation: str, timeout: float | None) -> Iterator[None]:
        """Around an operation: its name for others, its deadline, and a word to them if it refuses its arguments."""
        if self._failed is not None:
            raise PeerError(self._failed.ranks, self.size, self._failed.why)
        beat = heartbeat()
        self._calls += 1
        self._timeout = TIMEOUT if timeout is None else timeout
        beat.doing = f"{operation} (call {self._calls} of the group)"
        try:
            yield
        finally:
            beat.doing = f"no operation, after {operation} (call {self._calls} of the group)"

    def refuse(self, error: Exception) -> None:
        """Tell the others, who wait in `agree`, that this rank goes no further."""
        with contextlib.suppress(PeerError, ArgumentError):
            self.agree({"refused": str(error)}, ())

    def agree(self, signature: Mapping[str, Any], numbers: Sequence[int], *, once: bool = False) -> list[list[int]]:
        """See that all ranks make the same call, by one message of some numbers.

        Parameters
        ----------
        signature : mapping
            What must be the same everywhere; names of arguments and their values.
        numbers : sequence of int
            Whatever else the others are to know; as many for each operation.
        once : bool
            Do not ask again for a signature that all have agreed on. There are no numbers then.

        Returns
        -------
        list of list of int
            The numbers of each rank; empty lists where nothing was asked.

        Raises
        ------
        ArgumentError
            Something differs: the same error on all ranks.
        PeerError
            A rank refused its arguments, or does not come.
        """
        # deferred: optional dependency
        import torch

        if self.size == 1:
            return [list(numbers)]
        text = json.dumps(signature, sort_keys=True, default=str).encode()
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
        if once and digest in self._agreed:
            return [[]] * self.size
        # As many numbers whatever the operation: two ranks may be in different ones.
        mine = torch.tensor([digest, len(text), *numbers, *[0] * (2 - len(numbers))], dtype=torch.int64)
        all_of_them = self._gather_small(mine)
        if any(int(theirs[0]) != digest for theirs in all_of_them):
            self._explain(text, [int(theirs[1]) for theirs in all_of_them])
        if once:
            self._agreed.add(digest)
        return [theirs[2 : 2 + len(numbers)].tolist() for theirs in all_of_them]

    def _gather_small(self, mine: Any) -> list[Any]:
        # deferred: optional dependency
        import torch

        found = [torch.empty_like(mine) for _ in range(self.size)]
        with self._blame():
            work = self._control.allgather([found], [mine])
            work.wait(timedelta(seconds=self._timeout))
        return found

    def _explain(self, text: bytes, lengths: list[int]) -> None:
        """Raise what differs, which takes another message."""
        # deferred: optional dependency
        import torch

        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        gathered = zip(self._gather_small(padded), lengths, strict=True)
        signatures = [json.loads(bytes(theirs[:length].tolist())) for theirs, length in gathered]
        refused = [rank for rank, theirs in enumerate(signatures) if "refused" in theirs]
        if refused:
            words = signatures[refused[0]]["refused"]
            raise PeerError(tuple(refused), self.size, f"refused its arguments ({words}); the group can still be used")
        names = dict.fromkeys(name for theirs in signatures for name in theirs)
        for name in names:
            values: dict[str, list[int]] = {}
            for rank, theirs in enumerate(signatures):
                values.setdefault(json.dumps(theirs.get(name)), []).append(rank)
            if len(values) > 1:
                given = ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in values.items())
                raise ArgumentError(name, given, "the same on all ranks of the group")

    # ------------------------------------------------------------------------------------------------------- transfer

    def check_place(self, name: str, x: Any) -> None:
        """Refuse a tensor that the backend of the group does not reach."""
        # deferred: optional dependency
        import torch

        kind, backend = x.device.type, self._backends.get(x.device.type)
        given = f"a tensor on {x.device}"
        if backend is None or (backend == "gloo" and kind != "cpu"):
            reached = " and ".join(
                "host memory" if kind == "cpu" else f"{kind} devices with {backend}"
                for kind, backend in self._backends.items()
                if kind == "cpu" or backend != "gloo"
            )
            raise ArgumentError(name, given, f"what the backends of the group reach: {reached}")
        if kind != "cpu" and x.device.index != torch.cuda.current_device():
            allowed = f"this rank's own device, cuda:{torch.cuda.current_device()}: see torch.cuda.set_device"
            raise ArgumentError(name, given, allowed)

    def connect(self, device: Any) -> None:
        """Use the group on a device by all ranks, once: to NCCL the first message may not be one among some of them."""
        # deferred: optional dependency
        import torch

        if self.size > 1 and self._on_stream(device) and device not in self._connected:
            with self._blame():
                self._dist.all_reduce(torch.zeros(1, device=device), group=self._group)
            self._connected.add(device)

    def _on_stream(self, device: Any) -> bool:
        return self._backends.get(device.type) != "gloo"

    def exchange(self, sends: Sequence[tuple[int, Any]], receives: Sequence[tuple[int, Any]]) -> Transfer:
        """Begin to send arrays to ranks, and to fill others from ranks: contiguous torch tensors."""
        dist, members = self._dist, self._members
        operations = [dist.P2POp(dist.isend, x, members[to], group=self._group) for to, x in sends if x.numel()]
        operations += [dist.P2POp(dist.irecv, x, members[of], group=self._group) for of, x in receives if x.numel()]
        self.sent += sum(x.numel() * x.element_size() for _, x in sends)
        on_stream = bool(operations) and self._on_stream(operations[0].tensor.device)
        with self._blame():
            return Transfer(self, dist.batch_isend_irecv(operations) if operations else [], on_stream)

    def all_to_all(self, blocks: Sequence[Any], received: Sequence[Any]) -> Transfer:
        """Begin to send block n to rank n, and to fill block n of `received` from it: contiguous torch tensors."""
        self.connect(blocks[self.rank].device)
        received[self.rank].copy_(blocks[self.rank])
        others = [rank for rank in range(self.size) if rank != self.rank]
        return self.exchange([(r, blocks[r]) for r in others], [(r, received[r]) for r in others])

    def all_gather(self, x: Any, lengths: Sequence[int]) -> Any:
        """The arrays of all ranks behind one another; the first axes have these lengths."""
        # deferred: optional dependency
        import torch

        whole = torch.empty((sum(lengths), *x.shape[1:]), dtype=x.dtype, device=x.device)
        parts = list(whole.split(list(lengths)))
        self.all_to_all([x.contiguous()] * self.size, parts).wait()
        return whole

    def sum_scattered(self, x: Any, lengths: Sequence[int]) -> Any:
        """The sum over ranks, in their order, of their arrays; of it this rank's part of the first axis."""
        # deferred: optional dependency
        import torch

        shape = (self.size, lengths[self.rank], *x.shape[1:])
        received = torch.empty(shape, dtype=x.dtype, device=x.device)
        self.all_to_all(list(x.contiguous().split(list(lengths))), list(received)).wait()
        return received.sum(0)

    @contextlib.contextmanager
    def _blame(self) -> Iterator[None]:
        """Turn what a backend says of a broken connection or of a deadline into an error with a rank."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, PeerError):
                raise
            waited = time.monotonic() - began
            self._break_off()
            missing, why = heartbeat().missing(self._members, ",".join(map(str, self._members)))
            if not missing:
                late = waited >= self._timeout * 0.9
                why = f"{f'did not come within {self._timeout:g} s' if late else 'broke a connection'}; {why}"
            ranks = tuple(self._members.index(rank) for rank in missing if rank in self._members)
            why += "; the group cannot be used any more: end these processes and start them again"
            self._failed = PeerError(ranks, self.size, why)
            raise self._failed from error

    def _break_off(self) -> None:
        """Break the connections of this process: who waits for it need not wait until the deadline.

        A wait that is over at once does that in gloo, to the connections with all ranks; but not one for a rank whose
        connection is broken already, so one of the others is waited for then. Arrays that others were to fill are free
        afterwards. What is waited for has a tag of its own: an array of another size that comes for it would end this
        process.
        """
        # deferred: optional dependency
        import torch

        for rank in range(self.size):
            if rank != self.rank:
                with contextlib.suppress(RuntimeError):
                    self._control.recv([torch.empty(1)], rank, NEVER_SENT).wait(timedelta(milliseconds=1))


class Transfer:
    """What is on its way. The arrays must stay as they are until `wait` has returned."""

    def __init__(self, ranks: Ranks, works: list[Any], on_stream: bool):
        self._ranks, self._works, self._on_stream = ranks, works, on_stream

    def wait(self) -> None:
        """Wait for all of it; on a device, let its stream wait."""
        ranks, works = self._ranks, self._works
        with ranks._blame():
            for work in works:
                if self._on_stream:
                    work.wait()
                else:
                    work.wait(timedelta(seconds=ranks._timeout))
        self._works = []


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
