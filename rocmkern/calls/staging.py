"""Host arrays in a launch on a GPU: copied to the device before, and copied back after where the kernel writes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from rocmkern.calls.view import View, view_of
from rocmkern.runtime.manager import default_manager


class Staging:
    """Device copies of the host arrays among a launch's arguments, as a context manager.

    An axis that a host array repeats (stride 0) is copied once and repeated on the device.

    Parameters
    ----------
    device : Device
        Where the kernel runs.
    """

    def __init__(self, device: Any):
        self._memory = default_manager(device)
        self._open = ExitStack()
        self._results: list[tuple[np.ndarray, Any]] = []

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.close()

    def on_device(self, kernel: Any, args: Sequence[Any]) -> list[Any]:
        """The arguments of a launch with every host array replaced."""
        parameters = [parameter for _, parameter in kernel.parameters]
        return [
            self._replace(a.numpy(), p) if p.kind == "tensor" and not a.on_device and a.size else a
            for a, p in zip(args, parameters, strict=True)
        ]

    def collect(self) -> None:
        """Wait for the launch and copy what it wrote back to host memory. Device arrays need no waiting."""
        for host, tensor in self._results:
            host[...] = tensor.to_numpy()
        self._results.clear()

    def _replace(self, host: np.ndarray, parameter: Any) -> View:
        if parameter.output:
            if parameter.partial:
                tensor = self._open.enter_context(self._memory.from_numpy(host))
            else:
                tensor = self._open.enter_context(self._memory.empty(host.shape, host.dtype, uninitialized=True))
            self._results.append((host, tensor))
            return view_of(tensor)
        once = host[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in host.strides)]
        tensor = self._open.enter_context(self._memory.from_numpy(once))
        return view_of(tensor).broadcast_to(host.shape)
