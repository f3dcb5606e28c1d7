"""Generate tokens with a model of the Llama family, from a Hugging Face or GGUF checkpoint, or with a random one.

    python examples/decoder.py                                  # a random model of 50 tokens
    python examples/decoder.py model.gguf --tokens 1,15043 --dtype float16
    python examples/decoder.py Qwen2.5-0.5B-Instruct --prompt "The capital of France is"

A prompt in words needs ``tokenizers`` and the checkpoint's ``tokenizer.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import rocmkern
from rocmkern.decoder import Decoder, DecoderConfig, load_weights


def random_decoder() -> Decoder:
    """A model of 50 tokens, hidden size 32, one layer, 4 heads."""
    config = DecoderConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8
    )
    rng = np.random.default_rng(42)
    shapes = {"embedding": (50, 32), "norm": (32,), "output": (50, 32)}
    layer = {"attention_norm": (32,), "q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)}
    layer |= {"mlp_norm": (32,), "gate": (64, 32), "up": (64, 32), "down": (32, 64)}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    weights = {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    return Decoder(config, weights)


def decoder_of(path: Path, dtype: str, device: str | None) -> Decoder:
    """The model of a checkpoint. Its weights are read when they are first used."""
    with rocmkern.open_checkpoint(path) as checkpoint:
        read = DecoderConfig.from_gguf if checkpoint.format == "gguf" else DecoderConfig.from_hugging_face
        config = read(checkpoint.metadata)
        return Decoder(config, load_weights(checkpoint, config, dtype, device))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; see the top of this file."""
    parser = argparse.ArgumentParser(description="Generate tokens with a model of the Llama family.")
    parser.add_argument("path", nargs="?", type=Path, help="checkpoint: directory, .safetensors or .gguf file")
    parser.add_argument("--prompt", help="text; needs tokenizers and tokenizer.json")
    parser.add_argument("--tokens", default="1,2,3", help="the prompt as numbers (default: 1,2,3)")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (the default) takes the likeliest token")
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--device", help='"host", or a GPU as ROCMKERN_DEVICE names it; default: host')
    given = parser.parse_args(arguments)

    tokenizer = None
    if given.prompt is not None:
        if given.path is None:
            parser.error("--prompt needs a checkpoint with a tokenizer.json")
        from tokenizers import Tokenizer

        folder = given.path if given.path.is_dir() else given.path.parent
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode(given.prompt).ids if tokenizer else [int(token) for token in given.tokens.split(",")]
    decoder = random_decoder() if given.path is None else decoder_of(given.path, given.dtype, given.device)
    (tokens,) = decoder.generate(
        [prompt],
        given.max_new_tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        seed=given.seed,
    )
    print(tokenizer.decode(tokens.tolist()) if tokenizer else ",".join(map(str, tokens.tolist())))


if __name__ == "__main__":
    main()
