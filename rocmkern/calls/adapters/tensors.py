"""Our own tensors, in device memory or in that of the host."""

from __future__ import annotations

from rocmkern.calls.view import View, view_of
from rocmkern.runtime.manager import DeviceTensor


def view(name: str, x: DeviceTensor) -> View:
    """View of the memory of a tensor; `ClosedError` where it was closed."""
    return view_of(x)
