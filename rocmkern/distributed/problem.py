"""A call of attention over ranks: this rank's arrays, whose tokens are where, and what sees what."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from rocmkern.calls import checks as _checks
from rocmkern.calls.adapters.to_torch import as_torch
from rocmkern.calls.types import ArrayLike, Causal, Layout, Window
from rocmkern.distributed.positions import UNLIMITED, Piece, Tokens, Visibility, check_split
from rocmkern.distributed.ranks import Ranks
from rocmkern.ops.attention import problem as _attention
from rocmkern.runtime.errors import ArgumentError

MODES = ("ring", "heads")


@dataclass(frozen=True)
class Problem:
    """What is computed.

    Attributes
    ----------
    q, k, v : torch.Tensor
        This rank's, with a batch axis; packed tokens are one batch.
    layout : {"bhsd", "bshd"}
        Of q, k and v.
    queries, keys : Tokens
    seen : Visibility
    causal, window
        What `seen` was made of.
    scale : float
    softcap : float or None
    sinks : torch.Tensor or None
        float32 ``[Hq]``.
    """

    q: Any
    k: Any
    v: Any
    layout: Layout
    queries: Tokens
    keys: Tokens
    seen: Visibility
    causal: Causal
    window: Window
    scale: float
    softcap: float | None
    sinks: Any

    @property
    def row_axis(self) -> int:
        """Where the tokens are among the axes."""
        return 2 if self.layout == "bhsd" else 1

    @property
    def head_axis(self) -> int:
        """Where the heads are."""
        return 3 - self.row_axis

    def rows(self, x: Any, part: slice) -> Any:
        """View of some tokens of an array."""
        return x.narrow(self.row_axis, part.start, part.stop - part.start)

    def is_needed(self, rank: int, keys: Piece) -> bool:
        """Whether a rank has queries that see a piece of keys."""
        return self.seen.needs(self.queries.pieces(rank), keys)

    def heads_of(self, x: Any) -> int:
        """Number of heads of an array."""
        return int(x.shape[self.head_axis])

    def heads(self, x: Any, part: slice) -> Any:
        """View of some heads of an array."""
        return x.narrow(self.head_axis, part.start, part.stop - part.start)

    def of(self, batch: slice, queries: slice, keys: slice) -> Problem:
        """That of some batch elements, of some heads of queries and the heads of keys that belong to them."""
        q, k, v = (self.heads(x[batch], some) for x, some in ((self.q, queries), (self.k, keys), (self.v, keys)))
        return replace(self, q=q, k=k, v=v, sinks=None if self.sinks is None else self.sinks[queries])


@dataclass(frozen=True)
class Options:
    """The options of a call, checked as far as one rank can."""

    layout: Layout
    split: str
    mode: str
    causal: Causal
    window: Window
    scale: float | None
    softcap: float | None
    return_lse: bool
    gradients: bool = False


def agreed_problem(
    ranks: Ranks,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    options: Options,
    sinks: ArrayLike | None,
    cu_seqlens: Any,
) -> Problem:
    """Check a call on this rank, and that the others make the same."""
    try:
        packed = cu_seqlens is not None
        tensors = _attention.Tensors.of(q, k, v, options.layout, packed)
        visible = _attention.Visibility.of(options.causal, options.window)
        sequences = _attention.Sequences.of(tensors)
        _attention.Scores.of(
            tensors, sequences, scale=options.scale, softcap=options.softcap, alibi_slopes=None, sinks=sinks
        )
        check_split(options.split)
        if options.mode not in MODES:
            raise ArgumentError("mode", repr(options.mode), '"ring" or "heads"')
        _checks.flag("return_lse", options.return_lse)
        borders = _borders(cu_seqlens)
        if packed and sequences.max_q != sequences.max_k:
            raise ArgumentError("k", f"{sequences.max_k} tokens", f"{sequences.max_q}, those of q, with cu_seqlens")
        own = [as_torch(name, x) for name, x in (("q", q), ("k", k), ("v", v))]
        ranks.check_place("q", own[0])
        sink = None if sinks is None else as_torch("sinks", sinks).float()
    except (ArgumentError, RuntimeError) as error:
        ranks.refuse(error)
        raise
    layout: Layout = "bshd" if packed else options.layout
    if packed:
        own = [x[None] for x in own]
    row_axis = 2 if layout == "bhsd" else 1
    signature = {
        "operation": "attention",
        **{f"shape of {name}": _without(x.shape, row_axis) for name, x in zip("qkv", own, strict=True)},
        "dtype": str(own[0].dtype),
        "device": own[0].device.type,
        **vars(options),
        "cu_seqlens": _digest(borders) if packed else None,
        "sinks": None if sink is None else _digest(sink.tolist()),
    }
    lengths = ranks.agree(signature, [x.shape[row_axis] for x in own[:2]])
    queries, keys = (Tokens(options.split, tuple(some)) for some in zip(*lengths, strict=True))
    queries.check("q")
    keys.check("k")
    if packed and borders[-1] != queries.total:
        allowed = f"{queries.total}, the tokens of all ranks"
        raise ArgumentError("cu_seqlens", f"{borders[-1]} as the last element", allowed)
    offset = visible.offset(queries.total, keys.total)
    left, right = (UNLIMITED if side >= _attention.UNLIMITED else side for side in (visible.left, visible.right))
    seen = Visibility(left, right, 0 if packed else offset, tuple(borders))
    scale = _checks.softmax_scale(options.scale, own[0].shape[-1])
    q_own, k_own, v_own = own
    return Problem(
        q_own,
        k_own,
        v_own,
        layout=layout,
        queries=queries,
        keys=keys,
        seen=seen,
        causal=options.causal,
        window=options.window,
        scale=scale,
        softcap=options.softcap,
        sinks=sink,
    )


def _without(shape: Sequence[int], axis: int) -> list[int]:
    return [length for number, length in enumerate(shape) if number != axis]


def _digest(numbers: Sequence[float]) -> str:
    """Numbers in a few letters, to be compared; the first ones in full, to be read."""
    whole = hashlib.blake2b(repr(list(numbers)).encode(), digest_size=4).hexdigest()
    return f"{list(numbers)[:8]}... ({whole})" if len(numbers) > 8 else str(list(numbers))


def _borders(cu_seqlens: Any) -> list[int]:
    """Borders of packed sequences as integers; empty where there are none."""
    if cu_seqlens is None:
        return []
    numbers = cu_seqlens.tolist() if hasattr(cu_seqlens, "tolist") else np.asarray(cu_seqlens).tolist()
    if not isinstance(numbers, list) or not numbers or not all(type(n) is int for n in numbers):
        raise ArgumentError("cu_seqlens", repr(cu_seqlens), "int32 [n + 1] for n sequences of all ranks together")
    if numbers[0] != 0 or any(b < a for a, b in pairwise(numbers)):
        raise ArgumentError("cu_seqlens", _digest(numbers), "numbers from 0 that do not decrease")
    return numbers
