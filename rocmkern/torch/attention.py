"""`scaled_dot_product_attention` of `torch.nn.functional`, by `rocmkern.flash_attention`.

What is different between the two is here: the names, masks that are True where a key takes part or are added, a causal
mask from the top left corner, any number of leading axes, which broadcast.
"""

from __future__ import annotations

from typing import Any

import torch

import rocmkern
from rocmkern.runtime.errors import ArgumentTypeError
from rocmkern.runtime.torch_tensors import is_causal_bias
from rocmkern.torch.refusals import refused

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention with the signature and the meaning of `torch.nn.functional.scaled_dot_product_attention`.

    ``softmax(scale * query @ key^T + mask) @ value``, with gradients. A row that sees no key gives 0, as PyTorch's.

    Parameters
    ----------
    query : torch.Tensor, ``[..., Hq, L, E]``
        float32, float16 or bfloat16; at least ``[L, E]``. E is 1 to 256.
    key : torch.Tensor, ``[..., H, S, E]``
        Of the dtype of `query`. Leading axes broadcast.
    value : torch.Tensor, ``[..., H, S, Ev]``
        Of the dtype of `query`. Ev is 1 to 256.
    attn_mask : torch.Tensor, optional
        Broadcastable to ``[..., Hq, L, S]``. bool: True where a key takes part. float32, float16 or bfloat16, whatever
        `query` is: added to the scores.
    dropout_p : float
        0: there is no dropout.
    is_causal : bool
        Key j is visible to query i iff ``j <= i``, also where L and S differ. With an `attn_mask` too, a key has to be
        visible by both, as in PyTorch on CPUs; other backends of PyTorch refuse both together.
    scale : float, optional
        ``1 / sqrt(E)`` by default.
    enable_gqa : bool
        Whether several query heads may share a head of `key` and `value`: ``Hq`` is a multiple of H then.

    Returns
    -------
    torch.Tensor, ``[..., Hq, L, Ev]``
        Of the dtype of `query`; computed in float32, rounded once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The tensors lie on a device that no target here can reach.

    Examples
    --------
    >>> import torch, rocmkern.torch
    >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
    >>> rocmkern.torch.scaled_dot_product_attention(q, k, v, is_causal=True).shape
    torch.Size([1, 8, 32, 64])
    """
    if dropout_p != 0.0:
        allowed = "0.0: there is no dropout; call .eval(), or train without"
        refused("dropout_p", repr(dropout_p), allowed)
    _check(query, key, value)
    batch, heads = _leading(query, key, value, enable_gqa)
    q, k, v = (_four_axes(x, batch, heads if x is query else None) for x in (query, key, value))
    causal: Any = "top_left" if is_causal else False
    aligned = _alignment(attn_mask, (query.shape[-2], key.shape[-2]))
    if aligned is not None:
        if is_causal:
            refused("is_causal", "True beside a CausalBias", "False, or attn_mask=None")
        causal, attn_mask = aligned, None
    mask = None if attn_mask is None else _mask(attn_mask, batch, (heads, query.shape[-2], key.shape[-2]))
    added = mask is not None and mask.dtype != torch.bool
    out = rocmkern.flash_attention(
        q, k, v,
        causal=causal, scale=scale,
        mask=None if added else mask, bias=mask if added else None,
    )  # fmt: skip
    if query.dim() == 4 and len(batch) == 1:
        return out
    rank = max(query.dim(), key.dim(), value.dim())
    return out.reshape(*batch, *((heads,) if rank > 2 else ()), *out.shape[-2:])


def _check(query: Any, key: Any, value: Any) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor):
            refused(name, type(x).__name__, "a torch.Tensor", ArgumentTypeError)
        if x.dim() < 2:
            refused(name, f"shape {tuple(x.shape)}", "at least two axes, [length, head dimension]")
        if x.dtype not in _DTYPES:
            refused(name, str(x.dtype), "torch.float32, torch.float16 or torch.bfloat16", ArgumentTypeError)
        if x.dtype != query.dtype and not torch._C._is_any_autocast_enabled():
            refused(name, str(x.dtype), f"{query.dtype}, the dtype of query", ArgumentTypeError)
    if key.shape[-1] != query.shape[-1]:
        refused("key", f"head dimension {key.shape[-1]}", f"{query.shape[-1]}, as query")
    if value.shape[-2] != key.shape[-2]:
        refused("value", f"length {value.shape[-2]}", f"{key.shape[-2]}, as key")


def _leading(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> tuple[Any, Any]:
    """The axes before the heads, broadcast, and the number of query heads."""
    heads, kv_heads = _heads(query), _heads(key)
    for name, x in (("key", key), ("value", value)):
        if _heads(x) != kv_heads:
            refused(name, f"{_heads(x)} heads", f"{kv_heads} heads, as key")
    if heads == 1:
        heads = kv_heads
    elif kv_heads not in (1, heads) and not (enable_gqa and kv_heads and heads % kv_heads == 0):
        allowed = f"{heads} heads, as query, or 1" if not enable_gqa else f"a number that divides the {heads} of query"
        allowed += "" if enable_gqa else "; enable_gqa=True shares heads"
        refused("key", f"{kv_heads} heads", allowed)
    try:
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    except RuntimeError:
        shapes = f"shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        refused("query", shapes, "leading axes of query, key and value that broadcast")
    return batch, heads


def _heads(x: torch.Tensor) -> Any:
    return x.shape[-3] if x.dim() > 2 else 1


def _four_axes(x: torch.Tensor, batch: Any, heads: Any) -> torch.Tensor:
    """View ``[B, H, length, dim]``; more leading axes than one are joined, by a copy where strides need one."""
    if x.dim() == 4 and len(batch) == 1 and x.shape[0] == batch[0] and heads in (None, x.shape[1]):
        return x
    x = x if x.dim() > 2 else x[None]
    x = x.expand(*batch, x.shape[-3] if heads is None else heads, *x.shape[-2:])
    return x.flatten(0, -4) if len(batch) > 1 else x if batch else x[None]


def _alignment(mask: Any, lengths: tuple[int, int]) -> str | None:
    """How a causal bias of PyTorch lies, a tensor whose elements are not there; None for any other mask."""
    if not is_causal_bias(mask):
        return None
    if (mask.seq_len_q, mask.seq_len_kv) != lengths:
        given = f"a CausalBias of {mask.seq_len_q} queries and {mask.seq_len_kv} keys"
        refused("attn_mask", given, f"one of {lengths[0]} queries and {lengths[1]} keys")
    return "top_left" if mask.variant.name == "UPPER_LEFT" else "bottom_right"


def _mask(mask: Any, batch: Any, shape: tuple[Any, ...]) -> torch.Tensor:
    """The mask as one that broadcasts to ``[B, *shape]``."""
    if not isinstance(mask, torch.Tensor):
        refused("attn_mask", type(mask).__name__, "a torch.Tensor", ArgumentTypeError)
    if mask.dtype not in (torch.bool, *_DTYPES):
        allowed = "torch.bool (True where a key takes part), or float32, float16 or bfloat16 (added to the scores)"
        refused("attn_mask", str(mask.dtype), allowed, ArgumentTypeError)
    full = (*batch, *shape)
    fits = mask.dim() <= len(full) and all(n in (1, m) for n, m in zip(mask.shape[::-1], full[::-1]))  # noqa: B905
    if not fits:
        refused("attn_mask", f"shape {tuple(mask.shape)}", f"a shape that broadcasts to {full}")
    return mask.expand(full).flatten(0, -4) if len(batch) > 1 and mask.dim() > 3 else mask
