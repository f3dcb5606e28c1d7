"""Rotary position embedding in the compute dtype."""

from __future__ import annotations

from rocmkern.ops.precision import compute_dtype, rounded
from rocmkern.ops.rotary import reference as _rope


def rope(
    x,
    positions,
    *,
    block_positions=None,
    variant="half",
    base=None,
    rotary_dim=None,
    scaling=None,
    freq_factors=None,
    inverse=False,
    layout="shd",
):
    """`rocmkern.reference.rope` in the compute dtype, with exact angles."""
    compute = compute_dtype(x)
    scaled = (base, rotary_dim, scaling, freq_factors)
    out = _rope._rope(x, positions, block_positions, variant, *scaled, inverse, layout, compute)
    return rounded(out, x.dtype)


def rope_append_kv(k, v, positions, key_cache, value_cache, slots, **options):
    """`rocmkern.reference.rope_append_kv` in the dtype of the caches."""
    keys = k if positions is None else rope(k, positions, **options)
    return _rope._put(keys, key_cache, slots, k.dtype), _rope._put(v, value_cache, slots, v.dtype)
