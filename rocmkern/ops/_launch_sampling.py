"""Launches of sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.kernels import sample
from rocmkern.kernels.sample import LOG2_E
from rocmkern.ops import _configs
from rocmkern.ops._launch import error_word_for, launch, target_for
from rocmkern.runtime.errors import ArgumentError

_WORD = 0xFFFFFFFF


def not_a_distribution(given: str) -> ArgumentError:
    """The error for logits that nothing can be drawn from."""
    allowed = "finite numbers, or minus infinity for tokens that must not be drawn, but not for all of a row"
    return ArgumentError("logits", given, allowed)


def launch_sample(
    logits: Any, out: Any, temperature: float, top_k: int, top_p: float, seed: int, offset: int, stream: Any
) -> None:
    """``kernels.sample``, which sees a row as parts that lie ``own`` columns apart and may overlap."""
    target = target_for(logits)
    cfg = _configs.sampling(target.arch)
    batch, columns = logits.shape
    own = columns // cfg.block_m
    parts = np.lib.stride_tricks.as_strided(
        logits,
        (batch, cfg.block_m, columns - (cfg.block_m - 1) * own),
        (logits.strides[0], own * logits.strides[1], logits.strides[1]),
        subok=True,
        writeable=False,
    )
    greedy = temperature == 0
    error = error_word_for(
        target,
        "sample: logits",
        lambda: not_a_distribution("a row, in device memory, with NaN, plus infinity or nothing but minus infinity"),
    )
    args = [parts, out, error, own, 0.0 if greedy else LOG2_E / temperature, top_k, top_p, int(greedy)]
    args += [word for number in (seed, offset) for word in (number & _WORD, number >> 32)]
    launch(target, sample.sample, cfg, (batch, 1, 1), args, stream)
