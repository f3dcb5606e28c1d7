"""What a target is: where kernels are compiled and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rocmkern.runtime.device import Device
from rocmkern.runtime.errors import ArgumentError

if TYPE_CHECKING:
    from rocmkern.tile.language.kernel import Config, Kernel


class Target(Protocol):
    """Compiles kernels for one architecture and runs them.

    Attributes
    ----------
    name : str
        ``"hip"``, ``"cuda"``, ``"cpu"`` or ``"python"``.
    arch : str
        The architecture: what a kernel's configuration is told.
    device : Device or None
        The GPU; None where kernels run in host memory.
    parallelism : int
        Small blocks that run at the same time.
    """

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str: ...

    @property
    def device(self) -> Device | None: ...

    @property
    def parallelism(self) -> int: ...

    def launch(self, kernel: Kernel, cfg: Config, grid: Sequence[int], args: Sequence[Any], stream: Any = None) -> None:
        """Run a kernel.

        Parameters
        ----------
        kernel : callable
            Marked by `rocmkern.tile.kernel`.
        cfg : Config
            Its configuration, for this target's architecture.
        grid : (int, int, int)
            Blocks along each axis.
        args : sequence
            Its arguments in their order: tensors as arrays or `View`, numbers.
        stream : optional
            Of a GPU: a stream, or the handle of one; the manager's by default. Then nobody waits for the end. In host
            memory there are no streams, and the launch returns when all blocks have run.
        """


def refuse_stream(stream: Any) -> None:
    """Refuse a stream where kernels run in host memory."""
    if stream is not None:
        raise ArgumentError("stream", repr(stream), "None: kernels in host memory run in no stream")
