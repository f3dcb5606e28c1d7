"""The attention function for Transformers' ``AttentionInterface``: from a module's arguments to `flash_attention`.

It is called by each layer, so it does nothing that the mask, made once a forward pass, could have done: it reads no
number from a device, and copies neither queries nor keys nor values.
"""

from __future__ import annotations

from typing import Any

import torch

import rocmkern
from rocmkern.torch.refusals import refused
from rocmkern.transformers.masks import Structure


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, as Transformers' models call it.

    Parameters
    ----------
    module : torch.nn.Module
        Its ``is_causal`` counts where there is no mask and no argument of that name; True by default.
    query : torch.Tensor, ``[B, Hq, Sq, D]``
    key, value : torch.Tensor, ``[B, Hkv, Sk, D]`` and ``[B, Hkv, Sk, Dv]``
    attention_mask : torch.Tensor, optional
        Of `rocmkern.transformers.masks.mask`, or a caller's own: bool, True where a key is visible, or floating, added
        to the scores. These are complete: neither causality nor window come on top of them.
    dropout : float
        0: there is none.
    scaling : float, optional
        ``1 / sqrt(D)`` by default.
    is_causal : bool, optional
    sliding_window : int, optional
        Keys on the left of a query, itself included, and as many on its right where attention is not causal.
    softcap : float, optional
    s_aux : torch.Tensor, ``[Hq]``, optional
        Sinks.
    position_bias : torch.Tensor, optional
        Added to the scores; broadcastable to ``[B, Hq, Sq, Sk]``.
    cu_seq_lens_q, cu_seq_lens_k : torch.Tensor, int32 ``[n + 1]``, optional
        Packed sequences, where B is 1; they count instead of a mask.
    max_length_q, max_length_k : int, optional
        Lengths of the longest.
    **kwargs
        What other attention functions take; nothing that changes the result is ignored.

    Returns
    -------
    torch.Tensor, ``[B, Sq, Hq, Dv]``
    None
        There are no weights to return.

    Raises
    ------
    ArgumentError
        Dropout, weights, or a paged cache are asked for, or `flash_attention` refuses an argument.
    """
    if dropout or kwargs.get("output_attentions") or "block_table" in kwargs:
        _refuse(dropout, kwargs)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    window = None if sliding_window is None else (sliding_window - 1, 0 if causal else sliding_window - 1)
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sinks": _wide(s_aux)}
    if cu_seq_lens_q is not None:
        lengths_k, longest_k = (cu_seq_lens_q, max_length_q) if cu_seq_lens_k is None else (cu_seq_lens_k, max_length_k)
        _refuse_bias(position_bias)
        options |= {"cu_seqlens_q": cu_seq_lens_q, "cu_seqlens_k": lengths_k, "causal": causal, "window": window}
        return _packed(query, key, value, max_seqlen_q=max_length_q, max_seqlen_k=longest_k, **options), None

    structure = None if attention_mask is None else Structure.decode(attention_mask)
    if structure is not None:
        causal, window = structure.causal, structure.sides
        if structure.cu_seqlens is not None:
            lengths, longest = structure.cu_seqlens, structure.longest
            _refuse_bias(position_bias)
            options |= {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths, "causal": causal, "window": window}
            return _packed(query, key, value, max_seqlen_q=longest, max_seqlen_k=longest, **options), None
        if structure.leftpad is not None:
            options["leftpad_k"] = structure.leftpad
        elif structure.lengths is not None:
            options["seqlens_k"] = structure.lengths
            causal = "top_left" if causal else False
        elif structure.keys is not None:
            key, value = key[:, :, : structure.keys], value[:, :, : structure.keys]
            options["mask"] = structure.seen
    elif attention_mask is not None:
        causal, window = False, None
        if attention_mask.dtype is torch.bool:
            options["mask"] = attention_mask
        else:
            position_bias = attention_mask if position_bias is None else position_bias + attention_mask
    out = rocmkern.flash_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        layout="bshd",
        causal=causal,
        window=window,
        bias=position_bias,
        **options,
    )
    return out, None


def _packed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """Attention of the sequences of one row of tokens, ``[1, S, Hq, Dv]``."""
    if query.shape[0] != 1:
        allowed = "a batch of 1: packed sequences lie behind one another in one row"
        refused("query", f"a batch of {query.shape[0]} beside cumulative lengths", allowed)
    return rocmkern.flash_attention(*(x[0].transpose(0, 1) for x in (query, key, value)), **options)[None]


def _wide(sinks: Any) -> torch.Tensor | None:
    """Sinks in float32, as the kernel takes them. They are not kept: nothing tells of what is written to ``.data``."""
    return None if sinks is None else sinks.float()


def _refuse(dropout: float, others: dict[str, Any]) -> None:
    """Refuse what this attention cannot do, and what would change the result if it were ignored."""
    if dropout:
        refused("dropout", f"{dropout:g}", "0: this attention has no dropout, call model.eval()")
    if others.get("output_attentions"):
        allowed = 'False: the weights are never there as a whole; use attn_implementation="eager" to see them'
        refused("output_attentions", "True", allowed)
    if "block_table" in others:
        refused("cache", "pages of continuous batching", 'attn_implementation="sdpa" for generate_batch')


def _refuse_bias(position_bias: torch.Tensor | None) -> None:
    if position_bias is not None:
        refused("position_bias", "numbers beside packed sequences", "None, or sequences that are not packed")
