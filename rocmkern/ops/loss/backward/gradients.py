"""Gradients of a cross-entropy over a vocabulary, a part of the logits at a time.

With dz the gradient of the logits (`kernels/logit_gradients.py`), rounded to the dtype of x::

    dx = dz @ weight     dweight = dz^T @ x     dbias = ones @ dz

Parts are all rows of some tokens: then the gradients of their weights are complete, and that of x is added up in
float32. In half precision that sum is a float32 array of its own; where it is too large, or no gradient of weights is
wanted, parts are all tokens of some rows, which are complete gradients of these rows. Beside inputs and gradients there
is never more than `SHARE` of the logits, or one block of them; and, for the time of a product whose inner axis is
split, a block in float32 for each that runs at the same time.
"""

from __future__ import annotations

from typing import NamedTuple

from rocmkern.calls.arguments import FLOAT32
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.inner import Inner
from rocmkern.ops.linear.backward.products import bytes_of_sums, summed_rows
from rocmkern.ops.linear.products import multiply
from rocmkern.ops.loss.problem import CrossEntropy

#: Share of the logits that inner results may have.
SHARE = 0.1
#: How much of that may be the sum for x.
_OF_SUM = 0.75


class Problem(NamedTuple):
    """Arrays of a cross-entropy: rows ``x`` [M, K], and one number for each row.

    Attributes
    ----------
    x, weight, bias, labels, lse, factors : View
        ``[M, K]``, ``[V, K]``, ``[1, V]`` or None, and ``[M]``.
    options : CrossEntropy
    """

    x: View
    weight: View
    bias: View | None
    labels: View
    lse: View
    factors: View
    options: CrossEntropy


class Gradients(NamedTuple):
    """Where gradients are written; None: not wanted. With ``accumulate`` they are added to what is there."""

    x: View | None
    weight: View | None
    bias: View | None
    accumulate: bool


def row_factors(inner: Inner, dloss: View, labels: View, options: CrossEntropy) -> View:
    """What the gradient of each row's loss is multiplied by, for ``dloss`` ``[]`` or ``[...]``."""
    # deferred: start-up
    from rocmkern.ops.loss.backward.launch import launch_row_factors

    each = inner.reshaped(dloss, labels.shape) if options.reduction == "none" else dloss.broadcast_to(labels.shape)
    factors = inner.room(labels.shape, FLOAT32)
    launch_row_factors(each, labels, factors, options, inner.stream)
    return factors


def token_gradients(problem: Problem, into: Gradients, stream: Stream) -> None:
    """Write the gradients that are wanted."""
    by_tokens = into.weight is not None or into.bias is not None
    dx = into.x
    if dx is not None and (not by_tokens or not _has_room(dx, problem, into)):
        _by_rows(problem, dx, into.accumulate, stream)
        dx = None
    if by_tokens:
        _by_tokens(problem, into._replace(x=dx), stream)


def _has_room(dx: View, problem: Problem, into: Gradients) -> bool:
    """Whether the sum for the gradient of x may be held, with a block of logits beside it."""
    # deferred: start-up
    from rocmkern.ops.loss.backward.launch import block_of

    allowed, nbytes = _allowed(problem), _bytes_of_sum(dx)
    block = block_of(problem.x)[1] * _bytes_of_token(problem, into)
    return nbytes == 0 or (nbytes <= _OF_SUM * allowed and nbytes + block <= allowed)


def _bytes_of_token(problem: Problem, into: Gradients) -> int:
    """Those of the logits of a token for all rows, and of what their sum needs where that is wanted."""
    rows = problem.x.shape[0]
    return rows * problem.x.itemsize + (0 if into.bias is None else bytes_of_sums(rows))


def _allowed(problem: Problem) -> float:
    """Bytes that inner results may have."""
    rows = problem.x.shape[0]
    return SHARE * rows * problem.options.tokens * problem.x.itemsize - problem.factors.nbytes


def _bytes_of_sum(dx: View | None) -> int:
    """Those of the sum for the gradient of x; none where it is added up where it is."""
    return 0 if dx is None or dx.dtype == FLOAT32 else dx.size * FLOAT32.itemsize


def _by_rows(problem: Problem, dx: View, accumulate: bool, stream: Stream) -> None:
    """All tokens of some rows at a time: the gradients of these rows are complete."""
    # deferred: start-up
    from rocmkern.ops.loss.backward.launch import block_of, launch_logit_gradients

    x, weight, bias, labels, lse, factors, options = problem
    rows, tokens = x.shape[0], options.tokens
    step = _step(rows, _allowed(problem), tokens * x.itemsize, block_of(x)[0])
    with Inner(x, stream) as inner:
        room = inner.room((min(step, rows), tokens), x.dtype)
        for row0 in range(0, rows, step):
            some = slice(row0, min(row0 + step, rows))
            dz = room[: some.stop - row0]
            launch_logit_gradients(
                x[some], weight, bias, labels[some], lse[some], factors[some], dz, 0, options, inner.stream
            )
            multiply(dz, weight, None, dx[some], None, inner.stream, accumulate=accumulate)


def _by_tokens(problem: Problem, into: Gradients, stream: Stream) -> None:
    """All rows of some tokens at a time: the gradients of their weights and biases are complete."""
    # deferred: start-up
    from rocmkern.ops.loss.backward.launch import block_of, launch_logit_gradients

    x, weight, bias, labels, lse, factors, options = problem
    rows, tokens, dx = x.shape[0], options.tokens, into.x
    allowed = _allowed(problem) - _bytes_of_sum(dx)
    step = _step(tokens, allowed, _bytes_of_token(problem, into), block_of(x)[1])
    with Inner(x, stream) as inner:
        total = None if dx is None else inner.written(dx, dx.shape, FLOAT32, filled=into.accumulate)
        room = inner.room((rows * min(step, tokens),), x.dtype)
        for first in range(0, tokens, step):
            some = slice(first, min(first + step, tokens))
            columns = some.stop - first
            dz = room[: rows * columns].reshape(rows, columns)
            biases = None if bias is None else bias[:, some]
            launch_logit_gradients(x, weight[some], biases, labels, lse, factors, dz, first, options, inner.stream)
            if total is not None:
                multiply(dz, weight[some], None, total, None, inner.stream, accumulate=first > 0 or into.accumulate)
            if into.weight is not None:
                multiply(dz.swapaxes(0, 1), x, None, into.weight[some], None, inner.stream, accumulate=into.accumulate)
            if into.bias is not None:
                with Inner(x, inner.stream) as sums:
                    summed_rows(sums, dz, into.bias[some], into.accumulate)


def _step(length: int, allowed: float, nbytes: int, block: int) -> int:
    """How much of an axis is a part, for the bytes of one of it: whole blocks, one at least."""
    return max(int(allowed / nbytes) // block, 1) * block if nbytes else max(length, 1)
