"""Gradients of rotary position embedding. What they mean is `rocmkern.ops.rotary.backward.reference`."""

from __future__ import annotations

from typing import Any, Literal

from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, RopeVariant, Stream
from rocmkern.ops.rotary.api import rotated
from rocmkern.ops.rotary.scaling import Scaling


@planned
def rope_backward(
    dout: Array,
    positions: ArrayLike,
    *,
    block_positions: ArrayLike | None = None,
    variant: RopeVariant = "half",
    base: float | None = None,
    rotary_dim: int | None = None,
    scaling: Scaling | dict[str, Any] | None = None,
    freq_factors: ArrayLike | tuple[float, ...] | None = None,
    inverse: bool = False,
    layout: Literal["shd", "hsd"] = "shd",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Gradient of `rope`: each pair is turned by the negative angle of its position.

    A factor of cosine and sine, as YaRN has one, multiplies the gradient as it multiplied the numbers; there it is not
    the inverse rotation, which divides by it. What is not rotated is copied.

    Parameters
    ----------
    dout : array, ``[..., S, H, D]``
        Gradient of the result: float32, float16 or bfloat16, with any strides.
    positions, block_positions, variant, base, rotary_dim, scaling, freq_factors, inverse, layout
        As in the call of `rope`.
    out : array, optional
        Where to write the result: exact shape and dtype; `dout` itself is allowed.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array
        The gradient of x, of the shape, kind and dtype of `dout`. Computed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rope`.

    References
    ----------
    Su, Lu, Pan, Wen, Liu: RoFormer (2021).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x, positions = np.ones((3, 1, 4), np.float32), np.arange(3, dtype=np.int32)
    >>> rocmkern.rope_backward(rocmkern.rope(x, positions), positions)[1, 0].round(6)
    array([1., 1., 1., 1.], dtype=float32)
    """
    rotation = (variant, base, rotary_dim, scaling, freq_factors, inverse)
    return rotated("dout", dout, positions, block_positions, rotation, layout, out, stream, gradient=True)
