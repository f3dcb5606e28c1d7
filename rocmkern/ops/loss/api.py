"""Losses over a vocabulary. How they are computed: `rocmkern.ops.loss.kernels.logit_sums`."""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import FLOAT32, INTEGERS, Argument, accept, accept_outs
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Stream
from rocmkern.calls.view import View
from rocmkern.ops.loss.losses import row_losses
from rocmkern.ops.loss.problem import CrossEntropy
from rocmkern.runtime.errors import ArgumentError

#: Numbers of tokens are int32 in kernels.
_LARGEST = 2**31 - 1
REDUCTIONS = ("mean", "sum", "none")


@planned
def linear_cross_entropy(
    x: Array,
    weight: ArrayLike,
    target: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: Literal["mean", "sum", "none"] = "mean",
    out: tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> tuple[Array, Array]:
    """Cross-entropy of a linear layer over a vocabulary, whose logits are never in memory.

    With the logits ``z = x @ weight^T + bias`` of a row over V tokens, its loss is
    ``lse - (1 - s) z_target - s / V sum_j z_j + z_loss lse^2``, ``lse = ln sum_j exp(z_j)`` and s = `label_smoothing`.

    Parameters
    ----------
    x : array, ``[..., in]``
        float32, float16 or bfloat16, with any strides.
    weight : array, ``[V, in]``
        Of the dtype of x.
    target : array, ``[...]``
        int32 or int64: the token of each row of x, or `ignore_index`. Another number is an error, in device memory
        one that the next wait finds, as in `rocmkern.embedding`.
    bias : array, ``[V]``, optional
        float32, float16 or bfloat16, whatever x is.
    ignore_index : int
        Target of rows whose loss is 0, which do not count for the mean.
    label_smoothing : float
        From 0 to 1.
    z_loss : float
        At least 0: keeps the log-sum-exp near 0 (0 is none).
    softcap : float, optional
        Positive: logits become ``softcap * tanh(z / softcap)``, bias included.
    reduction : {"mean", "sum", "none"}
        Mean over the rows that count (NaN without one), sum, or the losses of all rows.
    out : (array, array), optional
        Where to write loss and log-sum-exps: exact shapes, float32, apart from the inputs.
    stream : optional
        Stream that orders the work.

    Returns
    -------
    loss : array, ``[]``, or ``[...]`` for "none"
        float32, of the kind of x.
    lse : array, ``[...]``
        float32: the log-sum-exp of each row, as `rocmkern.linear_cross_entropy_backward` needs it; as a tensor of
        PyTorch it has no gradient (`z_loss` is what acts on it). Logits, sums and losses are float32. The same bits
        every time, those of a row whatever the others are.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `rocmkern.linear`.
    IndexOutOfRangeError
        From a later wait: a target in device memory is no token.

    References
    ----------
    Milakov, Gimelshein: Online normalizer calculation for softmax (2018). Szegedy et al.: Rethinking the Inception
    architecture (2016), for label smoothing. Chowdhery et al.: PaLM (2022), for the z-loss.

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> x, weight = np.ones((1, 2), np.float32), np.zeros((4, 2), np.float32)
    >>> loss, lse = rocmkern.linear_cross_entropy(x, weight, np.array([3]))
    >>> f"{loss:.4f}", lse.round(4)
    ('1.3863', array([1.3863], dtype=float32))
    """
    # Checks
    stream = _checks.stream(stream)
    x, weight = accept("x", x), accept("weight", weight)
    given_bias = None if bias is None else accept("bias", bias)
    rows = rows_of(x, weight, target, given_bias, ignore_index)
    options = options_of(rows, ignore_index, label_smoothing, z_loss, softcap, reduction)
    shape = x.shape[:-1]
    shapes = shape if options.reduction == "none" else (), shape
    given = _given(out, shapes, rows.inputs)

    # Configuration
    loss, lse = (
        each or _results.allocate(name, wanted, FLOAT32, x)
        for name, each, wanted in zip(("loss", "lse"), given, shapes, strict=True)
    )

    # Launch
    row_losses(x.aligned(), weight.aligned(), rows.bias, rows.labels, loss.view, lse.view, options, stream)
    return loss.source, lse.source


class Rows(NamedTuple):
    """The checked arrays of a cross-entropy, beside x and the weights.

    Attributes
    ----------
    bias : View or None
        ``[1, V]``.
    labels : View
        The targets, ``[...]``.
    inputs : list of Argument
    tokens : int
    """

    bias: View | None
    labels: View
    inputs: list[Argument]
    tokens: int


def rows_of(x: Argument, weight: Argument, target: Any, bias: Argument | None, ignore_index: Any) -> Rows:
    """Check the arrays of a cross-entropy."""
    labels = accept("target", target, INTEGERS)
    inputs = [x, weight, labels] if bias is None else [x, weight, labels, bias]
    _arguments.same_place(x, inputs[1:])
    _arguments.same_dtype(x, [weight])
    _checks.some_axes(x)
    _checks.rank(weight, "V in")
    _checks.extent(weight, 1, x.shape[-1], "the length of the last axis of x")
    tokens = weight.shape[0]
    if not 1 <= tokens <= _LARGEST:
        raise ArgumentError("weight", f"{tokens} tokens in shape {weight.shape}", f"1 to {_LARGEST} tokens")
    _checks.same_shape(labels, x.shape[:-1], "a token for each row of x")
    bias_row = _checks.bias(bias, tokens, "the number of rows of weight")
    ignored = _ignored(ignore_index)
    if not labels.on_device:
        labels = labels.converted(functools.partial(_labels, tokens=tokens, ignored=ignored))
    return Rows(bias_row, labels.aligned(), inputs, tokens)


def options_of(
    rows: Rows, ignore_index: Any, label_smoothing: Any, z_loss: Any, softcap: Any, reduction: Any
) -> CrossEntropy:
    """Check the options of a cross-entropy."""
    smoothing, factor = _checks.number("label_smoothing", label_smoothing), _checks.number("z_loss", z_loss)
    if not 0 <= smoothing <= 1:
        raise ArgumentError("label_smoothing", repr(label_smoothing), "a number from 0 to 1")
    if factor < 0:
        raise ArgumentError("z_loss", repr(z_loss), "0 or a positive number")
    cap = 0.0 if softcap is None else _checks.number("softcap", softcap, positive=True)
    if not isinstance(reduction, str) or reduction not in REDUCTIONS:
        raise ArgumentError("reduction", repr(reduction), ", ".join(map(repr, REDUCTIONS)))
    return CrossEntropy(rows.tokens, _ignored(ignore_index), smoothing, factor, cap, reduction)


def _ignored(value: Any) -> int:
    number = _checks.integer("ignore_index", value, -_LARGEST - 1)
    if number > _LARGEST:
        raise ArgumentError("ignore_index", str(number), f"an integer of at most {_LARGEST}")
    return number


def _labels(array: np.ndarray, tokens: int, ignored: int) -> np.ndarray:
    """Targets as int32 side by side, checked."""
    wrong = np.argwhere(((array < 0) | (array >= tokens)) & (array != ignored))
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        given = f"{array[place]} at index {place}" if place else str(array)
        raise ArgumentError("target", given, f"tokens from 0 to {tokens - 1}, or ignore_index, {ignored}")
    return np.ascontiguousarray(array, np.int32).reshape(array.shape)


def _given(out: Any, shapes: tuple[Any, Any], inputs: list[Argument]) -> tuple[Argument | None, Argument | None]:
    """The arrays of ``out=``: a pair that do not overlap."""
    if out is None:
        return None, None
    words = "a pair of arrays, for the loss and the log-sum-exps"
    loss, lse = accept_outs(out, [(shape, FLOAT32) for shape in shapes], words, inputs)
    return loss, lse
