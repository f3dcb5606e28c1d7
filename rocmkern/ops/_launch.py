"""From canonical arguments to a launch: configuration, grid, kernel. One function per kernel, no checks.

Arrays are views in ``[batch, head, row, column]`` order with any strides; they were checked by the public functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.kernels import (
    apply_mask,
    causal_mask,
    combine_splits,
    flash_attention,
    merge_attention,
    qk_scores,
    repeat_kv,
    scale,
    softmax,
    weighted_values,
)
from rocmkern.ops import _configs, _streams
from rocmkern.ops._device_view import DeviceView, device_view
from rocmkern.ops._staging import Staging
from rocmkern.runtime.manager import default_manager
from rocmkern.targets import current_target, target_of

#: Queries up to this many are packed with the heads of their group into one tile.
_PACK_UP_TO = 16
#: Keys that a block of a split attention should have at least.
_KEYS_PER_SPLIT = 512
_SMALL_SCALE = 2.0**-100


def _absent(leading: int, ndim: int, dtype: Any = np.float32) -> np.ndarray:
    """An argument that is not there: ``leading`` sub-tensors of no elements."""
    return np.zeros((leading,) + (0,) * (ndim - 1), dtype)


def _target(array: Any) -> Any:
    """Where an operation on this array runs: on the array's own device, or on the chosen target for host memory."""
    return target_of(array.place) if isinstance(array, DeviceView) else current_target()


