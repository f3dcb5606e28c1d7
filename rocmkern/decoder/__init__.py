"""A decoder of the Llama family made of this library's operations, and how checkpoints become one.

`Decoder` runs it; `DecoderConfig` says what it is like; `load_weights` brings the tensors of a Hugging Face or GGUF
checkpoint to a device, under the names that `Decoder` knows.
"""

from rocmkern.decoder.config import DecoderConfig
from rocmkern.decoder.model import Decoder, decoder_logits
from rocmkern.decoder.names import Part, QuantizedWeight, load_weights, weight_parts

__all__ = [
    "Decoder",
    "DecoderConfig",
    "Part",
    "QuantizedWeight",
    "decoder_logits",
    "load_weights",
    "weight_parts",
]
