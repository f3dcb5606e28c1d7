"""Cutting a sequence into the parts of ranks, and putting it together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rocmkern.calls.types import Array
from rocmkern.distributed.positions import check_split, runs
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.torch_tensors import torch_of


def place_of(rank: int | None, size: int | None, group: Any) -> tuple[int, int]:
    """Numbers that were given, or those of this process in a group."""
    if rank is None or size is None:
        # The group is asked for only where there are no numbers: cutting needs no processes.
        # deferred: start-up
        from rocmkern.distributed.ranks import ranks_of

        ranks = ranks_of(group)
        return ranks.rank, ranks.size
    return rank, size


def sequence_positions(
    total: int,
    *,
    split: Literal["contiguous", "zigzag"] = "contiguous",
    rank: int | None = None,
    size: int | None = None,
    group: Any = None,
) -> np.ndarray:
    """Positions of a rank's tokens in a sequence of `total` tokens, int32: what `rocmkern.rope` takes.

    Parameters
    ----------
    total : int
    split : {"contiguous", "zigzag"}
    rank, size : int, optional
        Those of this process in `group` by default.
    group : torch.distributed.ProcessGroup, optional

    Examples
    --------
    >>> from rocmkern.distributed import sequence_positions
    >>> sequence_positions(8, split="zigzag", rank=0, size=2)
    array([0, 1, 6, 7], dtype=int32)
    """
    rank, size = place_of(rank, size, group)
    return np.concatenate([np.arange(*run, dtype=np.int32) for run in runs(total, rank, size, check_split(split))])


def shard_sequence(
    x: Array,
    *,
    axis: int = -2,
    split: Literal["contiguous", "zigzag"] = "contiguous",
    rank: int | None = None,
    size: int | None = None,
    group: Any = None,
) -> Array:
    """A rank's part of an array of all tokens, contiguous.

    Parameters
    ----------
    x : torch.Tensor or numpy.ndarray
    axis : int
        Of the tokens; the last but one by default, as in ``[B, H, S, D]``.
    split, rank, size, group
        As in `sequence_positions`.
    """
    rank, size = place_of(rank, size, group)
    whole: Any = x
    axis %= whole.ndim
    own = runs(whole.shape[axis], rank, size, check_split(split))
    parts = [whole[(slice(None),) * axis + (slice(*run),)] for run in own]
    torch = torch_of(x)
    join: Any = np.concatenate if torch is None else torch.cat
    return join(parts, axis)


def join_sequence(
    parts: Sequence[Array], *, axis: int = -2, split: Literal["contiguous", "zigzag"] = "contiguous"
) -> Array:
    """The array of all tokens from the parts of all ranks, as `shard_sequence` cuts it.

    Parameters
    ----------
    parts : sequence of torch.Tensor or numpy.ndarray
        By rank.
    axis, split
        As in `shard_sequence`.
    """
    check_split(split)
    if not parts:
        raise ArgumentError("parts", "none", "the part of each rank")
    arrays: Sequence[Any] = parts
    axis %= arrays[0].ndim
    total = sum(part.shape[axis] for part in arrays)
    pieces = []
    for rank, part in enumerate(arrays):
        own = runs(total, rank, len(arrays), split)
        if split == "contiguous":
            own = [(sum(p.shape[axis] for p in arrays[:rank]), 0)]
        middle = own[0][1] - own[0][0] if len(own) == 2 else part.shape[axis]
        cuts = [slice(0, middle), slice(middle, None)][: len(own)]
        pieces += [(start, part[(slice(None),) * axis + (cut,)]) for (start, _), cut in zip(own, cuts, strict=True)]
    ordered = [piece for _, piece in sorted(pieces, key=lambda pair: pair[0])]
    torch = torch_of(arrays[0])
    join: Any = np.concatenate if torch is None else torch.cat
    return join(ordered, axis)
