"""NumPy arrays."""

from __future__ import annotations

import numpy as np

from rocmkern.calls.view import View, view_of
from rocmkern.runtime.errors import masked_array_error


def view(name: str, x: np.ndarray) -> View:
    """View of the memory of an array; a masked one is refused, as its mask would be lost."""
    if isinstance(x, np.ma.MaskedArray):
        raise masked_array_error(name)
    return view_of(x)
