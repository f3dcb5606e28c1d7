"""`ParallelDecoder`: a decoder whose heads, hidden features and vocabulary are shared out among ranks.

Queries, keys, values, gate and up are cut by their outputs, the projections behind them by their inputs; a layer then
needs two sums over ranks. Each rank keeps the keys and values of its own heads in its cache. Embedding and norms are
whole on each rank, so that the residual is the same everywhere, and so is what is drawn from the logits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from rocmkern.calls.adapters.to_torch import as_given, as_torch
from rocmkern.decoder.config import DecoderConfig
from rocmkern.decoder.model import Decoder, Kind, Tokens
from rocmkern.decoder.names import Loaded, QuantizedWeight
from rocmkern.distributed.heads import check_heads, heads_of_rank
from rocmkern.distributed.positions import runs
from rocmkern.distributed.ranks import ranks_of
from rocmkern.distributed.sequence import place_of
from rocmkern.distributed.tensor_parallel import Weight, all_reduce, shard_linear
from rocmkern.runtime.kv_cache import KVCache
from rocmkern.runtime.manager import DeviceTensor
from rocmkern.tile.formats import format_named

#: Kinds of weights of a decoder.
Weights = TypeVar("Weights", bound=Weight)


class ParallelDecoder(Decoder[Kind]):
    """A `Decoder` over the processes of a group. All ranks call its methods, with the same arguments.

    Parameters
    ----------
    config : DecoderConfig
        Of the whole model. Query heads are a multiple of the ranks, key-value heads a multiple or a divisor.
    weights : mapping of str to array or QuantizedWeight
        This rank's part, as `shard_decoder` makes it.
    group : torch.distributed.ProcessGroup, optional
    timeout : float, optional
        Seconds that this rank waits for another one.

    Examples
    --------
    >>> weights = shard_decoder(load_weights(checkpoint, config), config)  # doctest: +SKIP
    >>> decoder = ParallelDecoder(config, weights)  # doctest: +SKIP
    >>> tokens = decoder.generate([[1, 15043]], 20, seed=0)  # the same on all ranks  # doctest: +SKIP
    """

    @overload
    def __init__(
        self: ParallelDecoder[np.ndarray],
        config: DecoderConfig,
        weights: Mapping[str, np.ndarray | QuantizedWeight],
        *,
        group: Any = ...,
        timeout: float | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: ParallelDecoder[DeviceTensor],
        config: DecoderConfig,
        weights: Mapping[str, Loaded],
        *,
        group: Any = ...,
        timeout: float | None = ...,
    ) -> None: ...
    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, Any], *, group: Any = None, timeout: float | None = None
    ):
        self._ranks, self._timeout = ranks_of(group), timeout
        self._whole = config
        base: Any = super()  # of either kind
        base.__init__(local_config(config, self._ranks.rank, self._ranks.size), weights)

    def logits(
        self, cache: KVCache[Kind], sequences: Sequence[int], tokens: Sequence[Tokens], *, every: bool = False
    ) -> Kind:
        """As `Decoder.logits`; the cache is of `new_cache`, and all ranks get all logits."""
        given: Sequence[Any] = tokens
        signature = {"operation": "decoder", "config": repr(self._whole), "tokens": [list(map(int, t)) for t in given]}
        with self._ranks.call("decoder", self._timeout):
            self._ranks.agree(signature | {"every": every}, ())
            return super().logits(cache, sequences, tokens, every=every)

    def _linear(self, x: Any, name: str, bias: str = "") -> Any:
        if name.endswith(".o"):
            return all_reduce(self._ranks, super()._linear(x, name, bias if self._ranks.rank == 0 else ""))
        result = super()._linear(x, name, bias)
        return self._all_words(result) if name == "output" else result

    def _mlp(self, x: Any, name: str) -> Any:
        return all_reduce(self._ranks, super()._mlp(x, name))

    def _all_words(self, logits: Any) -> Any:
        """The logits of all words, from those of the words of each rank."""
        own, ranks = as_torch("logits", logits), self._ranks
        lengths = [
            stop - start for r in range(ranks.size) for start, stop in runs(self.config.vocab_size, r, ranks.size)
        ]
        return as_given(ranks.all_gather(own.T.contiguous(), lengths).T.contiguous(), logits)


def local_config(config: DecoderConfig, rank: int, size: int) -> DecoderConfig:
    """What a rank has of a model: its heads, and of the hidden features as many as there are in its weights."""
    check_heads(config.num_heads, config.num_kv_heads, size)
    heads = heads_of_rank(config.num_kv_heads, rank, size)
    return dataclasses.replace(config, num_heads=config.num_heads // size, num_kv_heads=heads.stop - heads.start)


def shard_decoder(
    weights: Mapping[str, Weights],
    config: DecoderConfig,
    *,
    rank: int | None = None,
    size: int | None = None,
    group: Any = None,
) -> dict[str, Weights]:
    """A rank's part of the weights of a decoder.

    Parameters
    ----------
    weights : mapping of str to array or QuantizedWeight
        By the names of `rocmkern.decoder.names`, all of each.
    config : DecoderConfig
    rank, size, group : optional
        As in `sequence_positions`.

    Returns
    -------
    dict
        Of the same names.

    Raises
    ------
    ArgumentError
        Heads or features cannot be shared out: a block of quantized weights is never cut, nor is a head.
    """
    rank, size = place_of(rank, size, group)
    check_heads(config.num_heads, config.num_kv_heads, size)
    return {name: _part(weights, name, config, rank, size) for name in weights}


def _part(weights: Mapping[str, Any], name: str, config: DecoderConfig, rank: int, size: int) -> Any:
    weight, (layer, _, kind) = weights[name], name.rpartition(".")
    place = {"rank": rank, "size": size}
    if kind.removesuffix("_bias") in ("k", "v"):
        heads = heads_of_rank(config.num_kv_heads, rank, size)
        rows = slice(heads.start * config.head_dim, heads.stop * config.head_dim)
        if isinstance(weight, QuantizedWeight):
            blocks: Any = weight.blocks
            return QuantizedWeight(_copied(blocks[rows]), weight.format)
        return _copied(weight[rows])
    if kind in ("q", "q_bias"):
        return shard_linear(weight, "columns", unit=config.head_dim, **place)
    if kind == "o":
        return shard_linear(weight, "rows", unit=config.head_dim, **place)
    if kind in ("gate", "up", "down"):
        down = weights[f"{layer}.down"]
        unit = format_named(down.format).elements if isinstance(down, QuantizedWeight) else 1
        return shard_linear(weight, "rows" if kind == "down" else "columns", unit=unit, **place)
    if kind == "output":
        return shard_linear(weight, "columns", **place)
    return weight


def _copied(x: Any) -> Any:
    return x.copy() if hasattr(x, "copy") else x.clone()
