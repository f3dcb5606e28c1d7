"""What the roundings of `flash_attn_with_kvcache` cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.flash_attn.reference import appended
from rocmkern.ops.attention.roundings import attended
from rocmkern.reference.costs import STEPS, UNIT, UNITS, wide

__all__ = ["flash_attn_with_kvcache"]


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    """Those of attention; and rotated queries and keys are rounded to the dtype of q before they meet."""
    rows, keys, values, cache = appended(
        *wide(q, k_cache, v_cache), k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
        block_table, causal, window_size, rotary_interleaved, np.float64,
    )  # fmt: skip
    options: dict[str, Any] = {"causal": causal, "window": cache.window, "scale": softmax_scale}
    options |= {"softcap": softcap if softcap > 0 else None, "alibi_slopes": alibi_slopes}
    rotated = rotary_cos is not None

    def attention(q, k, v, *, return_lse=False, **options):
        out, lse = cache.attended(q, k, v, **options)
        return (out, lse) if return_lse else out

    unit = UNITS[q.dtype.name]
    costs = attended(
        attention, rows.astype(q.dtype), keys, values, options, True, rows_first=True,
        rounded=2 * unit if rotated else 0.0,
    )  # fmt: skip
    largest = 0.0 if k is None else float(np.abs(k.astype(np.float64)).max(initial=0.0))
    return (*costs, np.full(keys.shape, STEPS * UNIT * largest * rotated), np.zeros(values.shape))
