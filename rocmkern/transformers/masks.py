"""What Transformers' masks say, as small as it can be said.

A model asks for one mask a forward pass and kind of layer, and hands it to each layer's attention. Here it is

    None        the module's own causality and window are all there is; the last query is at the last key
    bool        which keys each query sees, complete: ``[B, 1 or H, Sq or 1, n]``
    floating    what is added to the scores, complete: only a caller's own mask is one
    uint8       a `Structure` of causal attention: ``[B, window + 1, 1, n]``, which of the keys are no padding
    int8        the same of attention to both sides
    int32       padding on one side: ``[B, window + 1, side, 1]``, how much there is on the left of causal attention
                (side is 2), or how many keys are before what is on the right, where the first query is at the first
                key (3: of causal attention, 4: of that to both sides); or packed sequences: cumulative lengths,
                ``[longest, window + 1, 1, sequences + 1]``

A structure of n columns says that only the first n keys count; the last query is at the last of them. Windows come on
top where the second extent is above 1. What the host must know is in the extents, where it can be read without waiting
for a device, and such an axis has stride 0: it takes no memory. ``[1, window + 1, 0, n]`` says that nothing is padding.
It is a tensor, and not an object, because a model may move it to another device or cut its last axis.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import masking_utils
from transformers.modeling_utils import AttentionInterface
from transformers.utils.import_utils import is_tracing

from rocmkern.runtime.errors import ArgumentError
from rocmkern.torch.refusals import refused

if "q_length" not in inspect.signature(masking_utils.sdpa_mask).parameters:
    raise ImportError(
        "rocmkern.transformers needs masks that are asked for by q_length and q_offset, which releases before 5.5 of "
        "Transformers do not have: pip install -U transformers"
    )

_CAUSAL, _BOTH = torch.uint8, torch.int8
_LEFT, _RIGHT, _RIGHT_OF_BOTH = 2, 3, 4
_STRUCTURE = "rocmkern_structure"


@dataclass(frozen=True)
class Structure:
    """Causality, window and keys of one mask, without a matrix.

    Attributes
    ----------
    causal : bool
    window : int
        Keys on the left of a query, itself included; of attention to both sides, keys on either side beside itself.
        0: no limit.
    keys : int, optional
        Only the first so many keys count, and the last query is at the last of them. All by default.
    leftpad : torch.Tensor, optional
        int32 ``[B]``, how many of the first keys are padding.
    lengths : torch.Tensor, optional
        int32 ``[B]``, how many keys there are before the padding. The first query is at the first key.
    seen : torch.Tensor, optional
        bool ``[B, 1, 1, keys]``, False where a key is padding.
    cu_seqlens : torch.Tensor, optional
        int32 ``[sequences + 1]``, of packed sequences.
    longest : int
        Length of the longest packed sequence.
    """

    causal: bool
    window: int
    keys: int | None = None
    leftpad: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    seen: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    longest: int = 0

    @property
    def sides(self) -> tuple[int, int] | None:
        """The window as `flash_attention` takes it."""
        if not self.window:
            return None
        return (self.window - 1, 0) if self.causal else (self.window, self.window)

    def encode(self, device: Any) -> torch.Tensor:
        """The tensor that stands for it, which also has it as an attribute: layers need not decode it again."""
        width, dtype = self.window + 1, _CAUSAL if self.causal else _BOTH
        if self.cu_seqlens is not None:
            mask = self.cu_seqlens.expand(self.longest, width, 1, -1)
        elif self.leftpad is not None:
            mask = self.leftpad[:, None, None, None].expand(-1, width, _LEFT, -1)
        elif self.lengths is not None:
            mask = self.lengths[:, None, None, None].expand(-1, width, _RIGHT if self.causal else _RIGHT_OF_BOTH, -1)
        elif self.seen is None:
            mask = torch.empty((1, width, 0, self.keys or 0), dtype=dtype, device=device)
        else:
            mask = self.seen.view(dtype).expand(-1, width, -1, -1)
        setattr(mask, _STRUCTURE, self)
        return mask

    @classmethod
    def decode(cls, mask: torch.Tensor) -> Structure | None:
        """What a mask says, or None where it is complete."""
        dtype = mask.dtype
        if dtype is torch.bool or dtype.is_floating_point:
            return None
        known = getattr(mask, _STRUCTURE, None)
        if known is not None:
            return known
        most = _RIGHT_OF_BOTH if dtype is torch.int32 and mask.shape[-1] == 1 else 1
        if dtype not in (_CAUSAL, _BOTH, torch.int32) or mask.dim() != 4 or mask.shape[2] > most:
            allowed = (
                "bool (True where a key is visible), floating (added to the scores), or 2-D for the model to complete"
            )
            raise ArgumentError("attention_mask", f"{dtype} of shape {tuple(mask.shape)}", allowed)
        longest, width, rows, keys = mask.shape
        if dtype is not torch.int32:
            return cls(dtype is _CAUSAL, width - 1, keys, seen=mask[:, :1].view(torch.bool) if rows else None)
        if rows == _LEFT:
            return cls(True, width - 1, leftpad=mask[:, 0, 0, 0])
        if rows in (_RIGHT, _RIGHT_OF_BOTH):
            return cls(rows == _RIGHT, width - 1, lengths=mask[:, 0, 0, 0])
        return cls(True, width - 1, cu_seqlens=mask[0, 0, 0], longest=longest)


@dataclass(frozen=True)
class Pattern:
    """What a mask function of Transformers means: `packed` numbers the sequence of each token, ``[B, S]``."""

    causal: bool
    window: int = 0
    packed: torch.Tensor | None = None


def _free(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables that a closure holds."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


# A closure is known by its code: that of one made here.
_causal, _everything = masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function
_nothing = torch.zeros((1, 1), dtype=torch.int64)
_AND = masking_utils.and_masks(_causal).__code__
_SLIDING = masking_utils.sliding_window_overlay(1).__code__
_SLIDING_BOTH = masking_utils.sliding_window_bidirectional_overlay(1).__code__
_CHUNKED = masking_utils.chunked_overlay(1, _nothing).__code__
_PACKED = masking_utils.packed_sequence_mask_function(_nothing).__code__
# Earlier versions of Transformers take the rows of all sequences for their positions.
_remap = getattr(masking_utils, "remap_positions_for_packed_sequence", None)
_OF_POSITIONS = None if _remap is None else _remap(_causal, _nothing).__code__


def pattern_of(function: Callable[..., Any], end: int) -> Pattern | None:
    """What a mask function means for tokens before `end`; None for one that is not known."""
    if function is _causal:
        return Pattern(causal=True)
    if function is _everything:
        return Pattern(causal=False)
    if getattr(function, "__code__", None) is not _AND:
        return None
    parts = _free(function)["mask_functions"]
    if len(parts) != 2:
        return None
    first, second = parts
    kind = getattr(first, "__code__", None)
    if getattr(second, "__code__", None) is _PACKED:
        # Positions count up within a sequence, so that differences of them are those of rows.
        inner = pattern_of(_free(first)["mask_function"] if kind is _OF_POSITIONS else first, end)
        packed = _free(second)["packed_sequence_mask"]
        return Pattern(True, inner.window, packed) if inner is not None and inner.causal else None
    if kind is _SLIDING and second is _causal:
        return Pattern(causal=True, window=_free(first)["sliding_window"])
    if kind is _SLIDING_BOTH and second is _everything:
        return Pattern(causal=False, window=_free(first)["sliding_window"])
    if kind is _CHUNKED and second is _causal and end <= _free(first)["chunk_size"]:
        return Pattern(causal=True)
    return None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = _causal,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """Mask of one kind of layer, for Transformers' ``AttentionMaskInterface``: see this module for what it returns.

    Models whose attention does not go through Transformers' interface are refused: it would add what is returned here.

    A padding mask is read once, to find out whether anything is padding, as Transformers' own masks do, and where some
    is, once more, on which side. So is the offset of a static cache, if more than one query comes.
    """

    def complete() -> Any:
        return masking_utils.sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset=q_offset,  # type: ignore[arg-type]  # a static cache's is a tensor there too
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            device=device,
            **kwargs,
        )

    _refuse_attention_of_its_own(type(kwargs.get("config")))
    if is_tracing():
        plain = mask_function is _causal and attention_mask is None and kv_length == q_length
        return None if plain and allow_is_causal_skip else complete()
    pattern = pattern_of(mask_function, kv_length + kv_offset)
    may_skip = allow_is_causal_skip or allow_is_bidirectional_skip
    if pattern is None or (pattern.packed is None and not may_skip):
        return complete()
    if pattern.packed is not None:
        whole = batch_size == 1 and q_length == kv_length and attention_mask is None
        return _of_packed(pattern, pattern.packed).encode(device) if whole else complete()
    if pattern.causal and isinstance(q_offset, torch.Tensor) and q_length == 1:
        return complete()  # one row, and the device need not be waited for

    keys = int(q_offset) + q_length - kv_offset if pattern.causal or pattern.window else kv_length
    if not (q_length <= keys <= kv_length if pattern.causal else keys == kv_length):
        return complete()
    seen = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if seen is not None:
        seen = seen[:, kv_offset : kv_offset + keys]
        if seen.all():
            seen = None
    window = pattern.window if _restricts(pattern, q_length, keys) else 0
    if seen is None and not window and keys == kv_length:
        return None
    if seen is not None:
        before, after = seen[:, :-1], seen[:, 1:]
        right, left = torch.stack([(before < after).any(), (before > after).any()]).logical_not().tolist()
        counts = seen.sum(-1, dtype=torch.int32).expand(batch_size)
        if left and pattern.causal and keys == kv_length:
            return Structure(True, window, leftpad=keys - counts).encode(device)
        if right and keys == kv_length and (q_length == keys if pattern.causal else not window):
            return Structure(pattern.causal, window, lengths=counts).encode(device)
        seen = seen[:, None, None]
        if not pattern.causal and not window:
            return seen
    return Structure(pattern.causal, window, keys, seen=seen).encode(device)


def _refuse_attention_of_its_own(config: type) -> None:
    own = _attention_of_its_own(config)
    if own:
        allowed = f"models that call Transformers' AttentionInterface; {own} has an attention of its own: 'eager'"
        refused("attn_implementation", "this attention", allowed)


# PyTorch's tracer calls it as it is, instead of looking into it.
_refuse_attention_of_its_own._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _attention_of_its_own(config: type) -> str:
    """The module with the model of a configuration, if it asks for masks but calls none of Transformers' attentions."""
    package = config.__module__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if not name.startswith(f"{package}.modeling_"):
            continue
        things = list(vars(module).values())
        masks = any(getattr(x, "__module__", "") == masking_utils.__name__ for x in things)
        layers = [x for x in things if isinstance(x, type) and issubclass(x, torch.nn.Module) and x.__module__ == name]
        own = any("Attention" in layer.__name__ for layer in layers)
        if masks and own and not any(isinstance(x, AttentionInterface) for x in things):
            return name
    return ""


def _restricts(pattern: Pattern, queries: int, keys: int) -> bool:
    """Whether a window hides anything: the last query has ``keys - 1`` keys on its left, the first the others right."""
    if not pattern.window:
        return False
    return keys > pattern.window if pattern.causal else max(keys - 1, queries - 1) > pattern.window


def _of_packed(pattern: Pattern, numbers: torch.Tensor) -> Structure:
    """Sequences of one row of tokens, by the number of the sequence of each."""
    total = numbers.shape[1]
    starts = torch.nonzero(torch.diff(numbers[0], prepend=numbers[0, :1] - 1))[:, 0]
    ends = torch.cat([starts, starts.new_tensor([total])])
    longest = int(torch.diff(ends).max())
    return Structure(True, pattern.window, cu_seqlens=ends.to(torch.int32), longest=longest)
