"""Reference implementations in plain NumPy: the meaning of every operation, in float64.

``rocmkern.reference.<op>`` takes the array arguments of ``rocmkern.<op>`` as NumPy arrays of any floating dtype,
computes in float64 and returns float64; with ``compute=numpy.float32`` the same text computes in float32.
``rocmkern.reference.baseline.<op>`` is it in the precision that a kernel has, ``rocmkern.reference.roundings.<op>``
says what its roundings cost. Nothing here shares code with the kernels.

Each family of operations has its own in ``rocmkern/ops/<family>/reference.py``, which imports NumPy and other
references, and names in ``__all__`` the operations that they are the meaning of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.reference import baseline, roundings
from rocmkern.reference.gathered import gathered

__all__ = ["baseline", "roundings"]


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__") or name not in gathered("reference"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return gathered("reference")[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *gathered("reference")})
