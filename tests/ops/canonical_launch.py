"""The functions of the families' ``launch.py``, computed from their canonical arguments by the float64 reference.

With them the operations' own work (checks, layouts, outputs) is tested apart from any kernel.
"""

from __future__ import annotations

import functools

import numpy as np

from rocmkern import reference
from rocmkern.calls.arguments import Argument
from rocmkern.calls.view import View
from rocmkern.ops.attention.problem import UNLIMITED, heads_before_rows, lse_with_batch
from rocmkern.ops.linear.backward.reference import activation_gradient
from rocmkern.ops.linear.reference import activated
from rocmkern.ops.loss.reference import logits


def on_arrays(launch):
    """The launch with arrays in the place of views."""

    def arrays(x):
        if isinstance(x, list):
            return [arrays(each) for each in x]
        return x.numpy() if isinstance(x, View) else x

    @functools.wraps(launch)
    def call(*args, **kwargs):
        return launch(*map(arrays, args), **{name: arrays(value) for name, value in kwargs.items()})

    return call


def launch_attention(problem, out, lse, stream):
    q, k, v = (x.numpy() for x in problem.tensors.views())
    out, lse = out.numpy(), None if lse is None else lse.numpy()
    seen, scores, sequences = problem.visibility, problem.scores, problem.sequences
    batch, heads, sq, _ = q.shape
    sk = k.shape[2]
    assert out.shape == (batch, heads, sq, v.shape[3]) and q.dtype == k.dtype == v.dtype == out.dtype
    assert lse is None or (lse.shape == (batch, heads, sq) and lse.dtype == np.float32)
    assert 0 <= seen.left <= UNLIMITED and 0 <= seen.right <= UNLIMITED and (seen.bottom_right or seen.right == 0)
    assert problem.num_splits is None or problem.num_splits >= 1
    sinks, slopes, bias, mask, cu_q, cu_k = (
        None if x is None else x.aligned().numpy()
        for x in (scores.sinks, scores.alibi_slopes, scores.bias, scores.mask, sequences.cu_seqlens_q,
                  sequences.cu_seqlens_k)
    )  # fmt: skip
    assert sinks is None or sinks.shape == (heads,)
    assert bias is None or bias.shape == (batch, heads, sq, sk)
    assert mask is None or (mask.shape == (batch, heads, sq, sk) and mask.dtype == np.bool_)
    assert slopes is None or slopes.shape in ((heads,), (sequences.count, heads))
    options = dict(
        scale=scores.scale,
        softcap=scores.softcap or None,
        window=tuple(None if side == UNLIMITED else side for side in (seen.left, seen.right)),
        causal=False if seen.bottom_right else "top_left",
        sinks=sinks,
        alibi_slopes=slopes,
        return_lse=True,
    )
    if cu_q is None:
        assert sequences.max_q == sq and sequences.max_k == sk
        result, result_lse = reference.flash_attention(q, k, v, bias=bias, mask=mask, **options)
    else:
        assert batch == 1 and sequences.count == len(cu_q) - 1 and sequences.max_q >= np.diff(cu_q).max(initial=0)
        assert cu_q.dtype == cu_k.dtype == np.int32
        packed = [x[0].transpose(1, 0, 2) for x in (q, k, v)]
        result, result_lse = reference.flash_attention(*packed, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **options)
        result, result_lse = result.transpose(1, 0, 2)[None], result_lse[None]
    out[...] = result.astype(out.dtype)
    if lse is not None:
        lse[...] = result_lse


def launch_gradients(problem, given, results, stream):
    q, k, v = (x.numpy() for x in problem.tensors.views())
    layout, seen, scores, sequences = problem.tensors.layout, problem.visibility, problem.scores, problem.sequences
    dout, o = (heads_before_rows(x.aligned(), layout).numpy() for x in (given.dout, given.o))
    lse, dlse = (None if x is None else lse_with_batch(x.aligned(), layout).numpy() for x in (given.lse, given.dlse))
    assert dout.shape == o.shape == (*q.shape[:3], v.shape[3]) and lse.shape == q.shape[:3] and dout.dtype == q.dtype
    arrays = {
        name: None if x is None else x.aligned().numpy()
        for name, x in {**vars(scores), **vars(sequences)}.items()
        if x is None or isinstance(x, Argument)
    }
    # The bias as the caller gave it: its gradient has that shape.
    if scores.bias is not None:
        arrays["bias"] = scores.bias.unconverted.numpy()
    if arrays["cu_seqlens_q"] is not None:
        dout, q, k, v, o = (x[0].swapaxes(0, 1) for x in (dout, q, k, v, o))
        lse, dlse = (x if x is None else x[0] for x in (lse, dlse))
    found = reference.flash_attention_backward(
        dout, q, k, v, o, lse,
        **arrays,
        dlse=dlse,
        scale=scores.scale,
        softcap=scores.softcap or None,
        window=tuple(None if side == UNLIMITED else side for side in (seen.left, seen.right)),
        causal=False if seen.bottom_right else "top_left",
        **{f"return_{name}": name in results for name in ("dbias", "dsinks", "dalibi_slopes")},
    )  # fmt: skip
    for name, out, gradient in zip(results, results.values(), found, strict=True):
        into = out.view.numpy()
        if name in ("dq", "dk", "dv") and layout == "bshd":
            gradient = gradient.swapaxes(1, 2)
        into[...] = gradient.astype(into.dtype)


