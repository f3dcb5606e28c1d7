"""Patched models: held against themselves in float64, token for token against what they were, and as before after."""

from __future__ import annotations

import copy
import io
import pickle
from collections import Counter

import pytest
from small_models import DECODERS, SIZES, Exact, error, model_of, noise, prompts, torch, transformers

import rocmkern
from rocmkern.transformers import patch, patching, unpatch

NORMS_OF_A_LAYER = {"qwen3": 4, "gemma2": 4, "gemma3": 6}
PARTS = {"norms": "rms_norm", "rotary": "rope", "mlp": "mlp"}


def logits(model, tokens, seen):
    with torch.no_grad():
        return model(input_ids=tokens, attention_mask=seen).logits


@pytest.fixture
def calls(monkeypatch):
    """How often each public operation is called."""
    counts = Counter()
    for name in (*PARTS.values(), "quantized_linear"):
        operation = getattr(rocmkern, name)

        def counted(*args, name=name, operation=operation, **kwargs):
            counts[name] += 1
            return operation(*args, **kwargs)

        monkeypatch.setattr(rocmkern, name, counted)
    return counts


@pytest.mark.parametrize("family", DECODERS)
def test_a_patched_model_is_as_exact_as_it_was(family, calls):
    model = model_of(DECODERS[family](), "rocmkern")
    before = copy.deepcopy(model)
    before.set_attn_implementation("eager")
    exact = Exact(model)
    report = patch(model)
    norms = 2 * NORMS_OF_A_LAYER.get(family, 2) + 1
    mlps = 0 if family == "gpt_oss" else 2
    assert Counter(report.replaced.values()) == Counter(norms=norms, rotary=3, mlp=mlps)
    assert list(report.left.values()) == ["it is a mixture of experts"] * (2 - mlps)
    tokens, seen = prompts(4, 17, "left")
    wanted = exact(input_ids=tokens, attention_mask=seen).logits.detach()
    bound = 2 * error(logits(before, tokens, seen), wanted, seen) + 2e-7
    assert error(logits(model, tokens, seen), wanted, seen) <= bound
    assert calls == Counter(rms_norm=norms, rope=4, mlp=mlps)

    for batch, way in ((1, {}), (4, {}), (3, {"cache_implementation": "static", "disable_compile": True})):
        tokens, seen = prompts(batch, 11, "left")
        asked = {"attention_mask": seen, "max_new_tokens": 9, "do_sample": False, **way}
        assert torch.equal(model.generate(tokens, **asked), before.generate(tokens, **asked))


@pytest.mark.parametrize("family", DECODERS)
def test_bfloat16_is_within_the_noise_of_the_model(family):
    model = model_of(DECODERS[family](), "eager", dtype=torch.bfloat16)
    tokens, seen = prompts(3, 17, "left")
    wanted = Exact(model)(input_ids=tokens, attention_mask=seen).logits.detach()
    of_model = noise(logits(model, tokens, seen), wanted, seen)
    patch(model)
    model.set_attn_implementation("rocmkern")
    assert noise(logits(model, tokens, seen), wanted, seen) <= 1.2 * of_model


@pytest.mark.parametrize("part", PARTS)
def test_unpatch_gives_the_same_numbers_and_names(part, calls):
    model = model_of(DECODERS["gemma3"](), "rocmkern")
    tokens, seen = prompts(2, 9, "left")
    wanted, state = logits(model, tokens, seen), model.state_dict()
    report = patch(model, **{name: name == part for name in PARTS})
    assert set(report.replaced.values()) == {part} and not report.left
    logits(model, tokens, seen)
    assert set(calls) == {PARTS[part]}
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())
    unpatch(model)
    calls.clear()
    assert torch.equal(logits(model, tokens, seen), wanted) and not calls
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_copy_has_its_own_weights():
    model = model_of(DECODERS["llama"](), "rocmkern")
    tokens, seen = prompts(2, 9)
    patch(model, linear="q8_0")
    wanted = logits(model, tokens, seen)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.norm.weight.mul_(2)
    assert torch.equal(logits(model, tokens, seen), wanted)
    assert torch.allclose(logits(other, tokens, seen), 2 * wanted, rtol=1e-5, atol=1e-5)
    unpatch(other)
    assert "forward" not in other.model.norm.__dict__ and "forward" in model.model.norm.__dict__
    assert torch.equal(logits(model, tokens, seen), wanted)


@pytest.mark.parametrize("linear", [None, "q8_0"])
@pytest.mark.parametrize("family", DECODERS)
def test_a_loaded_model_is_patched_as_the_saved_one(family, linear, calls):
    model = model_of(DECODERS[family](), "rocmkern")
    tokens, seen = prompts(2, 9, "left")
    plain = logits(model, tokens, seen)
    patch(model, linear=linear)
    calls.clear()
    wanted, used, file = logits(model, tokens, seen), dict(calls), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    calls.clear()
    assert torch.equal(logits(loaded, tokens, seen), wanted) and calls == used
    with torch.no_grad():
        loaded.model.norm.weight.mul_(2)
    assert torch.equal(logits(model, tokens, seen), wanted)
    unpatch(loaded)
    assert not any("forward" in module.__dict__ for module in loaded.modules())
    with torch.no_grad():
        loaded.model.norm.weight.copy_(model.model.norm.weight)
    calls.clear()
    assert torch.equal(logits(loaded, tokens, seen), plain) and not calls


