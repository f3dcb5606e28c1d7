"""Gradients of models on our operations: held against themselves in float64, beside what PyTorch's own are off."""

from __future__ import annotations

import copy

import pytest
from small_models import DECODERS, Exact, model_of, prompts, torch

import rocmkern
from rocmkern import targets
from rocmkern.transformers import patch, unpatch


@pytest.fixture(autouse=True)
def interpreted():
    with targets.using("python"):
        yield


def gradients(model, tokens, seen):
    """Of the loss of the next token, by the names of the parameters; padding is no token, and predicts none."""
    of = getattr(model, "model", model) if isinstance(model, Exact) else model
    of.zero_grad()
    predicted = seen.bool() & (seen.roll(1, 1) != 0)
    labels = tokens.masked_fill(~predicted, -100)
    model(input_ids=tokens, attention_mask=seen, labels=labels).loss.backward()
    return {name: p.grad.clone() for name, p in of.named_parameters()}


def off(found, exact):
    """Root of the mean squared difference of each gradient, relative to the size of the exact one."""
    return {n: float((found[n].double() - g).norm() / g.norm().clamp(min=1e-30)) for n, g in exact.items()}


@pytest.mark.parametrize("family", DECODERS)
def test_gradients_are_those_of_the_model(family):
    model = model_of(DECODERS[family](), "rocmkern")
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    exact = Exact(model)
    patch(model)
    tokens, seen = prompts(3, 13, "left")
    wanted = gradients(exact, tokens, seen)
    theirs, ours = off(gradients(plain, tokens, seen), wanted), off(gradients(model, tokens, seen), wanted)
    assert set(ours) == set(theirs)
    for name, error in ours.items():
        assert error <= 3 * theirs[name] + 1e-6, name


def test_halves():
    model = model_of(DECODERS["llama"](), "rocmkern").to(torch.bfloat16)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    exact = Exact(model)
    patch(model)
    tokens, seen = prompts(2, 9, "right")
    wanted = gradients(exact, tokens, seen)
    theirs, ours = off(gradients(plain, tokens, seen), wanted), off(gradients(model, tokens, seen), wanted)
    for name, error in ours.items():
        assert error <= 2 * theirs[name] + 1e-3, name


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_checkpointed_layers_give_the_same_bits():
    model = model_of(DECODERS["llama"](), "rocmkern").train()
    patch(model)
    tokens, seen = prompts(2, 9, "left")
    wanted = gradients(model, tokens, seen)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for name, found in gradients(model, tokens, seen).items():
        assert torch.equal(found, wanted[name]), name


def test_a_compiled_step_is_one_graph():
    model = model_of(DECODERS["llama"](), "rocmkern").train()
    patch(model)
    tokens, _ = prompts(2, 9)
    wanted = gradients(model, tokens, torch.ones_like(tokens))
    torch._dynamo.reset()
    model.zero_grad()
    step = torch.compile(lambda x: model(input_ids=x, labels=x).loss, backend="aot_eager", fullgraph=True)
    step(tokens).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name], rtol=1e-4, atol=1e-6)


