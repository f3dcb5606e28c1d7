"""Gradients of rotary position embedding in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.rotary.reference import frequencies, rope

__all__ = ["rope_backward"]


def rope_backward(
    dout: np.ndarray,
    positions: np.ndarray,
    *,
    block_positions: np.ndarray | None = None,
    base: float | None = None,
    rotary_dim: int | None = None,
    scaling: Any = None,
    freq_factors: np.ndarray | None = None,
    inverse: bool = False,
    compute: type[np.floating[Any]] = np.float64,
    **options: Any,
) -> np.ndarray:
    """Pairs turned by the negative angle, and multiplied by the factor of cosine and sine as `rope` multiplies them.

    Arguments are those of `rope`.
    """
    scaled = dict(base=base, scaling=scaling, freq_factors=freq_factors)
    turned = rope(
        dout, positions, block_positions=block_positions, rotary_dim=rotary_dim, inverse=not inverse, compute=compute,
        **scaled, **options,
    )  # fmt: skip
    dim = dout.shape[-1] if rotary_dim is None else rotary_dim
    # The inverse divides by the factor.
    factor = frequencies(dim if block_positions is None else dim // 2, **scaled)[1]
    turned[..., :dim] *= compute(factor**-2 if inverse else factor**2)
    return turned
