"""`Decoder`: tokens to logits to tokens, one operation of the library after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, overload

import numpy as np

import rocmkern
from rocmkern.calls.types import SupportsDLPack
from rocmkern.decoder.config import DecoderConfig
from rocmkern.decoder.frequencies import FREQ_FACTORS, rotation
from rocmkern.decoder.names import Loaded, QuantizedWeight
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.kv_cache import KVCache
from rocmkern.runtime.manager import DeviceTensor

# What None stands for among numbers of several prompts.
_KEEPS_ALL = {"top_k": np.iinfo(np.int32).max, "top_p": 1.0}

#: The kind of the weights, and so of the logits.
Kind = TypeVar("Kind", bound=np.ndarray | DeviceTensor)


class TokenArray(SupportsDLPack, Protocol):
    """An array of tokens."""

    def __len__(self) -> int: ...


Tokens: TypeAlias = Sequence[int] | TokenArray


class Decoder(Generic[Kind]):
    """A decoder of the Llama family: embedding, layers of attention and MLP, norm, logits.

    A layer is ``x + o(attention(rope(q(n)), rope(k(n)), v(n)))``, where ``n = rms_norm(x)``, and then
    ``x + mlp(rms_norm(x))``.

    Parameters
    ----------
    config : DecoderConfig
    weights : mapping of str to array or QuantizedWeight
        By the names of `rocmkern.decoder.names`: all NumPy arrays, or all DeviceTensors of one manager. Without
        ``output``, the embedding is used twice. ``rope_freq_factors`` are read at once, wherever they lie, and are used
        in place of the configuration's ``rope_scaling``, which must not contradict them.

    Examples
    --------
    >>> with rocmkern.open_checkpoint("model.gguf") as checkpoint:  # doctest: +SKIP
    ...     config = DecoderConfig.from_gguf(checkpoint.metadata)
    ...     decoder = Decoder(config, load_weights(checkpoint, config))
    >>> decoder.generate([[1, 15043]], 20, seed=0)  # doctest: +SKIP
    """

    config: DecoderConfig
    weights: dict[str, Any]

    @overload
    def __init__(
        self: Decoder[np.ndarray], config: DecoderConfig, weights: Mapping[str, np.ndarray | QuantizedWeight]
    ) -> None: ...
    @overload
    def __init__(self: Decoder[DeviceTensor], config: DecoderConfig, weights: Mapping[str, Loaded]) -> None: ...
    def __init__(self, config: DecoderConfig, weights: Mapping[str, Any]):
        self.config, self.weights = config, dict(weights)
        norm = self.weights["norm"]
        self.dtype: np.dtype = norm.dtype
        self._manager = norm.manager if isinstance(norm, DeviceTensor) else None
        self._table: Any = None
        self._rotation = rotation(config, self.weights.get(FREQ_FACTORS))

    def new_cache(self, num_blocks: int, block_size: int = 16) -> KVCache[Kind]:
        """A `KVCache` for this decoder, beside its weights."""
        config = self.config
        cache: Any = rocmkern.KVCache(
            num_blocks,
            block_size,
            config.num_kv_heads,
            config.head_dim,
            num_layers=config.num_layers,
            dtype=self.dtype,
            manager=self._manager,
        )
        return cache

    def logits(
        self, cache: KVCache[Kind], sequences: Sequence[int], tokens: Sequence[Tokens], *, every: bool = False
    ) -> Kind:
        """Append tokens to sequences of the cache, and return the logits of what follows.

        Parameters
        ----------
        cache : KVCache
            Of `new_cache`; it holds the tokens of the sequences so far.
        sequences : sequence of int
            Numbers that the cache gave, all different.
        tokens : sequence of int arrays
            The new tokens of each sequence, at least one: all of a prompt, or the one that was drawn last.
        every : bool
            Logits after every token instead of after the last one of each sequence.

        Returns
        -------
        array, ``[n, V]``
            One row for each sequence, or for each token with ``every=True``; of the kind and dtype of the weights.
        """
        config = self.config
        new = [np.asarray(some, np.int32).reshape(-1) for some in tokens]
        if len(new) != len(sequences):
            raise ArgumentError("tokens", f"{len(new)} arrays", f"one for each of the {len(sequences)} sequences")
        if any(some.size == 0 for some in new):
            raise ArgumentError("tokens", "a sequence without new tokens", "at least one for each sequence")
        positions = np.concatenate(
            [np.arange(start, start + len(some)) for start, some in zip(map(cache.length, sequences), new, strict=True)]
        ).astype(np.int32)
        slots = np.concatenate([cache.append(s, len(some)) for s, some in zip(sequences, new, strict=True)])
        ends = np.cumsum([0, *map(len, new)]).astype(np.int32)
        table, lens = cache.block_table(sequences), cache.context_lens(sequences)
        turned = self._rotation
        window = None if config.sliding_window is None else (config.sliding_window - 1, 0)

        x = rocmkern.embedding(self._embedding_table(), self._beside(np.concatenate(new)))
        if config.embedding_scale != 1:
            x = rocmkern.scale(x, config.embedding_scale)
        update = None
        for layer in range(config.num_layers):
            name = f"layers.{layer}."
            h, x = self._norm(x, update, name + "attention_norm")
            q, k, v = (
                self._linear(h, name + part, bias=name + part + "_bias").reshape(len(positions), -1, config.head_dim)
                for part in "qkv"
            )
            q = rocmkern.rope(q, positions, **turned)
            keys, values = cache.keys[layer], cache.values[layer]
            rocmkern.rope_append_kv(k, v, positions, keys, values, slots, **turned)
            seen = rocmkern.paged_attention(q, keys, values, table, lens, cu_seqlens_q=ends, window=window)
            update = self._linear(seen.reshape(len(positions), -1), name + "o", bias=name + "o_bias")
            h, x = self._norm(x, update, name + "mlp_norm")
            update = self._mlp(h, name)
        h, _ = self._norm(x, update, "norm")
        if not every:
            h = rocmkern.embedding(h, self._beside(ends[1:] - 1))
        return self._linear(h, "output" if "output" in self.weights else "embedding")

    def generate(
        self,
        prompts: Sequence[Tokens],
        max_new_tokens: int,
        *,
        temperature: float | Sequence[float] = 1.0,
        top_k: int | Sequence[int | None] | None = None,
        top_p: float | Sequence[float | None] | None = None,
        seed: int | Sequence[int],
        stop: Sequence[int] = (),
        block_size: int = 16,
    ) -> list[np.ndarray]:
        """Continue prompts.

        The random number of a token follows from the seed and the token's position in its sequence, so a prompt is
        continued in the same way alone and beside others, as far as its logits are the same: sums in another order
        (a batch of another size may take another kernel) can differ in their last bits, which decides where two tokens
        are that close. Prompts of the same length that share a seed share their random numbers: give each a seed of
        its own to draw several continuations of one prompt.

        Parameters
        ----------
        prompts : sequence of int arrays
            Tokens, at least one each.
        max_new_tokens : int
            At most so many tokens are drawn for each.
        temperature, top_k, top_p, seed
            As in `rocmkern.sample`: one for all prompts, or a sequence of one for each (None in it too, where it is
            allowed). The position of a token in its sequence is the offset.
        stop : sequence of int
            Tokens behind which a prompt is not continued; they are returned too.
        block_size : int
            Of the cache.

        Returns
        -------
        list of numpy.ndarray
            int32, the new tokens of each prompt.
        """
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        numbers = {name: _for_each(name, value, len(prompts)) for name, value in given.items()}
        new: list[list[int]] = [[] for _ in prompts]
        if max_new_tokens < 1 or not len(prompts):
            return [np.array(tokens, np.int32) for tokens in new]
        blocks = sum(-(-(len(prompt) + max_new_tokens) // block_size) for prompt in prompts)
        with self.new_cache(blocks, block_size) as cache:
            sequences = [cache.add() for _ in prompts]
            inputs, active = list(prompts), list(range(len(prompts)))
            for _ in range(max_new_tokens):
                logits: Any = self.logits(cache, [sequences[i] for i in active], inputs)
                chosen: Any = {k: v[active] if isinstance(v, np.ndarray) else v for k, v in numbers.items()}
                position = cache.context_lens([sequences[i] for i in active])
                drawn = np.asarray(rocmkern.sample(logits, **chosen, offset=position))
                for i, token in zip(active, drawn.tolist(), strict=True):
                    new[i].append(token)
                active = [i for i in active if new[i][-1] not in stop]
                if not active:
                    break
                inputs = [[new[i][-1]] for i in active]
        return [np.array(tokens, np.int32) for tokens in new]

    # ------------------------------------------------------------------------------------------------------- pieces

    def _beside(self, array: np.ndarray) -> Any:
        """Host numbers where the weights are."""
        return array if self._manager is None else self._manager.from_numpy(array)

    def _embedding_table(self) -> Any:
        """The embedding, decoded if it is quantized, because its rows are picked one by one."""
        if self._table is None:
            weight = self.weights["embedding"]
            if isinstance(weight, QuantizedWeight):
                weight = rocmkern.dequantize(weight.blocks, weight.format, self.dtype)
            self._table = weight
        return self._table

    def _norm(self, x: Any, update: Any, name: str) -> tuple[Any, Any]:
        """The norm of ``x + update``, and that sum."""
        options: Any = {"eps": self.config.rms_norm_eps, "weight_offset": self.config.norm_weight_offset}
        if update is None:
            return rocmkern.rms_norm(x, self.weights[name], **options), x
        return rocmkern.rms_norm(update, self.weights[name], residual=x, **options)

    def _linear(self, x: Any, name: str, bias: str = "") -> Any:
        weight, offset = self.weights[name], self.weights.get(bias)
        if isinstance(weight, QuantizedWeight):
            return rocmkern.quantized_linear(x, weight.blocks, weight.format, offset)
        return rocmkern.linear(x, weight, offset)

    def _mlp(self, x: Any, name: str) -> Any:
        gate, up, down = (self.weights[name + part] for part in ("gate", "up", "down"))
        activation = self.config.activation
        if not any(isinstance(weight, QuantizedWeight) for weight in (gate, up, down)):
            return rocmkern.mlp(x, gate, up, down, activation=activation)
        g, u = self._linear(x, name + "gate"), self._linear(x, name + "up")
        if activation == "silu":
            h = rocmkern.swiglu(g, u)
        else:
            h = rocmkern.geglu(g, u, approximate="tanh" if activation == "gelu_tanh" else "none")
        return self._linear(h, name + "down")


def _for_each(name: str, value: Any, prompts: int) -> Any:
    """A number for all prompts as it is, or an array of one for each, which `sample` checks."""
    if np.ndim(value) == 0:
        return value
    if len(value) != prompts:
        raise ArgumentError(name, f"{len(value)} numbers", f"one number, or one for each of the {prompts} prompts")
    values = [_KEEPS_ALL.get(name) if number is None else number for number in value]
    words = all(isinstance(number, (int, np.integer)) and number >= 0 for number in values)
    return np.array(values, np.uint64 if words and name == "seed" else None)


def decoder_logits(
    tokens: Sequence[int] | np.ndarray,
    *,
    config: DecoderConfig,
    prefill: int | None = None,
    block_size: int = 4,
    **weights: np.ndarray | QuantizedWeight,
) -> np.ndarray:
    """Logits ``[S, V]`` after every token of one sequence, NumPy: what the tests compare with `reference.decoder`.

    Parameters
    ----------
    tokens : array of int, ``[S]``
    config : DecoderConfig
    prefill : int, optional
        Tokens of the first pass; the others follow one by one. None: all in one pass.
    block_size : int
        Of the cache.
    **weights : array
        By their names.
    """
    decoder, first = Decoder(config, weights), len(tokens) if prefill is None else prefill
    with decoder.new_cache(-(-len(tokens) // block_size), block_size) as cache:
        sequence = cache.add()
        chunks = [tokens[:first], *([token] for token in tokens[first:])]
        return np.concatenate([decoder.logits(cache, [sequence], [chunk], every=True) for chunk in chunks])