@on_arrays
def launch_merge(o1, lse1, o2, lse2, out, lse, stream):
    assert o1.ndim == 4 and lse1.shape == lse.shape == o1.shape[:3]
    result, result_lse = reference.merge_attention(o1, lse1, o2, lse2)
    out[...] = result.astype(out.dtype)
    lse[...] = result_lse


@on_arrays
def launch_qk_scores(q, k, out, scale, stream):
    out[...] = reference.qk_scores(q, k, scale=scale).astype(out.dtype)


@on_arrays
def launch_causal_mask(out, left, right, offset, stream):
    distance = np.arange(out.shape[0])[:, None] + offset - np.arange(out.shape[1])
    out[...] = np.where((distance <= left) & (-distance <= right), 0.0, -np.inf).astype(out.dtype)


@on_arrays
def launch_apply_mask(x, mask, out, stream):
    assert x.ndim == mask.ndim == out.ndim == 4 and x.shape == mask.shape
    out[...] = reference.apply_mask(x, mask).astype(out.dtype)


@on_arrays
def launch_softmax(x, out, stream):
    assert x.ndim == out.ndim == 4
    out[...] = reference.softmax(x).astype(out.dtype)


@on_arrays
def launch_weighted_values(p, v, out, stream):
    out[...] = reference.weighted_values(p, v).astype(out.dtype)


@on_arrays
def launch_scale(x, out, factor, stream):
    assert x.ndim == out.ndim == 4
    out[...] = reference.scale(x, factor).astype(out.dtype)


@on_arrays
def launch_repeat_kv(x, out, n_rep, stream):
    out[...] = reference.repeat_kv(x, n_rep).astype(out.dtype)


@on_arrays
def launch_rms_norm(x, residual, sums, weight, out, eps, weight_offset, stream):
    assert x.ndim == out.ndim == 4 and weight.shape == x.shape[-1:] and (residual is None) == (sums is None)
    result = reference.rms_norm(x, weight, eps, residual=residual, weight_offset=weight_offset)
    if sums is not None:
        result, total = result
        sums[...] = total.astype(sums.dtype)
    out[...] = result.astype(out.dtype)


@on_arrays
def launch_layer_norm(x, weight, bias, out, eps, stream):
    assert x.ndim == out.ndim == 4
    out[...] = reference.layer_norm(x, weight, bias, eps).astype(out.dtype)


@on_arrays
def launch_rms_norm_backward(pieces, weight, dweight, eps, weight_offset, accumulate, stream):
    total = dweight.astype(np.float64) if accumulate else 0.0
    for dout, x, dx, *added in pieces:
        assert dout.ndim == x.ndim == dx.ndim == 4 and weight.shape == dweight.shape == x.shape[-1:]
        options = {"weight_offset": weight_offset, "dresidual": added[0] if added else None}
        result, part = reference.rms_norm_backward(dout, x, weight, eps, **options)
        dx[...], total = result.astype(dx.dtype), total + part
    dweight[...] = total.astype(dweight.dtype)


@on_arrays
def launch_layer_norm_backward(pieces, weight, dweight, dbias, eps, accumulate, stream):
    outs = [x for x in (dweight, dbias) if x is not None]
    totals = [x.astype(np.float64) if accumulate else 0.0 for x in outs]
    for dout, x, dx in pieces:
        assert dout.ndim == x.ndim == dx.ndim == 4 and (weight is None) == (dweight is None)
        result = reference.layer_norm_backward(dout, x, weight, dbias, eps)
        result, *parts = result if outs else (result,)
        dx[...], totals = result.astype(dx.dtype), [a + b for a, b in zip(totals, parts, strict=True)]
    for out, total in zip(outs, totals, strict=True):
        out[...] = total.astype(out.dtype)


@on_arrays
def launch_add_residual(x, residual, out, stream):
    assert x.ndim == residual.ndim == out.ndim == 4
    out[...] = reference.add_residual(x, residual).astype(out.dtype)


