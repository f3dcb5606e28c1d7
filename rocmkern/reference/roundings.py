"""What the roundings inside an operation cost, against the magnitudes of what is added up.

A result that is small because large terms cancel carries the roundings of those terms. The error of one straightforward
computation does not show that reliably: it is one draw, and it may be lucky. So beside it stands what such roundings
cost by a formula, for each element. With u the unit roundoff of float32 (2^-24), and h that of the dtype in which a
kernel may keep numbers between two products (2^-11 for float16, 2^-8 for bfloat16, u for float32)::

    sum of terms t_j in float32     u * sum |t_j|           any order of summation: |error| <= (n - 1) u sum |t_j|, and
                                                            about u sum |t_j| where signs are mixed
    numbers w_j rounded before      h * sqrt(sum (w_j v_j)^2)   each error is h w_j v_j at most, and independent of the
    they are multiplied by v_j                              others: |error| <= c times that with probability at least
                                                            1 - 2 exp(-c^2 / 2)
    k operations in a row           k u times the magnitude of their result

The first line is N. J. Higham, Accuracy and Stability of Numerical Algorithms (2nd ed.), section 4.2; the second is
Hoeffding's inequality, as in N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis (SIAM J.
Sci. Comput. 41, 2019). The worst case of the second line, h * sum |w_j v_j|, is at most c times that for c^2 terms, but
for many it grows faster than results and their errors do, and would pass anything.

Arguments are those of `rocmkern.reference`, in the dtypes of the operation; results are float64, of the shape of each
output. Where magnitudes are not finite there is no cost: there the reference decides what is right.
"""

from __future__ import annotations

import math

import numpy as np

from rocmkern.decoder import reference as _decoder
from rocmkern.ops.activations.reference import _halves
from rocmkern.ops.activations.reference import geglu as _geglu
from rocmkern.ops.activations.reference import swiglu as _swiglu
from rocmkern.ops.attention import reference as _attention
from rocmkern.ops.norm import reference as _norm
from rocmkern.ops.paged.reference import paged_attention as _paged_attention
from rocmkern.ops.quantized.reference import BLOCKS
from rocmkern.ops.quantized.reference import dequantize as _dequantize
from rocmkern.ops.steps import reference as _steps
from rocmkern.reference import linear as _linear

