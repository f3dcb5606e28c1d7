"""Attention of whole arrays by processes of this machine: cut, computed by ranks, put together. For the matrix."""

from __future__ import annotations

import atexit
import functools
from typing import Any

import numpy as np

from rocmkern.distributed.local import LocalRanks
from rocmkern.distributed.sequence import join_sequence, shard_sequence
from rocmkern.targets import TargetName, target, using

#: The largest group; smaller ones are its first ranks.
LARGEST = 4


@functools.cache
def _ranks() -> LocalRanks:
    """Processes that stay until this one ends: starting them takes seconds."""
    started = LocalRanks(LARGEST)
    atexit.register(started.close)
    return started


def distributed_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    ranks: int = 2,
    split: str = "contiguous",
    layout: str = "bhsd",
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """`rocmkern.distributed.attention` of all tokens, by so many ranks on the target of this process.

    Parameters
    ----------
    q, k, v : numpy.ndarray
        All tokens.
    ranks : int
        1 to `LARGEST`.
    split, layout, return_lse, **options
        As there.
    """
    axis = 2 if layout == "bhsd" else 1
    given = {"split": split, "layout": layout, **options}
    arguments = []
    for rank in range(ranks):
        place: Any = {"axis": axis, "split": split, "rank": rank, "size": ranks}
        arguments.append((target().name, *(shard_sequence(x, **place) for x in (q, k, v)), given))
    results = _ranks().outcomes("rocmkern.distributed.whole:_step", arguments)
    for result in results:
        if isinstance(result, Exception):
            raise result
    outs, lses = zip(*results, strict=True)
    joined: Any = {"split": split}
    out = join_sequence(outs, axis=axis, **joined)
    return (out, join_sequence(lses, axis=-1, **joined)) if return_lse else out


def _step(group: Any, name: TargetName, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Any:
    """What each rank does."""
    # deferred: optional dependency
    from rocmkern.distributed import attention

    with using(name):
        return attention(q, k, v, group=group, return_lse=True, **options)
