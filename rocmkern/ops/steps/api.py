"""The steps of attention as operations of their own; composed they equal `rocmkern.flash_attention`.

They are for models that need the scores themselves, and for finding out which step of a model is wrong. What each one
means is `rocmkern.ops.steps.reference`; how it is computed, the kernels beside it.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import FLOATS, accept, accept_out
from rocmkern.calls.axes import four_axes, heads_second
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Causal, FloatDType, Layout, Stream, Window
from rocmkern.ops.attention.problem import Visibility


@planned
def qk_scores(
    q: Array,
    k: ArrayLike,
    *,
    scale: float | None = None,
    layout: Layout = "bhsd",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Scores of attention: ``scale * q @ k^T``.

    Parameters
    ----------
    q : array, ``[B, Hq, Sq, D]``
        Queries: float32, float16 or bfloat16, with any strides. D is 1 to 256.
    k : array, ``[B, Hkv, Sk, D]``
        Keys, of the dtype of q. Query head h reads key-value head ``h // (Hq // Hkv)``.
    scale : float, optional
        ``1 / sqrt(D)`` by default.
    layout : {"bhsd", "bshd"}
        Order of the axes of q and k; with "bshd" they are ``[B, S, H, D]``.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[B, Hq, Sq, Sk]``
        In either layout. Of the kind and the dtype of q; summed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> q = np.ones((1, 1, 2, 4), np.float32)
    >>> rocmkern.qk_scores(q, q)
    array([[[[2., 2.],
             [2., 2.]]]], dtype=float32)
    """
    # Checks
    layout, stream = _checks.layout(layout), _checks.stream(stream)
    q, k = accept("q", q), accept("k", k)
    _arguments.same_place(q, [k])
    _arguments.same_dtype(q, [k])
    _checks.rank(q, "B Hq Sq D" if layout == "bhsd" else "B Sq Hq D")
    _checks.rank(k, "B Hkv Sk D" if layout == "bhsd" else "B Sk Hkv D")
    factor = _checks.softmax_scale(scale, _checks.head_dim(q))
    _checks.extent(k, -1, q.shape[-1], "the head dimension of q")
    _checks.extent(k, 0, q.shape[0], "the batch size of q")
    queries, keys = heads_second(q.aligned(), layout), heads_second(k.aligned(), layout)
    _checks.grouped_heads(k, keys.shape[1], queries.shape[1])
    shape = (*queries.shape[:3], keys.shape[2])
    given = None if out is None else accept_out(out, shape, q.dtype, [q, k])

    # Configuration
    result = given or _results.allocate("out", shape, q.dtype, q)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.steps.launch import launch_qk_scores

        launch_qk_scores(queries, keys, result.view, factor, stream)
    return result.source