@pytest.mark.parametrize(("format", "size"), [("q8_0", 32), ("q4_0", 32), ("q4_k", 256)])
def test_quantized_layers_are_those_of_the_numbers_kept(format, size, calls):
    sizes = {"hidden_size": size, "head_dim": size // 4, "intermediate_size": 48, "num_hidden_layers": 1}
    model = model_of(transformers.LlamaConfig(**SIZES | sizes), "rocmkern")
    kept = copy.deepcopy(model)
    state = {name: x.clone() for name, x in model.state_dict().items()}
    report = patch(model, norms=False, rotary=False, mlp=True, linear=format)
    quantized = [name for name, kind in report.replaced.items() if kind == format]
    assert len(quantized) == 6 and len(report.replaced) == 6
    assert report.left["lm_head"] == "it gives the logits"
    assert "no multiple of" in report.left["model.layers.0.mlp.down_proj"]
    assert "quantized" in report.left["model.layers.0.mlp"]
    for name in quantized:
        layer = kept.get_submodule(name)
        layer.weight.data = rocmkern.dequantize(rocmkern.quantize(layer.weight.data, format), format)
    tokens, seen = prompts(2, 9, "left")
    exact = Exact(kept)(input_ids=tokens, attention_mask=seen).logits.detach()
    bound = 2 * error(logits(kept, tokens, seen), exact, seen) + 2e-7
    calls.clear()
    assert error(logits(model, tokens, seen), exact, seen) <= bound
    assert calls == Counter(quantized_linear=6)
    for _ in range(2):
        assert model.state_dict().keys() == state.keys()
        assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())
        if hasattr(model, patching._RECORD):
            unpatch(model)
    assert not list(model.get_submodule(quantized[0]).buffers())


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("which", ["itself", "a deep copy", "a loaded one"])
def test_a_state_that_is_loaded_is_quantized(which, assign):
    model, other = (model_of(DECODERS["llama"](), "rocmkern", seed=seed) for seed in (0, 1))
    patch(model, linear="q8_0")
    tokens, seen = prompts(2, 9, "left")
    before, state = logits(model, tokens, seen), other.state_dict()
    by_parts = copy.deepcopy(model)
    of = {"itself": model, "a deep copy": by_parts, "a loaded one": pickle.loads(pickle.dumps(model))}[which]
    of.load_state_dict({name: x.clone() for name, x in state.items()}, assign=assign)
    plain = logits(other, tokens, seen)
    for name, part in by_parts.named_modules():
        if not [*part.children()]:
            part.load_state_dict(other.get_submodule(name).state_dict())
    patch(other, linear="q8_0")
    for each in (of, by_parts):
        assert torch.equal(logits(each, tokens, seen), logits(other, tokens, seen))
    assert of is model or torch.equal(logits(model, tokens, seen), before)
    unpatch(of)
    assert torch.equal(logits(of, tokens, seen), plain)
    assert not any(module._load_state_dict_post_hooks for module in of.modules())


def test_a_shared_weight_stays():
    model = model_of(DECODERS["llama"](), "rocmkern")
    first, second = (layer.self_attn for layer in model.model.layers)
    second.q_proj.weight = first.q_proj.weight
    report = patch(model, linear="q8_0")
    assert "model.layers.1.self_attn.q_proj too" in report.left["model.layers.0.self_attn.q_proj"]


SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, a factor of its own": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.5,
    },
}


@pytest.mark.parametrize("said", [True, False], ids=["by words", "by frequencies"])
@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_rotations(name, said, calls):
    parameters = {"rope_theta": 500.0, **SCALINGS[name]}
    model = model_of(transformers.LlamaConfig(**SIZES, rope_parameters=parameters), "eager")
    exact = Exact(model)
    before = copy.deepcopy(model)
    if not said:
        model.config.rope_parameters = {"rope_theta": 3.0, "rope_type": "default"}
    assert set(patch(model, norms=False, mlp=False).replaced.values()) == {"rotary"}
    tokens, seen = prompts(2, 40, "left")
    wanted = exact(input_ids=tokens, attention_mask=seen).logits.detach()
    bound = 2 * error(logits(before, tokens, seen), wanted, seen) + 2e-7
    assert error(logits(model, tokens, seen), wanted, seen) <= bound
    assert calls["rope"] == 4


def test_interleaved_pairs(calls):
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    config = transformers.CohereConfig(**sizes)
    model = model_of(config, "eager")
    before = copy.deepcopy(model)
    patch(model, norms=False, mlp=False)
    tokens, seen = prompts(2, 17, "left")
    assert error(logits(model, tokens, seen), logits(before, tokens, seen).double(), seen) < 1e-5
    assert calls["rope"] == 4


