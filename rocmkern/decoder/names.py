"""The names of a decoder's weights, and which tensors of a checkpoint they are.

Weights are ``embedding`` ``[V, H]``, ``norm`` ``[H]``, ``output`` ``[V, H]`` (absent where it is the embedding),
``rope_freq_factors`` ``[head_dim / 2]`` (of GGUF files that have them; float32 in host memory), and for every layer
``layers.<i>.`` with ``attention_norm``, ``q``, ``k``, ``v``, ``o``, optionally ``q_bias``, ``k_bias``, ``v_bias``,
``o_bias``, then ``mlp_norm``, ``gate``, ``up``, ``down``; matrices are ``[out, in]``.

Checkpoints that hold several of them as one tensor are cut by rows: q, k, v, and gate, up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from rocmkern.calls.types import ArrayLike, QuantizedFormat
from rocmkern.checkpoint import Checkpoint, FileTensor
from rocmkern.decoder.config import DecoderConfig
from rocmkern.decoder.frequencies import FREQ_FACTORS, TENSOR, read_factors
from rocmkern.ops.quantized.api import FORMATS
from rocmkern.runtime.device import DeviceLike
from rocmkern.runtime.errors import CheckpointError
from rocmkern.runtime.manager import DeviceTensor
from rocmkern.tile.formats import format_named

_OUTER = {
    "safetensors": {
        "model.embed_tokens.weight": "embedding",
        "model.norm.weight": "norm",
        "lm_head.weight": "output",
    },
    "gguf": {
        "token_embd.weight": "embedding",
        "output_norm.weight": "norm",
        "output.weight": "output",
        TENSOR: FREQ_FACTORS,
    },
}
_LAYER_PREFIX = {"safetensors": r"model\.layers\.(\d+)\.", "gguf": r"blk\.(\d+)\."}
_LAYER = {
    "safetensors": {
        "input_layernorm.weight": "attention_norm",
        "self_attn.q_proj.weight": "q",
        "self_attn.k_proj.weight": "k",
        "self_attn.v_proj.weight": "v",
        "self_attn.o_proj.weight": "o",
        "self_attn.q_proj.bias": "q_bias",
        "self_attn.k_proj.bias": "k_bias",
        "self_attn.v_proj.bias": "v_bias",
        "self_attn.o_proj.bias": "o_bias",
        "self_attn.qkv_proj.weight": "q+k+v",
        "self_attn.qkv_proj.bias": "q_bias+k_bias+v_bias",
        "post_attention_layernorm.weight": "mlp_norm",
        "mlp.gate_proj.weight": "gate",
        "mlp.up_proj.weight": "up",
        "mlp.gate_up_proj.weight": "gate+up",
        "mlp.down_proj.weight": "down",
    },
    "gguf": {
        "attn_norm.weight": "attention_norm",
        "attn_q.weight": "q",
        "attn_k.weight": "k",
        "attn_v.weight": "v",
        "attn_output.weight": "o",
        "attn_q.bias": "q_bias",
        "attn_k.bias": "k_bias",
        "attn_v.bias": "v_bias",
        "attn_output.bias": "o_bias",
        "attn_qkv.weight": "q+k+v",
        "attn_qkv.bias": "q_bias+k_bias+v_bias",
        "ffn_norm.weight": "mlp_norm",
        "ffn_gate.weight": "gate",
        "ffn_up.weight": "up",
        "ffn_down.weight": "down",
    },
}
# Frequencies that are computed here anyway.
_COMPUTED = re.compile(r".*rotary_emb\.inv_freq")
_OPTIONAL = ("q_bias", "k_bias", "v_bias", "o_bias")


class Part(NamedTuple):
    """Where a weight is in a checkpoint: a tensor's name, and its rows if it is not all of them."""

    tensor: str
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix as blocks.

    Attributes
    ----------
    blocks : array
        uint8 ``[out, n_blocks * block_bytes]``.
    format : str
        As in `rocmkern.quantized_linear`.
    """

    blocks: ArrayLike
    format: QuantizedFormat


#: What `load_weights` makes of a weight.
Loaded: TypeAlias = DeviceTensor | QuantizedWeight | np.ndarray


def weight_parts(checkpoint: Checkpoint, config: DecoderConfig) -> dict[str, Part]:
    """Where each weight of the decoder is in a checkpoint.

    Raises
    ------
    CheckpointError
        A weight is missing, of another shape, or quantized in a format without operations, or a tensor is none that
        the decoder knows.
    """
    if config.num_layers > len(checkpoint):
        raise CheckpointError(f"the checkpoint has {len(checkpoint)} tensors, too few for {config.num_layers} layers")
    shapes = _shapes(config)
    parts: dict[str, Part] = {}
    unknown = []
    for tensor in checkpoint.values():
        name = _decoder_name(checkpoint.format, tensor.name)
        if name is not None and (name == "output" or name in shapes or "+" in name):
            parts.update(_cut(tensor, name, shapes))
        elif _COMPUTED.fullmatch(tensor.name) is None:
            unknown.append(tensor.name)
    if unknown:
        raise CheckpointError(f"the decoder has no such weights: {_some(unknown)}")
    missing = [
        name
        for name in shapes
        if name not in parts and name.rpartition(".")[2] not in (*_OPTIONAL, "output", FREQ_FACTORS)
    ]
    if missing:
        raise CheckpointError(f"the checkpoint has no tensors for: {_some(missing)}")
    for name, part in parts.items():
        _check_shape(checkpoint[part.tensor], part, name, shapes[name])
    return parts


def load_weights(
    checkpoint: Checkpoint, config: DecoderConfig, dtype: DTypeLike = np.float32, device: DeviceLike | None = None
) -> dict[str, Loaded]:
    """The weights of a decoder as lazy tensors.

    Parameters
    ----------
    checkpoint : Checkpoint
    config : DecoderConfig
    dtype : dtype
        Of the decoder: float32 by default, float16 or bfloat16. Weights of another float dtype are converted on their
        way; quantized ones stay as they are.
    device : Device, "host" or None
        As in `DeviceTensor.lazy`.

    Returns
    -------
    dict of str to DeviceTensor, QuantizedWeight or, for ``rope_freq_factors``, numpy.ndarray
        What `Decoder` takes. Memory is taken when they are used.

    Raises
    ------
    CheckpointError
        As `weight_parts`; and ``rope_freqs.weight`` contradicts the configuration's ``rope_scaling``.
    """
    wanted = np.dtype(dtype)
    whole: dict[str, DeviceTensor] = {}
    weights: dict[str, Loaded] = {}
    for name, part in weight_parts(checkpoint, config).items():
        tensor = checkpoint[part.tensor]
        if name == FREQ_FACTORS:
            weights[name] = read_factors(tensor, config)
            continue
        if part.tensor not in whole:
            source = tensor if tensor.format is not None or tensor.dtype == wanted else _Converted(tensor, wanted)
            whole[part.tensor] = DeviceTensor.lazy(source, device)
        array = whole[part.tensor] if part.rows is None else whole[part.tensor][part.rows[0] : part.rows[1]]
        format: Any = tensor.format  # one of FORMATS
        weights[name] = array if format is None else QuantizedWeight(array, format)
    return weights


class _Converted:
    """A tensor of a file in another float dtype."""

    def __init__(self, tensor: FileTensor, dtype: np.dtype):
        if tensor.dtype.kind not in "fV":
            raise CheckpointError(f"{tensor.name} is {tensor.dtype.name}, not a float dtype")
        self.tensor, self.shape, self.dtype = tensor, tensor.shape, dtype

    def pieces(self) -> Iterator[np.ndarray]:
        for piece in self.tensor.pieces():
            yield piece.astype(self.dtype)


def _decoder_name(format: str, name: str) -> str | None:
    if name in _OUTER[format]:
        return _OUTER[format][name]
    match = re.match(_LAYER_PREFIX[format], name)
    inner = _LAYER[format].get(name[match.end() :]) if match else None
    if match is None or inner is None:
        return None
    return "+".join(f"layers.{match[1]}.{one}" for one in inner.split("+"))


def _shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, wide = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    outer = {"embedding": (config.vocab_size, hidden), "norm": (hidden,), "output": (config.vocab_size, hidden)}
    outer[FREQ_FACTORS] = (config.head_dim // 2,)
    layer: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "q": (q, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, q),
        "q_bias": (q,),
        "k_bias": (kv,),
        "v_bias": (kv,),
        "o_bias": (hidden,),
        "mlp_norm": (hidden,),
        "gate": (wide, hidden),
        "up": (wide, hidden),
        "down": (hidden, wide),
    }
    return outer | {f"layers.{i}.{name}": shape for i in range(config.num_layers) for name, shape in layer.items()}


def _cut(tensor: FileTensor, name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
    """The weights that one tensor holds, by rows."""
    names = name.split("+")
    if any(one not in shapes for one in names):
        raise CheckpointError(f"{tensor.name} is of a layer that the configuration does not have")
    if len(names) == 1:
        return {name: Part(tensor.name)}
    ends = np.cumsum([shapes[one][0] for one in names]).tolist()
    if not tensor.shape or tensor.shape[0] != ends[-1]:
        raise CheckpointError(f"{tensor.name} has shape {tensor.shape}; {name} have {ends[-1]} rows")
    return {one: Part(tensor.name, rows) for one, rows in zip(names, zip([0, *ends], ends), strict=True)}  # noqa: B905


def _check_shape(tensor: FileTensor, part: Part, name: str, expected: tuple[int, ...]) -> None:
    shape = tensor.shape if part.rows is None else (part.rows[1] - part.rows[0], *tensor.shape[1:])
    if tensor.format is not None:
        if tensor.format not in FORMATS:
            raise CheckpointError(
                f"{tensor.path}: {tensor.name} is {tensor.format}, for which there are no operations; there are for "
                f"{', '.join(FORMATS)}: quantize the model again to one of these"
            )
        kind = format_named(tensor.format)
        if len(shape) == 2 and shape[1] % kind.nbytes == 0:
            shape = (shape[0], kind.columns(shape[1]))
    if shape != expected:
        raise CheckpointError(f"{tensor.name} has shape {tensor.shape}; {name} has {expected}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
