"""Small models of random weights, one of each family, and what a model gives in float64."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
# Not `transformers` itself: a folder of that name may be on the path.
pytest.importorskip("transformers.masking_utils", reason="Transformers is not installed")
import transformers  # noqa: E402

from rocmkern import transformers as ours  # noqa: E402

transformers.logging.set_verbosity_error()
ours.register()

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 6}

#: Decoders; where there are windows, they are shorter than the prompts of the tests.
DECODERS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, **WINDOW),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, **WINDOW, use_sliding_window=True, max_window_layers=1),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, **WINDOW, attn_logit_softcapping=5.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, **WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
    "phi3": lambda: transformers.Phi3Config(**SIZES, partial_rotary_factor=0.5),
    "gpt_oss": lambda: transformers.GptOssConfig(**SIZES, **WINDOW, num_local_experts=4, num_experts_per_tok=2),
}


def model_of(config, implementation, kind=transformers.AutoModelForCausalLM, *, seed=0, **more):
    """A model whose weights are large enough for its layers to matter; the same for each implementation."""
    # A configuration belongs to one model: the implementation is written into it.
    model = kind.from_config(copy.deepcopy(config), attn_implementation=implementation, **more).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.2).to(parameter.dtype)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return model


class Exact:
    """A model in float64 with eager attention: the steps too that models do in float32 whatever they are given."""

    def __init__(self, model):
        self.model = copy.deepcopy(model).double()
        self.model.set_attn_implementation("eager")
        self.model.set_experts_implementation("eager")

    def __call__(self, **inputs):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("float32", "float"):
                patch.setattr(torch, name, torch.float64)
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            return self.model(**inputs)


def prompts(batch, length, padding="none", seed=0):
    """Tokens ``[batch, length]`` and where they are none: a different number of each row."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, SIZES["vocab_size"], (batch, length), generator=generator)
    seen = torch.ones_like(tokens)
    for row in range(batch):
        count = (3 * row + 2) % (length - 1)
        if padding == "left":
            seen[row, :count] = 0
        elif padding == "right":
            seen[row, length - count :] = 0
    return tokens * seen, seen


def error(found, exact, seen=None):
    """Largest difference, relative to the size of the exact numbers, of tokens that are no padding."""
    difference = (found.double() - exact).abs()
    if seen is not None:
        difference = difference[seen.bool()]
    return float(difference.max() / exact.std())


def noise(found, exact, seen):
    """Root of the mean squared difference, relative to the size of the exact numbers, of tokens that are no padding."""
    return float((found.double() - exact)[seen.bool()].pow(2).mean().sqrt() / exact.std())
