"""Models with our attention: held against themselves in float64, and token for token against eager attention."""

from __future__ import annotations

import pytest
from small_models import DECODERS, SIZES, WINDOW, Exact, error, model_of, noise, prompts, torch, transformers

import rocmkern
from rocmkern.transformers import register
from rocmkern.transformers.attention import attention_forward
from rocmkern.transformers.masks import mask

ENCODER = {
    "vocab_size": SIZES["vocab_size"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
OTHERS = {
    "encoder": lambda: transformers.BertConfig(**ENCODER),
    "encoder with windows": lambda: transformers.ModernBertConfig(
        **ENCODER, local_attention=8, global_attn_every_n_layers=2
    ),
    "decoder to both sides": lambda: transformers.LlamaConfig(**SIZES, is_causal=False),
    # Keys of 16, values of 12.
    "latent": lambda: transformers.DeepseekV3Config(
        **{name: size for name, size in SIZES.items() if name != "head_dim"} | {"num_key_value_heads": 4},
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=2,
    ),
    # Its attention does not say its window: only the mask does.
    "a window in the mask alone": lambda: transformers.Qwen2MoeConfig(
        **{name: size for name, size in SIZES.items() if name != "head_dim"} | WINDOW,
        use_sliding_window=True,
        max_window_layers=0,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "chunks": lambda: transformers.Llama4TextConfig(
        **SIZES, attention_chunk_size=6, intermediate_size_mlp=48, num_local_experts=2, no_rope_layers=[1, 1]
    ),
}


def numbers(model, **inputs):
    """Logits, or the last hidden states of a model without them."""
    with torch.no_grad():
        return model(**inputs)[0]


def compare(model, eager, exact, seen, **inputs):
    """Our error is at most what eager attention of the same precision has, and a little."""
    wanted = numbers(exact, **inputs)
    bound = 1.5 * error(numbers(eager, **inputs), wanted, seen) + 2e-7
    assert error(numbers(model, **inputs), wanted, seen) <= bound


@pytest.mark.parametrize("family", [*DECODERS, *OTHERS])
def test_float32_is_as_exact_as_eager_attention(family):
    config = {**DECODERS, **OTHERS}[family]()
    kind = transformers.AutoModelForCausalLM if family not in OTHERS else transformers.AutoModel
    model, eager = (model_of(config, name, kind) for name in ("rocmkern", "eager"))
    exact = Exact(eager)
    for padding in ("none", "left", "right"):
        tokens, seen = prompts(4, 17, padding)
        compare(model, eager, exact, seen, input_ids=tokens, attention_mask=seen)


@pytest.mark.parametrize("family", DECODERS)
def test_bfloat16_is_within_the_noise_of_the_model(family):
    config = DECODERS[family]()
    models = {name: model_of(config, name, dtype=torch.bfloat16) for name in ("rocmkern", "eager")}
    if family not in ("gemma2", "gpt_oss"):  # whose soft cap and sinks PyTorch's attention does not have
        models["sdpa"] = model_of(config, "sdpa", dtype=torch.bfloat16)
    exact = Exact(models["eager"])
    tokens, seen = prompts(3, 17, "left")
    wanted = numbers(exact, input_ids=tokens, attention_mask=seen)
    found = {name: numbers(model, input_ids=tokens, attention_mask=seen) for name, model in models.items()}
    of_others = max(noise(x, wanted, seen) for name, x in found.items() if name != "rocmkern")
    assert noise(found["rocmkern"], wanted, seen) <= 1.2 * of_others


WAYS = {
    "greedy": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "sampled": {"do_sample": True, "top_k": 20},
    "beams": {"num_beams": 3},
}


@pytest.mark.parametrize("family", DECODERS)
def test_generate_gives_the_tokens_of_eager_attention(family):
    model, eager = (model_of(DECODERS[family](), name) for name in ("rocmkern", "eager"))
    for batch in (1, 2, 4):
        tokens, seen = prompts(batch, 11, "left")
        for way in ("greedy", "static") if batch != 2 else ("beams",):
            asked = {"attention_mask": seen, "max_new_tokens": 9, "do_sample": False, **WAYS[way]}
            assert torch.equal(model.generate(tokens, **asked), eager.generate(tokens, **asked)), (batch, way)


def test_other_ways_to_generate():
    model, eager = (model_of(DECODERS["mistral"](), name) for name in ("rocmkern", "eager"))
    helper = model_of(DECODERS["mistral"](), "rocmkern", seed=1)
    tokens, seen = prompts(3, 11, "left")
    sampled = []
    for one in (model, eager):
        transformers.set_seed(3)
        sampled.append(one.generate(tokens, attention_mask=seen, max_new_tokens=9, do_sample=True, top_k=20))
    assert torch.equal(*sampled)
    # Several queries at the end of what is cached.
    asked = {"max_new_tokens": 9, "do_sample": False}
    wanted = eager.generate(tokens[:1], attention_mask=seen[:1], **asked)
    assert torch.equal(model.generate(tokens[:1], attention_mask=seen[:1], assistant_model=helper, **asked), wanted)
    chunked = model.generate(tokens, attention_mask=seen, prefill_chunk_size=4, **asked)
    assert torch.equal(chunked, eager.generate(tokens, attention_mask=seen, **asked))


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_cross_attention(family):
    sizes = {"vocab_size": SIZES["vocab_size"], "d_model": 32, "pad_token_id": 0, "decoder_start_token_id": 1}
    layers = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("ffn_dim", 48))}
    heads = {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    config = {
        "bart": lambda: transformers.BartConfig(**sizes, **layers, **heads, max_position_embeddings=64),
        "t5": lambda: transformers.T5Config(**sizes, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
    }[family]()
    model, eager = (model_of(config, name, transformers.AutoModelForSeq2SeqLM) for name in ("rocmkern", "eager"))
    tokens, seen = prompts(3, 13, "right")
    inputs = {"input_ids": tokens, "attention_mask": seen, "decoder_input_ids": tokens[:, :5]}
    compare(model, eager, Exact(eager), None, **inputs)
    asked = {"attention_mask": seen, "max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(tokens, **asked), eager.generate(tokens, **asked))


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("said", ["positions", "lengths"])
def test_packed_sequences_do_not_see_each_other(family, said):
    model = model_of(DECODERS[family](), "rocmkern")
    tokens, _ = prompts(1, 20)
    lengths = [8, 1, 11]
    alone = torch.cat([numbers(model, input_ids=part) for part in tokens.split(lengths, 1)], 1)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    inputs = {"position_ids": positions, "use_cache": False}
    if said == "lengths":
        ends = torch.tensor([0, 8, 9, 20], dtype=torch.int32)
        inputs |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 11, "max_length_k": 11}
    assert error(numbers(model, input_ids=tokens, **inputs), alone.double()) < 1e-5


def test_a_mask_of_the_caller_is_complete():
    model, eager = (model_of(DECODERS["llama"](), name) for name in ("rocmkern", "eager"))
    exact = Exact(eager)
    tokens, _ = prompts(2, 9)
    seen = (torch.arange(9)[:, None] % 3 == torch.arange(9) % 3)[None, None].expand(2, 1, -1, -1)
    added = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    wanted = numbers(exact, input_ids=tokens, attention_mask=added.double())
    for given in (seen, added):
        assert error(numbers(model, input_ids=tokens, attention_mask=given), wanted) < 1e-5


def test_what_cannot_be_done_is_refused():
    model = model_of(DECODERS["llama"](), "rocmkern")
    tokens, _ = prompts(1, 5)
    with torch.no_grad(), pytest.raises(rocmkern.ArgumentError) as caught:
        model(tokens, output_attentions=True)
    assert caught.value.argument == "output_attentions"
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with torch.no_grad(), pytest.raises(rocmkern.ArgumentError) as caught:
        model.train()(tokens)
    assert caught.value.argument == "dropout"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_a_mask_of_integers_is_refused(dtype):
    model = model_of(DECODERS["llama"](), "rocmkern")
    tokens, _ = prompts(2, 9)
    with torch.no_grad(), pytest.raises(rocmkern.ArgumentError) as caught:
        model(tokens, attention_mask=torch.ones((2, 1, 9, 9), dtype=dtype))
    assert caught.value.argument == "attention_mask"


@pytest.mark.parametrize("change", [lambda x: x.add_(3), lambda x: x.data.add_(3)])
def test_sinks_that_change_count(change):
    model = model_of(DECODERS["gpt_oss"](), "rocmkern", dtype=torch.bfloat16)
    tokens, _ = prompts(2, 9)
    numbers(model, input_ids=tokens)
    with torch.no_grad():
        for layer in model.model.layers:
            change(layer.self_attn.sinks)
    other = model_of(DECODERS["gpt_oss"](), "rocmkern", dtype=torch.bfloat16)
    other.load_state_dict(model.state_dict())
    assert torch.equal(numbers(model, input_ids=tokens), numbers(other, input_ids=tokens))


@pytest.mark.parametrize("name", ["", "flash_rocmkern", "sdpa2", "a/b", 3])
def test_names_that_transformers_knows_are_refused(name):
    with pytest.raises(rocmkern.ArgumentError) as caught:
        register(name)
    assert caught.value.argument == "name"


@pytest.mark.parametrize("causal", [True, False], ids=["decoder", "encoder"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_neighbours_changes_no_bit_of_a_batch_invariant_row(side, causal):
    """A row that is alone, in a padded batch as long as it, and in a longer one."""
    generator = torch.Generator().manual_seed(5)
    length, longest = 37, 90
    q, k, v = (torch.randn((3, 2, longest, 16), generator=generator) for _ in range(3))
    base = getattr(transformers.masking_utils, f"{'causal' if causal else 'bidirectional'}_mask_function")

    def attended(rows, keys, tokens):
        """Of some rows, the last or first keys of them, the last or first tokens of which are no padding."""
        part = slice(longest - keys, None) if side == "left" else slice(keys)
        j = torch.arange(keys)
        seen = torch.stack([j >= keys - n if side == "left" else j < n for n in tokens])
        skips = {"allow_is_causal_skip": causal, "allow_is_bidirectional_skip": not causal}
        shown = mask(len(rows), keys, keys, mask_function=base, attention_mask=seen, **skips)
        arrays = [x[rows][:, :, part] for x in (q, k, v)]
        out, _ = attention_forward(torch.nn.Module(), *arrays, shown, is_causal=causal)
        return out[0, -length:] if side == "left" else out[0, :length]

    with rocmkern.batch_invariant():
        alone = attended([0], length, [length])
        assert torch.equal(attended([0, 1], length, [length, 20]), alone)
        if causal or side == "right":
            assert torch.equal(attended([0, 1, 2], longest, [length, 20, longest]), alone)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_model_with_an_attention_of_its_own_is_refused(compiled, side):
    """It would add our masks to its scores."""
    model = model_of(transformers.MPNetConfig(**ENCODER), "rocmkern", transformers.AutoModel)
    tokens, seen = prompts(2, 4, side)
    call = torch.compile(model, backend="eager") if compiled else model
    with pytest.raises(
        rocmkern.ArgumentError, match=r"attn_implementation: .*modeling_mpnet has an attention of its own"
    ):
        call(input_ids=tokens, attention_mask=seen)


@pytest.mark.parametrize("family", ["llama", "encoder"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_one_row_of_a_mask_is_that_of_all(family, side):
    kind = transformers.AutoModelForCausalLM if family == "llama" else transformers.AutoModel
    model = model_of({**DECODERS, **OTHERS}[family](), "rocmkern", kind)
    tokens, seen = prompts(3, 9, side)
    found = numbers(model, input_ids=tokens, attention_mask=seen[1:2])
    assert torch.equal(found, numbers(model, input_ids=tokens, attention_mask=seen[1:2].expand(3, -1)))
