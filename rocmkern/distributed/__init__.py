"""Beyond one card: attention and linear layers over the processes of a ``torch.distributed`` group.

`attention` is for sequences that are shared out among ranks, `linear`, `mlp` and `ParallelDecoder` are for weights and
heads that are. PyTorch is needed, and imported when a name of here is
first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocmkern.distributed.api import attention
    from rocmkern.distributed.decoder import ParallelDecoder, shard_decoder
    from rocmkern.distributed.local import LocalRanks, RankFailedError
    from rocmkern.distributed.sequence import join_sequence, sequence_positions, shard_sequence
    from rocmkern.distributed.tensor_parallel import linear, mlp, shard_linear
    from rocmkern.distributed.transformers import register_attention

_HOMES = {
    "attention": "api",
    "LocalRanks": "local",
    "RankFailedError": "local",
    "join_sequence": "sequence",
    "sequence_positions": "sequence",
    "shard_sequence": "sequence",
    "ParallelDecoder": "decoder",
    "linear": "tensor_parallel",
    "mlp": "tensor_parallel",
    "register_attention": "transformers",
    "shard_decoder": "decoder",
    "shard_linear": "tensor_parallel",
}

__all__ = [
    "LocalRanks",
    "ParallelDecoder",
    "RankFailedError",
    "attention",
    "join_sequence",
    "linear",
    "mlp",
    "register_attention",
    "sequence_positions",
    "shard_decoder",
    "shard_linear",
    "shard_sequence",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
