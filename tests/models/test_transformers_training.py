"""Gradients of models on our operations: held against themselves in float64, beside what PyTorch's own are off."""

from __future__ import annotations

import copy

import pytest
from small_models import DECODERS, Exact, model_of, prompts, torch

from rocmkern import targets
from rocmkern.transformers import patch


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
