"""A gate on a card: models of Transformers there, and that attention never waits for it."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers.masking_utils", reason="Transformers is not installed")
import transformers  # noqa: E402

from rocmkern import transformers as ours  # noqa: E402
from rocmkern.transformers.attention import attention_forward  # noqa: E402
from rocmkern.transformers.masks import mask  # noqa: E402

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no card")
transformers.logging.set_verbosity_error()

SIZES = {
    "vocab_size": 500,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=40),
    "gemma2": lambda: transformers.Gemma2Config(**SIZES, sliding_window=40),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, sliding_window=40, num_local_experts=4, num_experts_per_tok=2
    ),
}


def model_of(family, implementation, dtype=torch.float32):
    ours.register()
    config = copy.deepcopy(MODELS[family]())
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.05).to(dtype)
    model.generation_config.eos_token_id = None
    return model.to(DEVICE)


def prompts():
    tokens = torch.randint(1, 500, (4, 100), generator=torch.Generator().manual_seed(0))
    seen = torch.ones_like(tokens)
    seen[0, :37] = seen[2, :90] = 0
    return (tokens * seen).to(DEVICE), seen.to(DEVICE)


@pytest.mark.parametrize("family", MODELS)
def test_generate_gives_the_tokens_of_eager_attention(family):
    eager, model = (model_of(family, name) for name in ("eager", "rocmkern"))
    ours.patch(model)
    tokens, seen = prompts()
    for way in ({}, {"cache_implementation": "static", "disable_compile": True}):
        asked = {"attention_mask": seen, "max_new_tokens": 20, "do_sample": False, **way}
        assert torch.equal(model.generate(tokens, **asked), eager.generate(tokens, **asked))


@pytest.mark.parametrize("family", MODELS)
def test_bfloat16_is_within_the_noise_of_the_model(family):
    tokens, seen = prompts()
    found = {}
    with torch.no_grad():
        for name, dtype in (("exact", torch.float32), ("eager", torch.bfloat16), ("rocmkern", torch.bfloat16)):
            model = model_of(family, "eager" if name == "exact" else name, torch.bfloat16).to(dtype)
            if name == "rocmkern":
                ours.patch(model)
            found[name] = model(tokens, attention_mask=seen).logits[seen.bool()].float()
    noise = {name: (x - found["exact"]).pow(2).mean().sqrt().item() for name, x in found.items()}
    assert noise["rocmkern"] <= 1.2 * noise["eager"]


@pytest.mark.parametrize("case", ["no mask", "padding on the left", "padding with holes", "static cache", "sinks"])
def test_attention_does_not_wait_for_the_card(case):
    module = SimpleNamespace(is_causal=True)
    q = torch.randn(2, 8, 16, 64, dtype=torch.bfloat16, device=DEVICE)
    k, v = torch.randn(2, 2, 2, 48, 64, dtype=torch.bfloat16, device=DEVICE)
    seen = torch.ones((2, 48), dtype=torch.bool, device=DEVICE)
    seen[0, 3 if case == "padding with holes" else slice(3)] = False
    given, keys, offset = (seen, 48, 32) if case.startswith("padding") else (None, 48, 0 if "static" in case else 32)
    masked = mask(2, 16, keys, q_offset=offset, attention_mask=given, device=DEVICE)
    more = {"s_aux": torch.randn(8, dtype=torch.bfloat16, device=DEVICE)} if case == "sinks" else {}
    with torch.no_grad():
        wanted = [attention_forward(module, q, k, v, masked, **more)[0] for _ in range(3)][-1]
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = attention_forward(module, q, k, v, masked, **more)[0]
        finally:
            torch.cuda.set_sync_debug_mode(before)
    assert torch.equal(found, wanted)


def test_quantized_weights_are_in_host_memory():
    model = model_of("llama", "rocmkern", torch.bfloat16)
    tokens, seen = prompts()
    ours.patch(model, linear="q8_0")
    layer = model.model.layers[0].self_attn.q_proj
    assert layer.weight.device.type == "cpu" and layer.rocmkern_blocks.device.type == DEVICE
    out = model.generate(tokens, attention_mask=seen, max_new_tokens=4, do_sample=False)
    assert out.shape == (4, 104)
    ours.unpatch(model)
    assert layer.weight.device.type == DEVICE