def _launch(target: Any, kernel: Any, cfg: Any, grid: tuple[int, int, int], args: list, stream: Any) -> None:
    if not all(grid):
        return
    if target.device is None:
        target.launch(kernel, cfg, grid, args)
        return
    manager = default_manager(target.device)
    with Staging(target.device) as staging:
        args = staging.on_device(kernel, args)
        views = [a for a in args if isinstance(a, DeviceView)]
        handle = _streams.choose(manager, views, stream)
        with _streams.ordered(manager, views, handle, kernel.__name__):
            target.launch(kernel, cfg, grid, args, handle)
        staging.collect()


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def launch_attention(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    sinks: Any,
    alibi_slopes: Any,
    bias: Any,
    mask: Any,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    bottom_right: bool,
    num_splits: int | None,
    stream: Any,
) -> None:
    """``kernels.flash_attention``, and ``kernels.combine_splits`` where the keys are split over blocks."""
    target = _target(q)
    batch, heads, q_len, head_dim = q.shape
    kv_heads, k_len, value_dim = k.shape[1], k.shape[2], v.shape[3]
    packed = cu_seqlens_q is not None
    sequences = len(cu_seqlens_q) - 1 if packed else batch
    longest = max_seqlen_q

    # The kernel's fast path needs a positive factor that turns products into exponents, of a size that float32
    # can invert and multiply by log2(e).
    score_mods = (
        not _SMALL_SCALE < scale < 1 / _SMALL_SCALE
        or softcap > 0
        or any(x is not None for x in (alibi_slopes, bias, mask))
    )
    pack = heads // kv_heads if longest < _PACK_UP_TO else 1
    cfg = _configs.attention(target.arch, longest * pack, head_dim, value_dim, q.dtype.itemsize, score_mods)
    row_blocks = _ceil(longest * pack, cfg.block_m)
    blocks = row_blocks * (heads // pack) * sequences
    if num_splits is None:
        wanted = _ceil(2 * target.parallelism, max(blocks, 1)) if not packed else 1
        num_splits = max(1, min(wanted, k_len // _KEYS_PER_SPLIT))

    none = np.zeros(0, np.int32)
    args = [
        q, k, v, out[None], _absent(0, 4) if lse is None else lse[None],
        cu_seqlens_q if packed else none,
        cu_seqlens_k if packed else none,
        _absent(0, 1) if sinks is None else sinks,
        _absent(sequences, 2) if alibi_slopes is None else alibi_slopes,
        _absent(batch, 4) if bias is None else bias,
        _absent(batch, 4, np.bool_) if mask is None else mask,
        scale, softcap, left, right, int(bottom_right), pack, num_splits,
    ]  # fmt: skip
    grid = (row_blocks, heads // pack, sequences * num_splits)
    if num_splits == 1:
        _launch(target, flash_attention.flash_attention, cfg, grid, args, stream)
        return
    # Partial results come from the manager's pool: counted by the cap, and reused by the next call.
    memory = default_manager(target.device)
    home = _streams.choose(memory, [q], stream) if isinstance(q, DeviceView) else None
    part_shape = (num_splits, batch, heads, q_len, value_dim)
    with (
        memory.empty(part_shape, np.float32, uninitialized=True, stream=home) as part,
        memory.empty(part_shape[:-1], np.float32, uninitialized=True, stream=home) as part_lse,
    ):
        parts = [device_view(x) if target.device else x.numpy_view() for x in (part, part_lse)]
        _launch(target, flash_attention.flash_attention, cfg, grid, [*args[:3], *parts, *args[5:]], stream)
        cfg = _configs.line("combine_splits", target.arch)
        args = [*parts, out, _absent(0, 3) if lse is None else lse]
        grid = (_ceil(q_len, cfg.block_m), heads, batch)
        _launch(target, combine_splits.combine_splits, cfg, grid, args, stream)


def launch_merge(o1: Any, lse1: Any, o2: Any, lse2: Any, out: Any, lse: Any, stream: Any) -> None:
    """``kernels.merge_attention``."""
    _by_lines(merge_attention.merge_attention, "merge_attention", out, [o1, lse1, o2, lse2, out, lse], stream)


def launch_qk_scores(q: Any, k: Any, out: Any, scale: float, stream: Any) -> None:
    """``kernels.qk_scores``."""
    batch, heads, rows, head_dim = q.shape
    target = _target(q)
    cfg = _configs.scores(target.arch, rows, head_dim, q.dtype.itemsize)
    grid = (_ceil(rows, cfg.block_m), heads, batch)
    _launch(target, qk_scores.qk_scores, cfg, grid, [q, k, out, scale], stream)


def launch_weighted_values(p: Any, v: Any, out: Any, stream: Any) -> None:
    """``kernels.weighted_values``."""
    batch, heads, rows, _ = p.shape
    target = _target(p)
    cfg = _configs.values(target.arch, rows, v.shape[3], p.dtype.itemsize)
    grid = (_ceil(rows, cfg.block_m), heads, batch)
    _launch(target, weighted_values.weighted_values, cfg, grid, [p, v, out], stream)


def launch_causal_mask(out: Any, left: int, right: int, offset: int, stream: Any) -> None:
    """``kernels.causal_mask``."""
    target = _target(out)
    cfg = _configs.line("causal_mask", target.arch)
    grid = (_ceil(out.shape[0], cfg.block_m), 1, 1)
    _launch(target, causal_mask.causal_mask, cfg, grid, [out, left, right, offset], stream)


def launch_apply_mask(x: Any, mask: Any, out: Any, stream: Any) -> None:
    """``kernels.apply_mask``."""
    boolean = mask.dtype == np.bool_
    _by_lines(apply_mask.apply_mask, "apply_mask", out, [x, mask, out], stream, boolean=bool(boolean))


def launch_softmax(x: Any, out: Any, stream: Any) -> None:
    """``kernels.softmax``."""
    _by_lines(softmax.softmax, "softmax", out, [x, out], stream)


def launch_scale(x: Any, out: Any, factor: float, stream: Any) -> None:
    """``kernels.scale``."""
    _by_lines(scale.scale, "scale", out, [x, out, factor], stream)


def launch_repeat_kv(x: Any, out: Any, n_rep: int, stream: Any) -> None:
    """``kernels.repeat_kv``."""
    _by_lines(repeat_kv.repeat_kv, "repeat_kv", out, [x, out, n_rep], stream)


def _by_lines(kernel: Any, name: str, out: Any, args: list, stream: Any, **features: bool) -> None:
    """A kernel whose grid is (row block, axis 1, axis 0) of its output."""
    target = _target(out)
    cfg = _configs.line(name, target.arch, **features)
    _launch(target, kernel, cfg, (_ceil(out.shape[2], cfg.block_m), out.shape[1], out.shape[0]), args, stream)
