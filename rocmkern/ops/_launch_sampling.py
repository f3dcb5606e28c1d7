"""Launches of sampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.kernels import sample
from rocmkern.kernels.sample import LOG2_E
from rocmkern.ops import _configs
from rocmkern.ops._launch import launch, target_for

_WORD = 0xFFFFFFFF


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
    args = [parts, out, own, 0.0 if greedy else LOG2_E / temperature, top_k, top_p, int(greedy)]
    args += [word for number in (seed, offset) for word in (number & _WORD, number >> 32)]
    launch(target, sample.sample, cfg, (batch, 1, 1), args, stream)