@on_arrays
def launch_gated(gate, up, out, activation, stream):
    assert gate.ndim == up.ndim == out.ndim == 4
    if activation == "silu":
        result = reference.swiglu(gate, up)
    else:
        result = reference.geglu(gate, up, approximate="tanh" if activation == "gelu_tanh" else "none")
    out[...] = result.astype(out.dtype)


@on_arrays
def launch_gated_backward(dout, gate, up, dgate, dup, activation, stream):
    assert dout.ndim == gate.ndim == up.ndim == dgate.ndim == dup.ndim == 4
    if activation == "silu":
        results = reference.swiglu_backward(dout, gate, up)
    else:
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        results = reference.geglu_backward(dout, gate, up, approximate=approximate)
    for out, result in zip((dgate, dup), results, strict=True):
        out[...] = result.astype(out.dtype)


@on_arrays
def launch_embedding(table, indices, out, stream):
    assert indices.ndim == 1 and indices.dtype == np.int32 and out.shape == (*indices.shape, table.shape[1])
    out[...] = table[indices]


@on_arrays
def launch_embedding_backward(dout, order, ids, out, accumulate, stream):
    assert order.dtype == ids.dtype == np.int32 and order.shape == ids.shape == (dout[..., 0].size,)
    rows = np.empty(order.shape, np.int64)
    rows[order] = ids
    result = reference.embedding_backward(dout.reshape(-1, dout.shape[-1]), out, rows)
    out[...] = (result + accumulate * out.astype(np.float64) if accumulate else result).astype(out.dtype)


@on_arrays
def launch_copy_rows(x, out, stream):
    assert x.ndim == out.ndim == 4
    out[...] = x


@on_arrays
def launch_copy_integers(x, out, stream):
    assert x.ndim == out.ndim == 4 and out.dtype == np.int32
    out[...] = x


@on_arrays
def launch_matmul(a, b, bias, out, activation, stream, rows):
    assert a.ndim == b.ndim == out.ndim == 4 and a.shape[:2] == b.shape[:2] == out.shape[:2]
    assert bias is None or bias.shape in ((1, out.shape[3]), out.shape[2:])
    out[...] = reference.matmul(a, b, bias=bias, activation=activation).astype(out.dtype)


@on_arrays
def launch_activation_gradient(x, dout, out, activation, stream):
    assert x.ndim == dout.ndim == out.ndim == 4
    out[...] = activation_gradient(x.astype(np.float64), dout.astype(np.float64), activation).astype(out.dtype)


@on_arrays
def launch_hidden_gradient(gate, up, dh, h, dgate, dup, activation, stream):
    assert gate.ndim == up.ndim == dh.ndim == dgate.ndim == dup.ndim == 4
    wide, factor, given = (x.astype(np.float64) for x in (gate, up, dh))
    acted = activated(wide, activation)
    product = given * factor
    slope = product if activation is None else activation_gradient(wide, product, activation)
    if h is not None:
        h[...] = (acted * factor).astype(h.dtype)
    dgate[...], dup[...] = slope.astype(dgate.dtype), (given * acted).astype(dup.dtype)


@on_arrays
def launch_quantized_gradient(dz, blocks, dx, name, accumulate, stream):
    assert dz.ndim == dx.ndim == blocks.ndim == 2
    before = dx.astype(np.float64) if accumulate else 0.0
    dx[...] = (dz.astype(np.float64) @ reference.dequantize(blocks, **_format(name)) + before).astype(dx.dtype)


def _losses(options):
    softcap = options.cap or None
    return {
        "ignore_index": options.ignored,
        "label_smoothing": options.smoothing,
        "z_loss": options.z_loss,
        "softcap": softcap,
    }


@on_arrays
def launch_row_losses(x, weight, bias, labels, loss, lse, options, stream):
    assert x.ndim == weight.ndim == 2 and labels.shape == loss.shape == lse.shape == x.shape[:1]
    assert labels.dtype == np.int32 and (bias is None or bias.shape == (1, options.tokens))
    row = None if bias is None else bias[0]
    result = reference.linear_cross_entropy(x, weight, labels, bias=row, reduction="none", **_losses(options))
    loss[...], lse[...] = result


@on_arrays
def launch_sum_losses(loss, labels, out, options, stream):
    assert out.shape == (1,)
    with np.errstate(invalid="ignore"):
        count = (labels != options.ignored).sum() if options.reduction == "mean" else np.int64(1)
        out[0] = np.divide(loss.sum(dtype=np.float64), count)


@on_arrays
def launch_row_factors(dloss, labels, out, options, stream):
    assert dloss.shape == labels.shape == out.shape
    counted = labels != options.ignored
    share = 1 / max(counted.sum(), 1) if options.reduction == "mean" else 1.0
    out[...] = np.where(counted, dloss * share, 0.0)


