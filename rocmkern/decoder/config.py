"""What a decoder is like: sizes and options, from a Hugging Face or a GGUF checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rocmkern.calls import checks
from rocmkern.calls.types import RopeVariant
from rocmkern.checkpoint.names import shown
from rocmkern.decoder.values import LARGEST_SIZE, number, one_of, size
from rocmkern.ops.rotary.scaling import Scaling
from rocmkern.runtime.errors import ArgumentError, CheckpointError

# Architectures whose layers are those of `Decoder`.
_FAMILY = ("llama", "mistral", "qwen2", "gemma")
# GGUF files of these hold the rows of q and k in the order of interleaved rotation: llama.cpp permutes them when it
# converts a checkpoint. Files of the others hold them as Hugging Face does.
_GGUF_INTERLEAVED = ("llama",)
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
_VARIANTS = ("half", "interleaved")
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and options of a decoder.

    Attributes
    ----------
    vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim : int
        Sizes; ``num_heads`` is a multiple of ``num_kv_heads``, and ``head_dim`` is even and at most 256.
    rms_norm_eps : float
        Added to the mean square inside the root; at least 0.
    norm_weight_offset : float
        Added to the weights of the norms: 1 for Gemma of Hugging Face, whose weights are stored less 1.
    rope_variant : {"half", "interleaved"}
        Pairs of elements that turn together. Attention does not change when q and k have their rows in another order,
        as long as both have the same one and this fits it. So nothing is permuted back: GGUF files of Llama, whose
        rows llama.cpp has permuted, are "interleaved", the others "half".
    rope_base : float
        Base of the frequencies; above 1.
    rope_scaling : object, optional
        As `rocmkern.rope` takes it. A GGUF file's own frequency factors are weights (`rocmkern.decoder.names`).
    activation : {"silu", "gelu", "gelu_tanh"}
        Of the gate.
    embedding_scale : float
        What embeddings are multiplied by: ``sqrt(hidden_size)`` for Gemma.
    sliding_window : int, optional
        Tokens that a token sees, itself included.

    Raises
    ------
    ArgumentError
        A field has a value that no decoder has; the error names it.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    norm_weight_offset: float = 0.0
    rope_variant: RopeVariant = "half"
    rope_base: float = 10000.0
    rope_scaling: Scaling | dict[str, Any] | None = None
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    embedding_scale: float = 1.0
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        for name in _SIZES if self.sliding_window is None else (*_SIZES, "sliding_window"):
            if checks.integer(name, getattr(self, name), 1) > LARGEST_SIZE:
                raise ArgumentError(name, repr(getattr(self, name)), f"at most {LARGEST_SIZE}")
        if self.num_heads % self.num_kv_heads:
            raise ArgumentError("num_kv_heads", repr(self.num_kv_heads), f"a divisor of num_heads={self.num_heads}")
        if self.head_dim % 2 or self.head_dim > checks.MAX_HEAD_DIM:
            raise ArgumentError("head_dim", repr(self.head_dim), f"an even number from 2 to {checks.MAX_HEAD_DIM}")
        if checks.number("rms_norm_eps", self.rms_norm_eps) < 0:
            raise ArgumentError("rms_norm_eps", repr(self.rms_norm_eps), "0 or a positive number")
        if checks.number("rope_base", self.rope_base) <= 1:
            raise ArgumentError("rope_base", repr(self.rope_base), "a number above 1")
        for name in ("norm_weight_offset", "embedding_scale"):
            checks.number(name, getattr(self, name))
        for name, allowed in (("rope_variant", _VARIANTS), ("activation", tuple(_ACTIVATIONS.values()))):
            if getattr(self, name) not in allowed:
                raise ArgumentError(name, repr(getattr(self, name)), ", ".join(map(repr, allowed)))

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> DecoderConfig:
        """Read the content of a ``config.json``.

        Raises
        ------
        CheckpointError
            It is of another architecture, or lacks something.
        """
        kind = config.get("model_type")
        if kind not in _FAMILY:
            raise CheckpointError(f"config.json: model_type is {shown(kind)}; this decoder is for {', '.join(_FAMILY)}")

        def get(name: str) -> Any:
            if name not in config:
                raise CheckpointError(f"config.json of {kind} has no {name}")
            return config[name]

        def size_of(name: str, default: Any = None) -> int:
            value = config.get(name)
            if value is None:
                value = get(name) if default is None else default
            return size(value, f"config.json: {name}")

        heads, hidden = size_of("num_attention_heads"), size_of("hidden_size")
        # Newer files have base and scaling together.
        rotation = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rotation, Mapping):
            raise CheckpointError(f"config.json: rope_scaling is {shown(rotation)}, not an object")
        rotation = dict(rotation)
        base = rotation.pop("rope_theta", None) or config.get("rope_theta", 10000.0)
        if rotation in ({"rope_type": "default"}, {"type": "default"}):
            rotation = {}
        # The configuration of the first Gemma names an activation that its implementation does not use.
        named = config.get("hidden_activation") or ("gelu_pytorch_tanh" if kind == "gemma" else get("hidden_act"))
        one_of(named, "config.json: the activation", _ACTIVATIONS)
        window = config.get("sliding_window")
        if kind == "qwen2" and not config.get("use_sliding_window", False):
            window = None
        elif kind == "qwen2" and config.get("max_window_layers", 0) != 0:
            raise CheckpointError("config.json: only some layers have a sliding window, which this decoder does not do")
        return cls._of_a_file(
            "config.json",
            vocab_size=size_of("vocab_size"),
            hidden_size=hidden,
            intermediate_size=size_of("intermediate_size"),
            num_layers=size_of("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=size_of("num_key_value_heads", heads),
            head_dim=size_of("head_dim", hidden // heads),
            rms_norm_eps=number(get("rms_norm_eps"), "config.json: rms_norm_eps"),
            norm_weight_offset=1.0 if kind == "gemma" else 0.0,
            rope_base=number(base, "config.json: rope_theta"),
            rope_scaling=rotation or None,
            activation=_ACTIVATIONS[named],
            embedding_scale=hidden**0.5 if kind == "gemma" else 1.0,
            sliding_window=None if window is None else size(window, "config.json: sliding_window"),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> DecoderConfig:
        """Read the key-value pairs of a GGUF file.

        Raises
        ------
        CheckpointError
            It is of another architecture, or lacks something.
        """
        kind = metadata.get("general.architecture")
        if kind not in _FAMILY:
            raise CheckpointError(f"general.architecture is {shown(kind)}; this decoder is for {', '.join(_FAMILY)}")

        def get(name: str, *default: Any) -> Any:
            key = f"{kind}.{name}"
            if key not in metadata and not default:
                raise CheckpointError(f"the GGUF file has no {key}")
            return metadata.get(key, *default)

        def size_of(name: str, *default: Any) -> int:
            return size(get(name, *default), f"{kind}.{name}")

        heads, hidden = size_of("attention.head_count"), size_of("embedding_length")
        head_dim = size_of("attention.key_length", hidden // heads)
        if get("rope.dimension_count", head_dim) != head_dim:
            raise CheckpointError(f"{kind}.rope.dimension_count differs from the head dimension {head_dim}")
        tokens = metadata.get("tokenizer.ggml.tokens")
        scaling_kind = get("rope.scaling.type", "none")
        if scaling_kind not in ("none", "linear"):
            raise CheckpointError(
                f"{kind}.rope.scaling.type is {scaling_kind!r}; pass rope_scaling= by dataclasses.replace"
            )
        factor = number(get("rope.scaling.factor", 1.0), f"{kind}.rope.scaling.factor")
        window = get("attention.sliding_window", None)
        return cls._of_a_file(
            "the GGUF file",
            vocab_size=len(tokens) if isinstance(tokens, list) else size_of("vocab_size"),
            hidden_size=hidden,
            intermediate_size=size_of("feed_forward_length"),
            num_layers=size_of("block_count"),
            num_heads=heads,
            num_kv_heads=size_of("attention.head_count_kv", heads),
            head_dim=head_dim,
            rms_norm_eps=number(get("attention.layer_norm_rms_epsilon"), f"{kind}.attention.layer_norm_rms_epsilon"),
            rope_variant="interleaved" if kind in _GGUF_INTERLEAVED else "half",
            rope_base=number(get("rope.freq_base", 10000.0), f"{kind}.rope.freq_base"),
            rope_scaling={"rope_type": "linear", "factor": factor} if scaling_kind == "linear" else None,
            activation="gelu_tanh" if kind == "gemma" else "silu",
            embedding_scale=hidden**0.5 if kind == "gemma" else 1.0,
            sliding_window=None if window is None else size(window, f"{kind}.attention.sliding_window"),
        )

    @classmethod
    def _of_a_file(cls, file: str, **fields: Any) -> DecoderConfig:
        """A configuration of what a file says, which need not go together."""
        try:
            return cls(**fields)
        except ArgumentError as error:
            raise CheckpointError(f"{file}: {error}") from None
