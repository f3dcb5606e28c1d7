"""Attention: `flash_attention`, `decode_attention` and `merge_attention`.

What each one means is `reference.py` beside this file; how it is computed, `kernels/flash_attention.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypedDict, overload

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import invariance as _invariance
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import FLOAT32, Argument, accept
from rocmkern.calls.axes import heads_second
from rocmkern.calls.plan import planned
from rocmkern.calls.results import read
from rocmkern.calls.types import Array, ArrayLike, Causal, Layout, Stream, Window
from rocmkern.calls.view import View
from rocmkern.ops.attention.problem import (
    Attention,
    Scores,
    Sequences,
    Tensors,
    Visibility,
    checked_outputs,
    heads_before_rows,
    lse_shape,
    lse_with_batch,
    parts_of_keys,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AttentionOptions(TypedDict, total=False):
    """Options of `flash_attention` and `decode_attention` alike, for type checkers."""

    layout: Layout
    causal: Causal
    window: Window
    scale: float | None
    softcap: float | None
    alibi_slopes: ArrayLike | None
    bias: ArrayLike | None
    mask: ArrayLike | None
    sinks: ArrayLike | None
    seqlens_k: ArrayLike | None
    leftpad_k: ArrayLike | None
    stream: Stream


class FlashAttentionOptions(AttentionOptions, total=False):
    """Those of `flash_attention`."""

    cu_seqlens_q: ArrayLike | None
    cu_seqlens_k: ArrayLike | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None


class DecodeAttentionOptions(AttentionOptions, total=False):
    """Those of `decode_attention`."""

    num_splits: int | None


@overload
def flash_attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_lse: Literal[False] = False,
    out: Array | None = None,
    **options: Unpack[FlashAttentionOptions],
) -> Array: ...
@overload
def flash_attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_lse: Literal[True],
    out: Array | tuple[Array, Array] | None = None,
    **options: Unpack[FlashAttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def flash_attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_lse: bool,
    out: Array | tuple[Array, Array] | None = None,
    **options: Unpack[FlashAttentionOptions],
) -> Array | tuple[Array, Array]: ...
@planned
def flash_attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    layout: Layout = "bhsd",
    causal: Causal = False,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    seqlens_k: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    return_lse: bool = False,
    cu_seqlens_q: ArrayLike | None = None,
    cu_seqlens_k: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: Array | tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, Array]:
    """Attention without the S x S matrix of scores: ``softmax(scale * q @ k^T + bias, masked) @ v``.

    For query row i and key j of one head, in this order::

        s = scale * q_i . k_j
        s = softcap * tanh(s / softcap)
        s = s - slope * |i + o - j| + bias_ij
        s = -inf where j is not visible to i
        lse = ln(sum_j exp(s) + exp(sink)),  out = sum_j exp(s - lse) * v_j

    The offset o of the alignment is ``Sk - Sq``, or 0 for ``causal="top_left"``. A row that sees no key gives 0; its
    lse is minus infinity, or the sink. Keys and values that a row does not see do not reach it, even if they are NaN.
    Those that it sees follow the arithmetic: a NaN in a key makes the row NaN, one in a value its column of the row,
    and an infinite value makes that infinite. Where a seen key has no weight left, its value, if it is infinite or NaN,
    gives NaN or counts as not there. That is so where the product is minus infinity, of an infinite key, or where the
    score is so far below the row's largest that the weight is rounded to 0: by some 87, and by some 17 for float16
    arrays on a GPU. A bias of minus infinity always takes the value away.

    Parameters
    ----------
    q : array, ``[B, Hq, Sq, D]``
        Queries: float32, float16 or bfloat16, with any strides. NumPy array, `DeviceTensor`, or an object with
        ``__dlpack__`` such as a torch tensor. D is 1 to 256.
    k : array, ``[B, Hkv, Sk, D]``
        Keys, of the dtype of q. Query head h reads key-value head ``h // (Hq // Hkv)``.
    v : array, ``[B, Hkv, Sk, Dv]``
        Values, of the dtype of q. Dv is 1 to 256.
    layout : {"bhsd", "bshd"}
        Order of the axes of q, k, v and the result; with "bshd" they are ``[B, S, H, D]``. Not used for packed arrays.
    causal : {False, True, "bottom_right", "top_left"}
        ``True`` and "bottom_right": key j is visible iff ``j <= i + Sk - Sq``. "top_left": iff ``j <= i``.
    window : (left, right), optional
        Keys that a row sees on either side of its diagonal key: ``i + o - left <= j <= i + o + right``. None on a side
        is unlimited. A model's ``sliding_window = W`` is ``left = W - 1``.
    scale : float, optional
        ``1 / sqrt(D)`` by default.
    softcap : float, optional
        Bound of the scores, positive.
    alibi_slopes : array, ``[Hq]`` or ``[B, Hq]``, optional
        Slopes of linear biases, float32, float16 or bfloat16. B is the number of sequences if packed.
    bias : array, optional
        Added to the scores; float32, float16 or bfloat16; broadcastable to ``[B, Hq, Sq, Sk]``. Minus infinity takes
        a key's weight away, but a NaN in the key stays one: where keys are padding, use `mask`.
    mask : array, optional
        bool, True where a key is visible; broadcastable to ``[B, Hq, Sq, Sk]``.
    sinks : array, ``[Hq]``, optional
        One more logit for each head, in the denominator only; float32, float16 or bfloat16.
    seqlens_k, leftpad_k : array, ``[B]``, optional
        int32. The keys of batch element n are rows ``leftpad_k[n]`` to ``seqlens_k[n]`` of its k and v: it is as if the
        others, and the columns of `bias` and `mask` that belong to them, were not there. So Sk is ``seqlens_k[n] -
        leftpad_k[n]`` in what is said of `causal`, `window` and `alibi_slopes`. By default all rows up to the end, or
        from the first. They may lie in host memory whatever q does; in device memory they are not looked at, and a
        number beyond the rows of k counts as all of them. Not for packed arrays.
    return_lse : bool
        Also return the natural-log log-sum-exp of the scores, sink included.
    cu_seqlens_q, cu_seqlens_k : array, ``[n + 1]``, optional
        int32. Sequence n is rows ``cu[n]`` to ``cu[n + 1]`` of the packed q ``[total_q, Hq, D]``, or of k
        ``[total_k, Hkv, D]`` and v ``[total_k, Hkv, Dv]``. Sequences may be empty. Without `bias` and `mask`.
    max_seqlen_q, max_seqlen_k : int, optional
        Length of the longest sequence or more; found out by default.
    out : array, or (array, array) with ``return_lse=True``, optional
        Where to write the result (and the lse): exact shape, apart from the inputs; of the dtype of q, or float32,
        which is the result before it is rounded. No result is allocated.
    stream : optional
        Stream that orders the work; the default stream of the device otherwise.

    Returns
    -------
    out : array, ``[B, Hq, Sq, Dv]`` (``[B, Sq, Hq, Dv]``, ``[total_q, Hq, Dv]``)
        Of the kind and the dtype of q. Computed in float32, rounded once. The sum of weights and values is divided
        last, with weights up to 1: float32 values of which some lie above 3.4e38 by the number of keys can give an
        infinity.
    lse : array, float32, ``[B, Hq, Sq]`` (packed: ``[Hq, total_q]``)
        Only with ``return_lse=True``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it. Nothing has been allocated or written then.
    TargetError
        The arrays lie on a device that no target here can reach.

    References
    ----------
    Dao, Fu, Ermon, Rudra, Re: FlashAttention (2022). Dao: FlashAttention-2 (2023). Press, Smith, Lewis: ALiBi (2022).
    Xiao, Tian, Chen, Han, Lewis: attention sinks (2024).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> q = np.random.default_rng(0).standard_normal((1, 8, 128, 64), dtype=np.float32)
    >>> k = v = q[:, :2]
    >>> rocmkern.flash_attention(q, k, v, causal=True).shape
    (1, 8, 128, 64)
    """
    # Checks
    visibility = Visibility.of(causal, window)
    tensors = Tensors.of(q, k, v, layout, packed=cu_seqlens_q is not None or cu_seqlens_k is not None)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    sequences = Sequences.packed(tensors, *lengths, seqlens_k, leftpad_k)
    scores = Scores.of(
        tensors,
        sequences,
        scale=scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        bias=bias,
        mask=mask,
        sinks=sinks,
    )
    return attend(Attention(tensors, visibility, scores, sequences), return_lse, out, stream)


@overload
def decode_attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_lse: Literal[False] = False,
    out: Array | None = None,
    **options: Unpack[DecodeAttentionOptions],
) -> Array: ...
@overload
def decode_attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_lse: Literal[True],
    out: Array | tuple[Array, Array] | None = None,
    **options: Unpack[DecodeAttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def decode_attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_lse: bool,
    out: Array | tuple[Array, Array] | None = None,
    **options: Unpack[DecodeAttentionOptions],
) -> Array | tuple[Array, Array]: ...
@planned
def decode_attention(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    *,
    layout: Layout = "bhsd",
    causal: Causal = False,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    seqlens_k: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    return_lse: bool = False,
    num_splits: int | None = None,
    out: Array | tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, Array]:
    """Attention of few queries over many keys: `flash_attention` with the keys split among blocks.

    Each split gives a partial result; they are joined by their log-sum-exps (`merge_attention`). The meaning is that of
    `flash_attention`, and so are the parameters that are not listed here.

    Parameters
    ----------
    q : array, ``[B, Hq, Sq, D]``
        Queries; Sq is 1 for a step of decoding, and any length is right.
    k, v : array, ``[B, Hkv, Sk, D]`` and ``[B, Hkv, Sk, Dv]``
        Keys and values.
    num_splits : int, optional
        Number of parts of the keys, at least 1; chosen from the shapes by default. A part holds at least one block of
        keys: parts beyond that would be empty, and there are none. Results differ by rounding only,
        that of the float32 log-sum-exps of the parts included: it is felt where scores are beyond about 1e4.

    Returns
    -------
    out : array, ``[B, Hq, Sq, Dv]`` (``[B, Sq, Hq, Dv]``)
    lse : array, float32, ``[B, Hq, Sq]``
        Only with ``return_lse=True``.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `flash_attention`.

    References
    ----------
    Dao, Haziza, Massa, Sizov: Flash-Decoding for long-context inference (2023).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rng = np.random.default_rng(0)
    >>> q = rng.standard_normal((1, 32, 1, 64), dtype=np.float32)
    >>> k, v = rng.standard_normal((2, 1, 8, 4096, 64), dtype=np.float32)
    >>> rocmkern.decode_attention(q, k, v).shape
    (1, 32, 1, 64)
    """
    # Checks
    visibility = Visibility.of(causal, window)
    tensors = Tensors.of(q, k, v, layout)
    sequences = Sequences.of(tensors, seqlens_k, leftpad_k)
    scores = Scores.of(
        tensors,
        sequences,
        scale=scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        bias=bias,
        mask=mask,
        sinks=sinks,
    )
    parts = parts_of_keys(num_splits)
    return attend(Attention(tensors, visibility, scores, sequences, num_splits=parts), return_lse, out, stream)


@planned
def merge_attention(
    o1: Array,
    lse1: ArrayLike,
    o2: ArrayLike,
    lse2: ArrayLike,
    *,
    layout: Layout = "bhsd",
    out: Array | tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """Attention over the union of two disjoint sets of keys, from the results over each.

    ``lse = ln(exp(lse1) + exp(lse2))``, ``out = exp(lse1 - lse) * o1 + exp(lse2 - lse) * o2``. A part that saw no key
    (lse of minus infinity) is not looked at; where neither did, the result is 0 and minus infinity.

    Parameters
    ----------
    o1, o2 : array, ``[B, H, S, D]`` (``[B, S, H, D]``), or packed ``[total, H, D]``
        Results of `flash_attention`: float32, float16 or bfloat16. D is 1 to 256.
    lse1, lse2 : array, float32, ``[B, H, S]``, or packed ``[H, total]``
        Their log-sum-exps. A sink may be part of one of them, not of both.
    layout : {"bhsd", "bshd"}
        Order of the axes of `o1`, `o2` and the result. Not used for packed arrays.
    out : (array, array) or array, optional
        Where to write the result and its lse, or the result alone. The result may be `o1` or `o2` itself, or float32
        whatever they are; the lse is apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    out : array
        Like `o1`. Computed in float32, rounded once.
    lse : array, float32
        Like `lse1`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `flash_attention`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 8, 4), dtype=np.float32)
    >>> first = rocmkern.flash_attention(q, k[:, :, :5], v[:, :, :5], return_lse=True)
    >>> second = rocmkern.flash_attention(q, k[:, :, 5:], v[:, :, 5:], return_lse=True)
    >>> merged, lse = rocmkern.merge_attention(*first, *second)
    >>> bool(np.allclose(merged, rocmkern.flash_attention(q, k, v), atol=1e-6))
    True
    """
    # Checks
    layout, stream = _checks.layout(layout), _checks.stream(stream)
    o1, o2 = accept("o1", o1), accept("o2", o2)
    lse1, lse2 = accept("lse1", lse1, (FLOAT32,)), accept("lse2", lse2, (FLOAT32,))
    inputs = [o1, lse1, o2, lse2]
    _arguments.same_place(o1, inputs)
    _arguments.same_dtype(o1, [o2])
    if len(o1.shape) == 3:
        layout = "packed"
    else:
        _checks.rank(o1, "B H S D" if layout == "bhsd" else "B S H D")
    _checks.head_dim(o1)
    _checks.same_shape(o2, o1.shape, "the shape of o1")
    shape_of_lse = lse_shape(o1.shape, layout)
    for lse in (lse1, lse2):
        _checks.same_shape(lse, shape_of_lse, "that of the rows of o1")
    given, given_lse = checked_outputs(out, True, o1.shape, o1.dtype, shape_of_lse, inputs, elementwise=True)

    # Configuration
    result = given or _results.allocate("out", o1.shape, o1.dtype, o1)
    result_lse = given_lse or _results.allocate("lse", shape_of_lse, FLOAT32, o1)

    # Launch
    if result_lse.view.size:
        # deferred: start-up
        from rocmkern.ops.attention.launch import launch_merge

        launch_merge(
            heads_second(o1.aligned(), layout),
            lse_with_batch(lse1.aligned(), layout),
            heads_second(o2.aligned(), layout),
            lse_with_batch(lse2.aligned(), layout),
            heads_second(result.view, layout),
            lse_with_batch(result_lse.view, layout),
            stream,
        )
    return result.source, result_lse.source


def attend(
    problem: Attention,
    return_lse: bool,
    out: Array | tuple[Array, Array] | None,
    stream: Stream,
    queries: View | None = None,
) -> Array | tuple[Array, Array]:
    """The result of a problem, and its log-sum-exps if they are asked for.

    `queries` are what stands for those of the problem in the launch: others made of them.
    """
    # Checks
    stream, return_lse = _checks.stream(stream), _checks.flag("return_lse", return_lse)
    tensors = problem.tensors
    shape, shape_of_lse, dtype = tensors.out_shape, tensors.lse_shape, tensors.q.dtype
    given, given_lse = checked_outputs(out, return_lse, shape, dtype, shape_of_lse, problem.inputs)

    # Configuration
    result = given or _results.allocate("out", shape, dtype, tensors.q)
    lse = (given_lse or _results.allocate("lse", shape_of_lse, FLOAT32, tensors.q)) if return_lse else None
    lse_view = None if lse is None else lse_with_batch(lse.view, tensors.layout)

    # Launch
    # The kernel's log-sum-exp of nothing but a sink is a rounding off what is written here.
    by_kernel = lse is not None and problem.scores.sinks is not None and _invariance.active()
    if (problem.sequences.max_k == 0 or tensors.k.shape[0] == 0) and not by_kernel:
        _fill_without_keys(result.view, lse_view, problem.scores.sinks, stream)
    elif result.view.size:
        # deferred: start-up
        from rocmkern.ops.attention.launch import launch_attention

        if queries is not None:
            problem = replace(problem, tensors=replace(tensors, q=Argument("q", queries, tensors.q.source)))
        launch_attention(problem, heads_before_rows(result.view, tensors.layout), lse_view, stream)
    return (result.source, lse.source) if lse is not None else result.source


def _fill_without_keys(out: View, lse: View | None, sinks: Argument | None, stream: Stream) -> None:
    """What attention over no keys is: nothing to launch."""
    _results.assign(out, 0, stream)
    if lse is not None:
        _results.assign(lse, -np.inf if sinks is None else read(sinks.view)[:, None], stream)