#: Unit roundoff of float32, and of the dtypes that a kernel may keep numbers in between two products.
UNIT = 2.0**-24
_UNITS = {"float32": UNIT, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: Operations in a row of an exponential, an activation or a norm: shift, scale, power of two, sum, quotient.
_STEPS = 4
#: Operations in a row of a layer of a decoder, and around its layers.
_STEPS_OF_LAYER, _STEPS_AROUND = 13, 3
#: Bound of the derivatives of all activations.
_STEEPEST = 1.13
#: Elements of a block that a quantized number shares its scale with; a minimum is read beside the scale.
_SHARED = 32


def _cost(values):
    """Costs with 0 where magnitudes are not finite."""
    values = np.asarray(values, np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def _wide(*arrays):
    return (None if x is None else np.asarray(x).astype(np.float64) for x in arrays)


def _activated(total, cost, activation):
    """Cost of an activation of a sum that has a cost itself."""
    if activation is None:
        return cost
    result = _linear._activated(total, activation)
    return _STEEPEST * cost + UNIT * (_STEPS + np.abs(total)) * np.abs(result) + UNIT * np.abs(total)


# ------------------------------------------------------------------------------------------------------------- products


def _product(a, b, transpose_b, bias, activation):
    a, b, bias = _wide(a, b, bias)
    with np.errstate(all="ignore"):
        cost = UNIT * _linear._matmul(np.abs(a), np.abs(b), transpose_b, None, None, np.float64)
        cost = cost if bias is None else cost + UNIT * np.abs(bias)
        if activation is not None:
            cost = _activated(_linear._matmul(a, b, transpose_b, bias, None, np.float64), cost, activation)
        return _cost(cost)


def matmul(a, b, *, transpose_b=False, bias=None, activation=None):
    """`rocmkern.reference.matmul`: a sum, then an activation."""
    return _product(a, b, transpose_b, bias, activation)


def linear(x, weight, bias=None, activation=None):
    """`rocmkern.reference.linear`: a sum, then an activation."""
    return _product(x, weight, True, bias, activation)


def mlp(x, w_gate, w_up, w_down, *, activation="silu", b_gate=None, b_up=None, b_down=None):
    """`rocmkern.reference.mlp`: what the last product multiplies is rounded to the dtype of x and has a cost."""
    unit = _UNITS[x.dtype.name]
    hidden = _linear._hidden(*_wide(x, w_gate, w_up), activation, *_wide(b_gate, b_up), np.float64)
    with np.errstate(all="ignore"):
        if w_gate is None:
            before = _product(x, w_up, True, b_up, activation)
        else:
            gate = _linear.linear(*_wide(x, w_gate, b_gate), activation)
            up = _linear.linear(*_wide(x, w_up, b_up))
            before = _product(x, w_gate, True, b_gate, activation) * np.abs(up)
            before = before + _product(x, w_up, True, b_up, None) * np.abs(gate)
        each = unit * np.abs(hidden) + before
        (down,) = _wide(w_down)
        return _cost(_product(hidden, w_down, True, b_down, None) + np.sqrt(each**2 @ (down**2).swapaxes(-1, -2)))


def quantized_linear(x, blocks, format="q4_0", bias=None, activation=None, *, order="ggml"):
    """`rocmkern.reference.quantized_linear`: weights may be rounded to the dtype of x when they are decoded.

    A number is the difference of two where a format has minima or an offset; its magnitude is that of the largest one
    that it shares its scale with.
    """
    unit, weights = _UNITS[x.dtype.name], _dequantize(blocks, format, order=order)
    (numbers,) = _wide(x)
    with np.errstate(all="ignore"):
        own = min(_SHARED, BLOCKS[format][0])
        shared = np.abs(weights).reshape(*weights.shape[:-1], weights.shape[-1] // own, own)
        largest = np.broadcast_to(shared.max(axis=-1, keepdims=True), shared.shape).reshape(weights.shape)
        cost = UNIT * (np.abs(numbers) @ largest.T) + unit * np.sqrt(numbers**2 @ (weights**2).T)
        if bias is not None:
            cost = cost + UNIT * np.abs(bias.astype(np.float64))
        if activation is not None:
            cost = _activated(_linear.linear(numbers, weights, *_wide(bias)), cost, activation)
        return _cost(cost)


# ------------------------------------------------------------------------------------------------------------ attention


def flash_attention(q, k, v, *, return_lse=False, **options):
    """`rocmkern.reference.flash_attention`: weights are rounded to the dtype of q before they meet the values."""
    return _attended(_attention.flash_attention, q, k, v, options, return_lse)


def decode_attention(q, k, v, *, num_splits=None, **options):
    """`rocmkern.reference.decode_attention`, as `flash_attention`."""
    return flash_attention(q, k, v, **options)


def paged_attention(
    q, key_cache, value_cache, *tables, key_scale=None, value_scale=None, num_splits=None, return_lse=False, **options
):
    """`rocmkern.reference.paged_attention`, as `flash_attention`."""
    caches = []
    for cache, factor in ((key_cache, key_scale), (value_cache, value_scale)):
        cache = cache.astype(np.float64)
        caches.append(cache if factor is None else cache * factor.astype(np.float64)[:, None])

    def attention(q, k, v, **options):
        return _paged_attention(q, k, v, *tables, **options)

    return _attended(attention, q, *caches, options, return_lse)


def _attended(attention, q, k, v, options, return_lse):
    """Costs of an attention with weights p_j: those of `_weights_cost`, and the sum of p_j v_j."""
    unit, scale = _UNITS[q.dtype.name], options.get("scale")
    q, k, v = _wide(q, k, v)
    options = {name: value for name, value in options.items() if name not in ("max_seqlen_q", "max_seqlen_k")}
    factor = abs(1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    with np.errstate(all="ignore"):
        # Scores are sums too: their magnitude, as the weights have it.
        keys, lse = attention(q, k, np.abs(k), return_lse=True, **options)
        scores = factor * (np.abs(q) * keys).sum(axis=-1)
        relative = UNIT * (_STEPS + scores)[..., None]
        sums = attention(q, k, np.abs(v), **options)
        # exp(2 s) are the weights of doubled scores, whose denominators are known: so come sums of (p_j v_j)^2.
        doubled = dict(options, scale=2 * factor if scale is None else 2 * scale)
        for name in ("softcap", "alibi_slopes", "bias", "sinks"):
            if doubled.get(name) is not None:
                doubled[name] = 2 * np.asarray(doubled[name], np.float64)[()]
        squares, lse_doubled = attention(q, k, v**2, return_lse=True, **doubled)
        # A log-sum-exp is [..., heads, rows]; outputs of layouts with rows first are not.
        rows_first = "cu_seqlens_q" in options or options.get("layout") == "bshd" or q.ndim == 3
        share = np.exp(lse_doubled - 2 * lse)
        share = np.swapaxes(share, -1, -2) if rows_first else share
        out = UNIT * sums + (unit + relative) * np.sqrt(squares * share[..., None])
        if not return_lse:
            return _cost(out)
        scores = np.swapaxes(scores, -1, -2) if rows_first else scores
        return _cost(out), _cost(UNIT * (np.abs(lse) + _STEPS + scores))


def merge_attention(o1, lse1, o2, lse2, *, layout="bhsd"):
    """`rocmkern.reference.merge_attention`: two terms, whose weights are exponentials."""
    first, second = _wide(o1, o2)
    with np.errstate(all="ignore"):
        sums, lse = _attention._merge(np.abs(first), lse1, np.abs(second), lse2, layout, np.float64)
        largest = np.maximum(*(np.where(np.isfinite(x), np.abs(x), 0.0) for x in _wide(lse1, lse2)))
        relative = UNIT * (_STEPS + largest)
        rows_first = o1.ndim == 3 or layout == "bshd"
        own = (np.swapaxes(relative, -1, -2) if rows_first else relative)[..., None]
        return _cost(own * sums), _cost(relative + UNIT * np.abs(lse))


def qk_scores(q, k, *, scale=None, layout="bhsd"):
    """`rocmkern.reference.qk_scores`: a sum."""
    q, k = _wide(q, k)
    return _cost(UNIT * np.abs(_steps._qk_scores(np.abs(q), np.abs(k), scale, layout, np.float64)))


def weighted_values(p, v, *, layout="bhsd"):
    """`rocmkern.reference.weighted_values`: a sum; the weights are given."""
    p, v = _wide(p, v)
    return _cost(UNIT * _steps._weighted_values(np.abs(p), np.abs(v), layout, np.float64))


def softmax(x):
    """`rocmkern.reference.softmax`: the rounding of an exponent is one of a factor."""
    (x,) = _wide(x)
    with np.errstate(all="ignore"):
        below = np.abs(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
        return _cost(UNIT * _steps._softmax(x, np.float64) * (_STEPS + 2 * np.where(np.isfinite(below), below, 0.0)))


# ------------------------------------------------------------------------------------------------ norms and activations


def _normed(x, weight, eps, weight_offset):
    (x,) = _wide(x)
    magnitude = np.abs(np.asarray(weight).astype(np.float64)) + abs(weight_offset)
    return _cost(_STEPS * UNIT * np.abs(_norm._rms_norm(x, magnitude, eps, 0.0, np.float64)))


def rms_norm(x, weight, eps=1e-6, *, residual=None, weight_offset=0.0):
    """`rocmkern.reference.rms_norm`: operations in a row; weight and offset may cancel."""
    if residual is None:
        return _normed(x, weight, eps, weight_offset)
    total = _norm._add_residual(*_wide(x, residual), np.float64)
    return _normed(total, weight, eps, weight_offset), np.zeros(np.shape(total))


def dequantize_rms_norm(blocks, weight, format="q4_0", eps=1e-6, *, weight_offset=0.0, order="ggml"):
    """`rocmkern.reference.dequantize_rms_norm`, as `rms_norm`."""
    return _normed(_dequantize(blocks, format, order=order), weight, eps, weight_offset)


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """`rocmkern.reference.layer_norm`: the mean that is taken away is a sum, and so is what the bias is added to."""
    x, weight, bias = _wide(x, weight, bias)
    with np.errstate(all="ignore"):
        centred = x - _norm._mean(x)
        root = np.sqrt(_norm._mean(centred**2) + eps)
        taken = 2 * (np.abs(x) + _norm._mean(np.abs(x))) / np.where(root == 0, 1.0, root)
        cost = (_STEPS * np.abs(centred) / np.where(root == 0, 1.0, root) + taken) * UNIT
        cost = cost if weight is None else cost * np.abs(weight)
        return _cost(cost if bias is None else cost + UNIT * np.abs(bias))


def swiglu(gate, up=None, *, order="gate_up"):
    """`rocmkern.reference.swiglu`: the rounding of an exponent is one of a factor."""
    first, second = _halves(*_wide(gate, up))
    exponent = np.abs(second if order == "up_gate" else first)
    with np.errstate(all="ignore"):
        return _cost(UNIT * (_STEPS + exponent) * np.abs(_swiglu(*_wide(gate, up), order=order)))


def geglu(gate, up=None, *, approximate="none"):
    """`rocmkern.reference.geglu`: 1 and an error function or a tangent cancel."""
    first, second = _halves(*_wide(gate, up))
    with np.errstate(all="ignore"):
        result = np.abs(_geglu(*_wide(gate, up), approximate=approximate))
        return _cost(UNIT * (_STEPS * result + np.abs(first * second)))


def rope(x, positions, **options):
    """`rocmkern.reference.rope`: two products of numbers with a sine and a cosine, which are rounded themselves."""
    (x,) = _wide(x)
    largest = np.where(np.isfinite(x), np.abs(x), 0.0).max(axis=-1, keepdims=True, initial=0.0)
    return np.broadcast_to(_STEPS * UNIT * largest, x.shape)


def rope_append_kv(k, v, positions, key_cache, value_cache, slots, **options):
    """`rocmkern.reference.rope_append_kv`: rotated keys as in `rope`, values are copied."""
    largest = max((float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in _wide(k)), default=0.0)
    return np.full(key_cache.shape, _STEPS * UNIT * largest), np.zeros(value_cache.shape)


# -------------------------------------------------------------------------------------------------------------- decoder


def decoder_logits(tokens, *, config, prefill=None, block_size=None, **weights):
    """`rocmkern.reference.decoder_logits`: the last product, of numbers that have been through many operations.

    Their roundings are independent of each other: k of them cost as much as sqrt(k), by the second line above.
    """
    embedding = weights["embedding"]
    last = np.abs(np.asarray(weights.get("output", embedding)).astype(np.float64))
    with np.errstate(all="ignore"):
        hidden = _decoder.logits_in(np.float64, tokens, config, weights | {"output": np.eye(last.shape[1])})
        steps = _STEPS_AROUND + _STEPS_OF_LAYER * config.num_layers
        return _cost(_UNITS[embedding.dtype.name] * math.sqrt(steps) * (np.abs(hidden) @ last.T))