def block_of(x):
    return 2, 3


@on_arrays
def launch_logit_gradients(x, weight, bias, labels, lse, factors, out, first, options, stream):
    assert out.shape == (*x.shape[:1], *weight.shape[:1]) and factors.dtype == lse.dtype == np.float32
    row = None if bias is None else bias[0]
    z = logits(x, weight, row, options.cap or None)
    gradient = np.exp(z - lse[:, None].astype(np.float64)) * (1 + 2 * options.z_loss * lse)[:, None]
    gradient -= options.smoothing / options.tokens
    hit = labels[:, None] - first == np.arange(weight.shape[0])
    gradient -= np.where(hit, 1 - options.smoothing, 0.0)
    if options.cap:
        gradient *= 1 - (z / options.cap) ** 2
    out[...] = np.where(factors[:, None] == 0, 0, gradient * factors[:, None]).astype(out.dtype)


@on_arrays
def launch_mlp(x, w_gate, w_up, w_down, b_gate, b_up, b_down, out, activation, stream, rows):
    assert x.ndim == out.ndim == 4 and w_up.ndim == w_down.ndim == 2
    biases = {
        name: None if bias is None else bias[0]
        for name, bias in (("b_gate", b_gate), ("b_up", b_up), ("b_down", b_down))
    }
    out[...] = reference.mlp(x, w_gate, w_up, w_down, activation=activation, **biases).astype(out.dtype)


def _pairs(pairs, x, part):
    """View ``[2, ..., dim // 2]`` of an array: the first and the second elements of the pairs of one part."""
    turned = x[..., part * pairs.dim : (part + 1) * pairs.dim]
    if pairs.interleaved:
        return np.moveaxis(turned.reshape(*x.shape[:-1], pairs.dim // 2, 2), -1, 0)
    return np.moveaxis(turned.reshape(*x.shape[:-1], 2, pairs.dim // 2), -2, 0)


@on_arrays
def launch_softmax_backward(dout, y, dx, scale, stream):
    assert dout.ndim == y.ndim == dx.ndim == 4
    dx[...] = reference.softmax_backward(dout, y, scale=scale).astype(dx.dtype)


@on_arrays
def launch_rope(x, out, positions, turn, stream):
    assert x.shape == out.shape and all(p.shape == (x.shape[0], x.shape[2]) for p in positions)
    result = x.astype(np.float64)
    for part, some in enumerate(positions):
        angle = some[:, None, :, None] * (turn.frequencies * (2 * np.pi / 2.0**64))
        a, b = _pairs(turn.pairs, result, part).copy()
        cos, sin = np.cos(angle) * turn.factor, np.sin(angle) * turn.factor * turn.direction
        for side, value in zip(_pairs(turn.pairs, result, part), (a * cos - b * sin, b * cos + a * sin), strict=True):
            side[...] = value
    out[...] = result.astype(out.dtype)


@on_arrays
def launch_rope_append_kv(k, v, key_cache, value_cache, positions, slots, key_scale, value_scale, turn, stream):
    assert k.shape[:2] == v.shape[:2] and positions.shape == slots.shape == k.shape[:1]
    assert key_scale is None and value_scale is None
    turned = np.empty_like(k)
    launch_rope(k.swapaxes(0, 1)[None], turned.swapaxes(0, 1)[None], [positions[None]], turn, stream)
    kept = np.flatnonzero(slots >= 0)
    for cache, values in ((key_cache, turned), (value_cache, v)):
        cache[slots[kept] // cache.shape[1], slots[kept] % cache.shape[1]] = values[kept]


@on_arrays
def launch_dequantize(blocks, out, name, stream):
    assert blocks.ndim == out.ndim == 4 and blocks.strides[-1] == 1
    out[...] = reference.dequantize(blocks, **_format(name)).astype(out.dtype)


@on_arrays
def launch_quantized_linear(x, blocks, bias, out, name, activation, stream, rows):
    assert x.ndim == out.ndim == 4 and blocks.ndim == 2 and (bias is None or bias.shape == (1, out.shape[3]))
    bias = None if bias is None else bias[0]
    result = reference.quantized_linear(x, blocks, bias=bias, activation=activation, **_format(name))
    out[...] = result.astype(out.dtype)


@on_arrays
def launch_dequantize_rms_norm(blocks, weight, out, name, eps, offset, stream):
    assert blocks.ndim == out.ndim == 4 and weight.shape == (1, out.shape[3])
    result = reference.dequantize_rms_norm(blocks, weight[0], eps=eps, weight_offset=offset, **_format(name))
    out[...] = result.astype(out.dtype)


def _format(name):
    return {"format": name.removesuffix("_ocp"), "order": "ocp" if name.endswith("_ocp") else "ggml"}
