"""Every kernel variant that the operations launch on an architecture, found by calling them on tiny arrays.

The calls go to an object that notes launches instead of running them, so that the list cannot differ from what
`rocmkern.ops` really asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rocmkern.runtime.errors import TargetError
from rocmkern.targets import launching_on, source
from rocmkern.tile import api

_KEYS = 24
_HEADS = 2
#: Lengths of rows that reach every variant of a norm.
_WIDTHS = (8, 512, 1024, 2048)


@dataclass(frozen=True)
class Variant:
    """A kernel, its configuration, and the element type of each of its tensors."""

    kernel: Callable
    cfg: api.Config
    dtypes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.__name__

    @property
    def features(self) -> str:
        """The configuration in a few words, without the architecture."""
        fields = {name: getattr(self.cfg, name) for name in self.cfg.__dataclass_fields__ if name != "arch"}
        words = ((name, value if isinstance(value, str) else int(value)) for name, value in fields.items())
        return " ".join(f"{name}={value}" for name, value in words if value != "")


class Recorder:
    """A target that notes the variants of all launches."""

    name, device, parallelism = "hip", None, 1

    def __init__(self, arch: str):
        self.arch = arch
        self.found: dict[Variant, None] = {}

    def launch(self, kernel: Callable, cfg: api.Config, grid: Sequence[int], args: Sequence[Any]) -> None:
        """Note a launch."""
        self.found[Variant(kernel, cfg, source.dtypes_of(kernel, args))] = None


def variants(arch: str, kernels: Sequence[str] = (), dtypes: Sequence[str] = ()) -> list[Variant]:
    """All variants on an AMD architecture.

    Parameters
    ----------
    arch : str
        Such as ``"gfx1100"``.
    kernels : sequence of str
        Names to keep; empty: all.
    dtypes : sequence of str
        ``"float32"``, ``"float16"``, ``"bfloat16"``: what the first tensor may be of; empty: all.

    Raises
    ------
    TargetError
        If the architecture is not known, or not AMD's.
    """
    from rocmkern.tile.architectures import architecture

    architecture(arch)
    if not arch.startswith("gfx"):
        raise TargetError(f"{arch!r} is not an AMD architecture; allowed: such as 'gfx1100'")
    recorder = Recorder(arch)
    with launching_on(recorder):
        for call in _calls(arch):
            call()
    return [v for v in recorder.found if (not kernels or v.name in kernels) and (not dtypes or v.dtypes[0] in dtypes)]


def _calls(arch: str) -> Iterator[Callable[[], Any]]:
    """Calls that reach every variant."""
    import ml_dtypes

    import rocmkern as rk
    from rocmkern.ops import _configs
    from rocmkern.reference.quantized import BLOCKS

    sizes = _configs.blocks(arch)
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):

        def zeros(*shape: int, dtype: np.dtype = dtype) -> np.ndarray:
            return np.zeros(shape, dtype)

        for dim in sizes.keys:
            k = zeros(1, _HEADS, _KEYS, dim)
            for rows in (*sizes.rows, 4 * sizes.tall[0] or 1):
                q = zeros(1, _HEADS, rows, dim)
                slopes, bias = np.ones(_HEADS, np.float32), zeros(1, _HEADS, rows, _KEYS)
                yield partial(rk.flash_attention, q, k, k)
                yield partial(rk.flash_attention, q, k, k, alibi_slopes=slopes)
                yield partial(rk.flash_attention, q, k, k, bias=bias)
                yield partial(rk.decode_attention, q, k, k, num_splits=2)
                yield partial(rk.decode_attention, q, k, k, num_splits=2, alibi_slopes=slopes)
                yield partial(rk.qk_scores, q, k)
                yield partial(rk.weighted_values, bias, k)
        for rows in _configs.product_rows(arch, dtype.itemsize):
            a, weight = zeros(rows, _KEYS), zeros(_KEYS, _KEYS)
            yield partial(rk.matmul, a, weight)
            yield partial(rk.linear, a, weight)
            yield partial(rk.mlp, a, weight, weight, weight)
        yield partial(rk.linear, zeros(1, 4096), zeros(_KEYS, 4096))
        for format, (elements, nbytes) in BLOCKS.items():
            blocks = np.zeros((_KEYS, nbytes), np.uint8)
            yield partial(rk.dequantize, blocks, format, dtype)
            yield partial(rk.dequantize_rms_norm, blocks, zeros(elements), format)
            for rows in _configs.product_rows(arch, dtype.itemsize):
                yield partial(rk.quantized_linear, zeros(rows, elements), blocks, format)
        x, lse = zeros(1, _HEADS, 4, 8), np.zeros((1, _HEADS, 4), np.float32)
        yield partial(rk.merge_attention, x, lse, x, lse)
        yield partial(rk.repeat_kv, x, 2)
        for mask_dtype in (np.dtype(np.bool_), np.dtype(np.float32), dtype):
            yield partial(rk.apply_mask, x, np.ones((4, 8), mask_dtype))
        yield partial(rk.causal_mask, 4, 8, dtype=dtype)
        for width in _WIDTHS:
            y, weight = zeros(4, width), zeros(width)
            yield partial(rk.softmax, y)
            yield partial(rk.embedding, y, np.zeros(4, np.int32))
            yield partial(rk.rms_norm, y, weight)
            yield partial(rk.rms_norm, y, weight, residual=y)
            for parameters in ((), (weight,), (None, weight), (weight, weight)):
                yield partial(rk.layer_norm, y, *parameters)
        for y in (x, zeros(4, 512), zeros(4, 1024)):
            yield partial(rk.scale, y, 2.0)
            yield partial(rk.add_residual, y, y)
            yield partial(rk.swiglu, y, y)
            yield partial(rk.geglu, y, y)
            yield partial(rk.geglu, y, y, approximate="tanh")
        yield partial(rk.transpose, x)
        yield partial(rk.transpose, x, (1, 0, 2, 3))