@overload
def causal_mask(
    sq: int,
    sk: int,
    *,
    causal: Causal = ...,
    window: Window = ...,
    dtype: FloatDType = ...,
    out: None = ...,
    stream: Stream = ...,
) -> np.ndarray: ...
@overload
def causal_mask(
    sq: int,
    sk: int,
    *,
    causal: Causal = ...,
    window: Window = ...,
    dtype: FloatDType = ...,
    out: Array,
    stream: Stream = ...,
) -> Array: ...
@overload
def causal_mask(
    sq: int,
    sk: int,
    *,
    causal: Causal = ...,
    window: Window = ...,
    dtype: FloatDType = ...,
    out: Array | None,
    stream: Stream = ...,
) -> np.ndarray | Array: ...
@planned
def causal_mask(
    sq: int,
    sk: int,
    *,
    causal: Causal = "bottom_right",
    window: Window = None,
    dtype: FloatDType = np.float32,
    out: ArrayLike | None = None,
    stream: Stream = None,
) -> Any:
    """Additive mask: 0 where key j is visible to query i, minus infinity elsewhere.

    Key j is visible iff ``i + o - left <= j <= i + o + right``, and for a causal mask ``j <= i + o``, with the offset o
    of the alignment: ``sk - sq`` at the bottom right, 0 at the top left.

    Parameters
    ----------
    sq, sk : int
        Number of queries and of keys, at least 0.
    causal : {"bottom_right", True, "top_left", False}
        True is "bottom_right"; with False only the window counts, aligned at the bottom right.
    window : (left, right), optional
        Keys on either side of the diagonal key; None on a side is unlimited.
    dtype : dtype
        float32 by default, float16 or bfloat16 (``ml_dtypes.bfloat16``), or a dtype of PyTorch.
    out : array, ``[sq, sk]``, optional
        Where to write the result; of this dtype.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[sq, sk]``
        A NumPy array, or `out`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.

    Examples
    --------
    >>> import rocmkern
    >>> rocmkern.causal_mask(2, 3)
    array([[  0.,   0., -inf],
           [  0.,   0.,   0.]], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    shape = (_checks.integer("sq", sq, 0), _checks.integer("sk", sk, 0))
    seen = Visibility.of(causal, window)
    wanted = _checks.float_dtype(dtype)
    given = None if out is None else accept_out(out, shape, wanted)

    # Configuration
    result = given or _results.allocate("out", shape, wanted)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.steps.launch import launch_causal_mask

        launch_causal_mask(result.view, seen.left, seen.right, seen.offset(*shape), stream)
    return result.source


@planned
def apply_mask(
    scores: Array,
    mask: ArrayLike,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Masked scores: ``scores + mask``, or minus infinity where a boolean mask is False.

    A NaN in the scores is hidden by a boolean mask only.

    Parameters
    ----------
    scores : array, ``[...]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    mask : array
        bool (True = visible), or float32, float16 or bfloat16 (added); broadcastable to the shape of `scores`.
    out : array, optional
        Where to write the result; `scores` itself is allowed.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[...]``
        Of the shape, kind and dtype of `scores`. Added in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `qk_scores`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.apply_mask(np.ones((1, 3), np.float32), np.array([True, False, True]))
    array([[  1., -inf,   1.]], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    scores, mask = accept("scores", scores), _checks.accept_mask("mask", mask, FLOATS)
    _arguments.same_place(scores, [mask])
    _checks.some_axes(scores)
    mask_view = _checks.broadcastable(mask, scores.shape, "the shape of scores")
    whole_mask = _arguments.Argument(mask.name, mask_view, mask.source)
    inputs = [scores, whole_mask]
    given = None if out is None else accept_out(out, scores.shape, scores.dtype, inputs, elementwise=True)

    # Configuration
    result = given or _results.allocate("out", scores.shape, scores.dtype, scores)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.steps.launch import launch_apply_mask

        for some_scores, some_mask, some_out in four_axes(scores.aligned(), mask_view, result.view):
            launch_apply_mask(some_scores, some_mask, some_out, stream)
    return result.source


@planned
def softmax(
    x: Array,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Softmax over the last axis: ``exp(x - max(x)) / sum(exp(x - max(x)))``.

    A row of minus infinities gives zeros, as a row of attention that sees no key; NaN and plus infinity give NaN.

    Parameters
    ----------
    x : array, ``[..., n]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from x.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[..., n]``
        Of the shape, kind and dtype of x. Computed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `qk_scores`.

    References
    ----------
    Milakov, Gimelshein: Online normalizer calculation for softmax (2018).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.softmax(np.zeros((1, 4), np.float32))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    x = accept("x", x)
    _checks.some_axes(x)
    given = None if out is None else accept_out(out, x.shape, x.dtype, [x])

    # Configuration
    result = given or _results.allocate("out", x.shape, x.dtype, x)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.steps.launch import launch_softmax

        for rows, some_out in four_axes(x.aligned(), result.view, row_axes=1):
            launch_softmax(rows, some_out, stream)
    return result.source


@planned
def weighted_values(
    p: Array,
    v: ArrayLike,
    *,
    layout: Layout = "bhsd",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Sums of values: ``p @ v``.

    Parameters
    ----------
    p : array, ``[B, Hq, Sq, Sk]``
        Weights, in this order in either layout: float32, float16 or bfloat16, with any strides.
    v : array, ``[B, Hkv, Sk, Dv]``
        Values, of the dtype of p. Head h of p reads head ``h // (Hq // Hkv)``. Dv is 1 to 256.
    layout : {"bhsd", "bshd"}
        Order of the axes of v and of the result; with "bshd" they are ``[B, S, H, Dv]``.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[B, Hq, Sq, Dv]`` (``[B, Sq, Hq, Dv]``)
        Of the kind and the dtype of p; summed in float32, rounded once. 0 if there are no keys.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `qk_scores`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> p = np.full((1, 1, 1, 2), 0.5, np.float32)
    >>> v = np.array([[[[1.0, 2.0], [3.0, 6.0]]]], np.float32)
    >>> rocmkern.weighted_values(p, v)
    array([[[[2., 4.]]]], dtype=float32)
    """
    # Checks
    layout, stream = _checks.layout(layout), _checks.stream(stream)
    p, v = accept("p", p), accept("v", v)
    _arguments.same_place(p, [v])
    _arguments.same_dtype(p, [v])
    _checks.rank(p, "B Hq Sq Sk")
    _checks.rank(v, "B Hkv Sk Dv" if layout == "bhsd" else "B Sk Hkv Dv")
    value_dim = _checks.head_dim(v)
    _checks.extent(v, 0, p.shape[0], "the batch size of p")
    _checks.extent(v, 2 if layout == "bhsd" else 1, p.shape[3], "the number of keys of p")
    values = heads_second(v.aligned(), layout)
    _checks.grouped_heads(v, values.shape[1], p.shape[1])
    batch, heads, sq, sk = p.shape
    shape = (batch, heads, sq, value_dim) if layout == "bhsd" else (batch, sq, heads, value_dim)
    given = None if out is None else accept_out(out, shape, p.dtype, [p, v])

    # Configuration
    result = given or _results.allocate("out", shape, p.dtype, p)

    # Launch
    if sk == 0:
        _results.assign(result.view, 0, stream)
    elif result.view.size:
        # deferred: start-up
        from rocmkern.ops.steps.launch import launch_weighted_values

        launch_weighted_values(p.aligned(), values, heads_second(result.view, layout), stream)
    return result.source