def test_some_steps_of_training_lower_the_loss_as_before():
    model = model_of(DECODERS["llama"](), "rocmkern").train()
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    patch(model)
    tokens, _ = prompts(2, 9)
    found = []
    for each in (model, plain):
        optimizer, losses = torch.optim.AdamW(each.parameters(), lr=0.01), []
        for _ in range(5):
            loss = each(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(losses)
    ours, theirs = found
    assert ours == sorted(ours, reverse=True)
    assert ours == pytest.approx(theirs, rel=1e-4)


class Adapted(torch.nn.Module):
    """A linear layer that is frozen, and a product of two small matrices beside it."""

    def __init__(self, layer, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layer = layer
        self.down = torch.nn.Linear(layer.in_features, 3, bias=False)
        self.up = torch.nn.Linear(3, layer.out_features, bias=False)
        for each in (self.down, self.up):
            each.weight.data.normal_(0, 0.2, generator=generator)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def adapt(model):
    """Freeze a model but for matrices beside all of its projections; their names."""
    model.requires_grad_(False)
    names = [name for name, module in model.named_modules() if name.endswith("_proj")]
    for seed, name in enumerate(names):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Adapted(model.get_submodule(name), seed))
    return names


def of_adapters(model, tokens):
    """Their gradients by their names; nothing else has one."""
    of = model.model if isinstance(model, Exact) else model
    of.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert all(p.grad is None for p in of.parameters() if not p.requires_grad)
    return {name: p.grad.clone() for name, p in of.named_parameters() if p.requires_grad}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("patched_first", [False, True])
@pytest.mark.parametrize("linear", [None, "q8_0"])
def test_matrices_beside_frozen_layers_are_trained(linear, patched_first, checkpointed):
    """As in LoRA and QLoRA: gradients pass the layers, quantized or not; no adapter is left out or quantized."""
    model = model_of(DECODERS["llama"](), "rocmkern").train()
    kept, state = copy.deepcopy(model), {name: x.clone() for name, x in model.state_dict().items()}
    if patched_first:
        report, names = patch(model, linear=linear), adapt(model)
    else:
        names, report = adapt(model), patch(model, linear=linear)
    quantized = [name.removesuffix(".layer") for name, kind in report.replaced.items() if kind == linear]
    assert quantized == [name for name in names if linear and "down_proj" not in name]  # 48 columns are no blocks
    for name in quantized:
        weight = kept.get_submodule(name).weight
        weight.data = rocmkern.dequantize(rocmkern.quantize(weight.data, linear), linear)
    adapt(kept)
    exact = Exact(kept)
    kept.set_attn_implementation("eager")
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    tokens, _ = prompts(2, 9)
    wanted = of_adapters(exact, tokens)
    ours, theirs = (off(of_adapters(each, tokens), wanted) for each in (model, kept))
    assert len(ours) == 2 * len(names)
    for name, error in ours.items():
        assert error <= 3 * theirs[name] + 1e-6, name

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=0.02), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    unpatch(model)
    after = {name.replace(".layer.", "."): x for name, x in model.state_dict().items()}
    assert all(torch.equal(after[name], x) for name, x in state.items())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("frozen", ["nothing", "what is above", "all but one"])
def test_quantized_weights_that_are_trained_are_refused_by_backward(frozen, compiled):
    """Not by a forward, whose result may be all that is wanted, or the gradient of something else."""
    model = model_of(DECODERS["llama"](), "rocmkern")
    tokens, _ = prompts(2, 9)
    patch(model, linear="q8_0")
    projection = model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        wanted = model(input_ids=tokens, use_cache=False).logits
    if frozen != "nothing":
        (model if frozen == "all but one" else model.model.embed_tokens).requires_grad_(False)
        projection.requires_grad_(True)
    torch._dynamo.reset()
    call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    found = call(input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(rocmkern.ArgumentError, match=r"linear: got .*_proj\.weight\); allowed: frozen") as caught:
        found.sum().backward()
    assert frozen != "all but one" or "model.layers.0.self_attn.q_proj.weight" in str(caught.value)
    model.requires_grad_(False)
    embedded = model.model.embed_tokens(tokens).requires_grad_()
    model(inputs_embeds=embedded).logits.sum().backward()
    model.requires_grad_(True)
    (found,) = torch.autograd.grad(model(inputs_embeds=embedded).logits.sum(), embedded)
    assert torch.equal(found, embedded.grad)


def test_what_a_quantized_layer_gives_may_be_changed_in_place():
    layer = torch.nn.Sequential(torch.nn.Linear(32, 3))
    patch(layer, linear="q8_0")
    x = torch.ones(2, 32, requires_grad=True)
    layer(x).mul_(2).sum().backward(inputs=[x])
    assert x.grad is not None