def test_frequencies_that_change_stay():
    parameters = {"rope_theta": 500.0, "rope_type": "dynamic", "factor": 2.0}
    model = model_of(transformers.LlamaConfig(**SIZES, rope_parameters=parameters), "rocmkern")
    report = patch(model)
    assert set(report.replaced.values()) == {"norms", "mlp"}
    assert "change with the length" in report.left["model.rotary_emb"]
    assert "stays as it is" in report.left["model.layers.0.self_attn"]


def test_tables_that_a_model_changed_are_used_as_they_are(calls):
    model = model_of(DECODERS["llama"](), "rocmkern")
    tokens, seen = prompts(2, 9)
    wanted = logits(model, tokens, seen)
    patch(model, norms=False, mlp=False)
    forward = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda *args, **kwargs: tuple(x.clone() for x in forward(*args, **kwargs))
    assert torch.equal(logits(model, tokens, seen), wanted) and not calls


def test_a_patched_model_is_one_graph():
    model = model_of(DECODERS["llama"](), "rocmkern")
    patch(model)
    tokens, seen = prompts(2, 9, "left")
    wanted = logits(model, tokens, seen)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        found = compiled(input_ids=tokens, attention_mask=seen, use_cache=False).logits
    assert error(found, wanted.double(), seen) < 1e-5


class OtherRMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(32)), 1e-6

    def forward(self, x):
        return x / (x.pow(2).sum(-1, keepdim=True) + self.eps).sqrt() * self.weight


def test_what_computes_something_else_stays():
    model = model_of(DECODERS["llama"](), "rocmkern")
    model.model.norm = OtherRMSNorm()
    first, second = model.model.layers
    first.mlp.act_fn = torch.nn.Tanh()
    second.mlp.up_proj = torch.nn.Sequential(second.mlp.up_proj)
    second.input_layernorm.forward = lambda x: x
    first.self_attn.forward = lambda **kwargs: (kwargs["hidden_states"], None)
    tokens, seen = prompts(2, 9)
    left = patch(model).left
    assert set(left) == {
        "model.norm",
        "model.layers.0.mlp",
        "model.layers.1.mlp",
        "model.layers.1.input_layernorm",
        "model.layers.0.self_attn",
    }
    assert "another formula" in left["model.norm"] and "another formula" in left["model.layers.0.mlp"]
    assert "up_proj" in left["model.layers.1.mlp"]
    assert left["model.layers.1.input_layernorm"] == left["model.layers.0.self_attn"] != ""
    logits(model, tokens, seen)


def test_weights_of_another_type_than_the_states():
    model = model_of(DECODERS["llama"](), "rocmkern", dtype=torch.bfloat16)
    norm, x = model.model.norm.float(), torch.randn(2, 32).to(torch.bfloat16)
    wanted = norm(x)
    patch(model)
    with torch.no_grad():
        found = norm(x)
    assert found.dtype is wanted.dtype is torch.float32
    assert torch.allclose(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("model", lambda model: patch("llama")),
        ("model", lambda model: patch(torch.nn.Linear(3, 3))),
        ("model", lambda model: [patch(model), patch(model)]),
        ("model", lambda model: unpatch(model)),
        ("norms", lambda model: patch(model, norms=1)),
        ("norms", lambda model: patch(model, norms=False, rotary=False, mlp=False)),
        ("linear", lambda model: patch(model, linear="q9")),
    ],
    ids=["no model", "nothing in it", "twice", "not patched", "no bool", "nothing asked", "no format"],
)
def test_what_is_refused(argument, call):
    model = model_of(DECODERS["llama"](), "rocmkern")
    with pytest.raises(rocmkern.ArgumentError) as caught:
        call(model)
    assert caught.value.argument == argument


def test_a_report_says_how_many():
    model = model_of(DECODERS["gpt_oss"](), "rocmkern")
    assert str(patch(model)) == "norms: 5 replaced\nrotary: 3 replaced\n2 left: it is a mixture of experts"


@pytest.fixture
def halves_by_default():
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


def test_the_default_dtype_does_not_count(halves_by_default):
    assert len(patch(model_of(DECODERS["llama"](), "rocmkern", dtype=torch.float32)).replaced) == 10


def test_an_mlp_whose_layers_somebody_watches_stays_what_it_is():
    from torch.nn.utils import prune

    model = model_of(DECODERS["llama"](), "rocmkern")
    first, second = (layer.mlp for layer in model.model.layers)
    first.up_proj.register_forward_hook(lambda *_: None)
    prune.l1_unstructured(second.down_proj, "weight", 0.5)
    tokens, seen = prompts(2, 9)
    before = logits(model, tokens, seen)
    report = patch(model)
    assert "mlp" not in report.replaced.values() and len(report.left) == 2
    assert torch.allclose(logits(model, tokens, seen), before, atol=1e-5)


def test_and_so_does_one_whose_layers_are_watched_later():
    model = model_of(DECODERS["llama"](), "rocmkern")
    patch(model)
    seen = []
    model.model.layers[1].mlp.gate_proj.register_forward_pre_hook(lambda *_: seen.append(1))
    logits(model, *prompts(2, 9))
    assert seen
