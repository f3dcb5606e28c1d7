"""Transformers over ranks: a model whose tokens are shared out, with attention that reaches those of all ranks.

Each rank runs the model on its own tokens, with their positions as ``position_ids``, and without a mask: the layers say
themselves what is causal, a window or a sink. Everything but attention looks at one token at a time.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

from rocmkern.distributed.api import attention
from rocmkern.runtime.errors import ArgumentError


def register_attention(
    name: str = "rocmkern_ranks",
    *,
    group: Any = None,
    split: Literal["contiguous", "zigzag"] = "contiguous",
    mode: Literal["ring", "heads"] = "ring",
    timeout: float | None = None,
) -> None:
    """Make attention over ranks one that ``attn_implementation=name`` chooses.

    Parameters
    ----------
    name : str
        Of the implementation.
    group, split, mode, timeout
        As in `rocmkern.distributed.attention`.

    Raises
    ------
    ImportError
        Transformers is not installed.

    Notes
    -----
    A model is called with ``input_ids`` of this rank's tokens, ``position_ids`` of `sequence_positions` for them,
    without an ``attention_mask``, and with ``use_cache=False``. Padding, dropout and masks of other kinds are refused.
    """
    # deferred: optional dependency
    from transformers import AttentionInterface, AttentionMaskInterface

    forward = functools.partial(_forward, group=group, split=split, mode=mode, timeout=timeout)
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, _no_mask)


def _no_mask(*args: Any, attention_mask: Any = None, **kwargs: Any) -> None:
    """No mask: a rank's own tokens say nothing about those of others."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ArgumentError(
            "attention_mask", "a mask that hides tokens", "None: tokens of all ranks are seen, or causal"
        )


def _forward(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    group: Any,
    split: Any,
    mode: Any,
    timeout: float | None,
    **others: Any,
) -> tuple[Any, None]:
    """What a layer of Transformers calls: ``[B, Hq, S, D]`` to ``[B, S, Hq, Dv]``."""
    if dropout:
        raise ArgumentError("dropout", f"{dropout:g}", "0: this attention has no dropout, call model.eval()")
    if attention_mask is not None:
        raise ArgumentError("attention_mask", "an array", "None over ranks")
    if key.shape[2] != query.shape[2]:
        raise ArgumentError("past_key_values", "keys of earlier calls", "none: call the model with use_cache=False")
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    window = None if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
    out = attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        layout="bshd",
        group=group,
        split=split,
        mode=mode,
        timeout=timeout,
        causal=causal,
        window=window,
        scale=scaling,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.float(),
    )
    return out, None
