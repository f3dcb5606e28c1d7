"""The gradient of attention: `flash_attention_backward`.

What it means is `reference.py` beside this file; how it is computed, the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocmkern.calls import checks as _checks
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Causal, Layout, Stream, Window
from rocmkern.ops.attention.backward.problem import Given, asked_for, gradients_of
from rocmkern.ops.attention.problem import Attention, Scores, Sequences, Tensors, Visibility

if TYPE_CHECKING:
    from rocmkern.calls.arguments import Argument


@planned
def flash_attention_backward(
    dout: ArrayLike,
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    lse: ArrayLike,
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
    cu_seqlens_q: ArrayLike | None = None,
    cu_seqlens_k: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dlse: ArrayLike | None = None,
    return_dbias: bool = False,
    return_dsinks: bool = False,
    return_dalibi_slopes: bool = False,
    out: tuple[Array, ...] | None = None,
    stream: Stream = None,
) -> tuple[Array, ...]:
    """Gradients of `flash_attention`, from its result and its log-sum-exp, without the S x S matrix of scores.

    For query row i and key j of one head, with the scores s of `flash_attention`::

        p_ij = min(exp(s_ij - lse_i), 1)
        ds_ij = p_ij * (dout_i . v_j - dout_i . o_i + dlse_i)
        dx_ij = scale * ds_ij * (1 - tanh(scale * q_i . k_j / softcap) ** 2)
        dq_i = sum_j dx_ij k_j,  dk_j = sum_i dx_ij q_i,  dv_j = sum_i p_ij dout_i
        dbias_ij = ds_ij,  dsinks = -sum_i min(exp(sink - lse_i), 1) * (dout_i . o_i - dlse_i)
        dalibi_slopes = -sum_ij ds_ij * |i + o - j|

    Sums for k and v are over all query heads that share a key, those of the others over all that shares the number. A
    row that sees no key gives 0, and so does a key that no row sees, whatever it holds. Sums are added up in a fixed
    order: the same arguments give the same bits.

    Parameters
    ----------
    dout : array, ``[B, Hq, Sq, Dv]``
        Gradient of the result, in the layout of q and of its dtype.
    q, k, v : array
        As in `flash_attention`: float32, float16 or bfloat16.
    o : array, ``[B, Hq, Sq, Dv]``
        Result of `flash_attention` for these arguments: of the dtype of q, or float32.
    lse : array, float32, ``[B, Hq, Sq]`` (packed: ``[Hq, total_q]``)
        Its log-sum-exp, with ``return_lse=True``.
    layout, causal, window, scale, softcap, alibi_slopes, bias, mask, sinks, seqlens_k, leftpad_k, cu_seqlens_q, \
    cu_seqlens_k, max_seqlen_q, max_seqlen_k
        What `flash_attention` was given.
    dlse : array, float32, optional
        Gradient of the log-sum-exp, of its shape, where it has one.
    return_dbias, return_dsinks, return_dalibi_slopes : bool
        Also return the gradients of `bias`, `sinks` and `alibi_slopes`.
    out : tuple of arrays, optional
        Where to write the gradients, in their order: exact shapes, apart from the inputs; each of the dtype of its
        input, or float32, which is the gradient before it is rounded.
    stream : optional
        Stream that orders the work; the default stream of the device otherwise.

    Returns
    -------
    dq, dk, dv : array
        Of the kind of q, and of the shapes and the dtype of q, k and v. Computed in float32, rounded once; weights and
        gradients of scores are rounded to the dtype of q before they are multiplied.
    dbias, dsinks, dalibi_slopes : array
        Those that are asked for, of the shapes and dtypes of `bias`, `sinks` and `alibi_slopes`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it. Nothing has been allocated or written then.
    TargetError
        The arrays lie on a device that no target here can reach.

    References
    ----------
    Dao: FlashAttention-2 (2023).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> q = np.random.default_rng(0).standard_normal((1, 8, 128, 64), dtype=np.float32)
    >>> k = v = q[:, :2]
    >>> o, lse = rocmkern.flash_attention(q, k, v, causal=True, return_lse=True)
    >>> dq, dk, dv = rocmkern.flash_attention_backward(np.ones_like(o), q, k, v, o, lse, causal=True)
    >>> dk.shape
    (1, 2, 128, 64)
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
    given = Given.of(tensors, dout, o, lse, dlse)
    more = asked_for(
        scores,
        return_dbias=return_dbias,
        return_dsinks=return_dsinks,
        return_dalibi_slopes=return_dalibi_slopes,
    )
    stream = _checks.stream(stream)
    problem = Attention(tensors, visibility, scores, sequences)
    inputs: list[Argument] = [tensors.q, tensors.k, tensors.v, *more]
    results = gradients_of(inputs, out, [*problem.inputs, *given.arrays])

    # Launch
    # deferred: start-up
    from rocmkern.ops.attention.backward.launch import launch_gradients

    launch_gradients(problem, given, {f"d{x.name}": y for x, y in zip(inputs, results, strict=True)}, stream)
    return tuple(result.source for result in results)
