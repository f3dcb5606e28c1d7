"""Launches of sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmkern.calls.arguments import Argument
from rocmkern.calls.launch import error_word_for, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View, view_of
from rocmkern.ops.sampling.kernels import sample
from rocmkern.ops.sampling.tuning import sampling
from rocmkern.runtime.errors import ArgumentError

#: Element types of arrays of temperatures, of top-k, of top-p, of seeds and of offsets.
KINDS = (np.float32, np.int64, np.float32, np.int64, np.int64)


def not_a_distribution(given: str) -> ArgumentError:
    """The error for logits that nothing can be drawn from."""
    allowed = "finite numbers, or minus infinity for tokens that must not be drawn, but not for all of a row"
    return ArgumentError("logits", given, allowed)


def _out_of_range() -> ArgumentError:
    given = "a number of a row, in device memory, that is out of range"
    return ArgumentError(
        "temperature, top_k or top_p", given, "a temperature of at least 0, a top_k of at least 1, a top_p in (0, 1]"
    )


def launch_sample(logits: View, out: View, numbers: Sequence[float | Argument], stream: Stream) -> None:
    """``kernels.sample``, which sees a row as parts that lie ``own`` columns apart and may overlap.

    ``numbers`` are temperature, top-k, top-p, seed and offset: one for all rows, or an array of one for each.
    """
    target = target_for(logits)
    per_row = any(isinstance(number, Argument) for number in numbers)
    cfg = sampling(target.arch, per_row)
    batch, columns = logits.shape
    own = columns // cfg.block_m
    parts = logits.windows(
        (batch, cfg.block_m, columns - (cfg.block_m - 1) * own),
        (logits.strides[0], own * logits.strides[1], logits.strides[1]),
    )
    errors = [
        error_word_for(
            target,
            "sample: logits",
            lambda: not_a_distribution(
                "a row, in device memory, with NaN, plus infinity or nothing but minus infinity"
            ),
        ),
        error_word_for(target, "sample: numbers", _out_of_range),
    ]
    names = ("temperature", "top_k", "top_p", "seed", "offset")
    arrays: list[Any] = [None] * len(names)
    words = list(numbers)
    if per_row:
        words = [1.0, 1, 1.0, 0, 0]  # what is in no row's place must only be in range
        arrays = [
            number.aligned()
            if isinstance(number, Argument)
            else view_of(np.array([number], kind)).broadcast_to((batch,))
            for number, kind in zip(numbers, KINDS, strict=True)
        ]
    args = {"x": parts, "out": out, "error": errors[0], "refused": errors[1], "own": own}
    args |= dict(zip(names, words, strict=True))
    args |= dict(zip(("temperatures", "limits", "shares", "seeds", "offsets"), arrays, strict=True))
    launch(target, sample.sample, cfg, (batch, 1, 1), args, stream)