@planned
def scale(
    x: Array,
    factor: float,
    *,
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Product with a number: ``x * factor``.

    Parameters
    ----------
    x : array, ``[...]``
        float32, float16 or bfloat16, at least one axis, with any strides.
    factor : float
        Finite; rounded to float32.
    out : array, optional
        Where to write the result; x itself is allowed.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[...]``
        Of the shape, kind and dtype of x. Multiplied in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `qk_scores`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> rocmkern.scale(np.array([1.0, 2.0], np.float32), 0.5)
    array([0.5, 1. ], dtype=float32)
    """
    # Checks
    stream = _checks.stream(stream)
    x = accept("x", x)
    _checks.some_axes(x)
    factor = _checks.number("factor", factor)
    given = None if out is None else accept_out(out, x.shape, x.dtype, [x], elementwise=True)

    # Configuration
    result = given or _results.allocate("out", x.shape, x.dtype, x)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.steps.launch import launch_scale

        for some, some_out in four_axes(x.aligned(), result.view):
            launch_scale(some, some_out, factor, stream)
    return result.source


@planned
def repeat_kv(
    x: Array,
    n_rep: int,
    *,
    layout: Layout = "bhsd",
    out: Array | None = None,
    stream: Stream = None,
) -> Array:
    """Key-value heads for every query head: head h of the result is head ``h // n_rep`` of x.

    `flash_attention` does not need it: it reads shared heads where they are.

    Parameters
    ----------
    x : array, ``[B, Hkv, S, D]``
        float32, float16 or bfloat16, with any strides.
    n_rep : int
        Query heads a key-value head, at least 1.
    layout : {"bhsd", "bshd"}
        Order of the axes of x and of the result; with "bshd" they are ``[B, S, H, D]``.
    out : array, optional
        Where to write the result: exact shape and dtype, apart from x.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    array, ``[B, Hkv * n_rep, S, D]`` (``[B, S, Hkv * n_rep, D]``)
        Of the kind and the dtype of x, bit for bit.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `qk_scores`.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x = np.arange(2, dtype=np.float32).reshape(1, 2, 1, 1)
    >>> rocmkern.repeat_kv(x, 2).ravel()
    array([0., 0., 1., 1.], dtype=float32)
    """
    # Checks
    layout, stream = _checks.layout(layout), _checks.stream(stream)
    x = accept("x", x)
    _checks.rank(x, "B Hkv S D" if layout == "bhsd" else "B S Hkv D")
    n_rep = _checks.integer("n_rep", n_rep, 1)
    head_axis = 1 if layout == "bhsd" else 2
    shape = tuple(n * n_rep if axis == head_axis else n for axis, n in enumerate(x.shape))
    given = None if out is None else accept_out(out, shape, x.dtype, [x])

    # Configuration
    result = given or _results.allocate("out", shape, x.dtype, x)

    # Launch
    if result.view.size:
        # deferred: start-up
        from rocmkern.ops.steps.launch import launch_repeat_kv

        launch_repeat_kv(heads_second(x.aligned(), layout), heads_second(result.view, layout), n_rep, stream)
    return result.source
