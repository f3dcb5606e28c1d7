"""What a call in the words of another library is answered with."""

from __future__ import annotations

import ast
import inspect
import re

import numpy as np
import pytest

import rocmkern
from rocmkern.calls import spellings as _spellings
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

OPERATIONS = [
    getattr(rocmkern, name)
    for name in rocmkern.__all__
    if rocmkern._MODULE_OF[name].startswith("rocmkern.ops.") and inspect.isfunction(getattr(rocmkern, name))
]
X = np.ones((2, 2, 3, 4), np.float32)
PAIRS, PADDING = np.ones((3, 3), bool), np.ones((2, 3), np.int64)


def answer(function, *arguments, error=ArgumentTypeError, **keywords):
    with pytest.raises(error) as caught:
        function(*arguments, **keywords)
    assert type(caught.value) is error and str(caught.value).startswith(f"{caught.value.argument}: got ")
    assert caught.value.__cause__ is None and (caught.value.__suppress_context__ or not caught.value.__context__)
    return caught.value


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"softmax_scale": 0.125}, "scale=0.125"),
        ({"sm_scale": 0.125}, "scale=0.125"),
        ({"window_size": (-1, 0)}, "window=(None, 0)"),
        ({"window_size": (127, 0)}, "window=(127, 0)"),
        ({"window_size": (-1, -1)}, "window=None"),
        ({"sliding_window": 4096}, "window=(4095, 0)"),
        ({"is_causal": True}, "causal=True"),
        ({"attn_mask": PAIRS}, "mask=attn_mask,"),
        ({"attn_mask": X}, "bias=attn_mask"),
        ({"attention_mask": PADDING}, "mask=attention_mask.astype(bool)[:, None, None, :]"),
        ({"key_padding_mask": PADDING.astype(bool)}, "mask=~key_padding_mask[:, None, None, :]"),
        ({"dropout_p": 0.0}, "without it"),
        ({"enable_gqa": True}, "without it"),
        ({"logits_soft_cap": 30.0}, "softcap=30.0"),
        ({"return_softmax_lse": True}, "return_lse=True"),
        ({"qkv_format": "NHD"}, 'layout="bshd"'),
        ({"s_aux": np.ones(2, np.float32)}, "sinks=s_aux"),
        ({"casual": True}, "causal=True"),
        ({"casual": "x" * 58}, f"causal={'x' * 58!r}"),
        ({"casual": "x" * 59}, "causal=casual"),
        ({"nonsense": 1}, "q, k, v, layout, causal"),
    ],
)
def test_attention(keywords, words):
    error = answer(rocmkern.flash_attention, X, X, X, **keywords)
    assert error.argument == next(iter(keywords)) and words in error.allowed


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rocmkern.rms_norm(X, X[0, 0, 0], epsilon=1e-6), "eps=1e-06"),
        (lambda: rocmkern.layer_norm(X, normalized_shape=(4,)), "last axis"),
        (lambda: rocmkern.layer_norm(X, (4,), X[0, 0, 0]), "torch.nn.functional"),
        (lambda: rocmkern.rms_norm(X, 4), "torch.nn.functional"),
        (lambda: rocmkern.softmax(X, dim=-1), "without it"),
        (lambda: rocmkern.softmax(X, axis=1), "x.swapaxes(1, -1)"),
        (lambda: rocmkern.transpose(X, perm=(1, 0)), "axes=(1, 0)"),
        (lambda: rocmkern.rope(X, np.arange(2), theta=1e6), "base=1000000.0"),
        (lambda: rocmkern.rope(X, np.arange(2), is_neox_style=False), 'variant="interleaved"'),
        (lambda: rocmkern.sample(X[0, 0], do_sample=False, seed=0), "temperature=0.0"),
        (lambda: rocmkern.sample(X[0, 0], topk=5, seed=0), "top_k=5"),
        (lambda: rocmkern.quantize(X, qtype="q4_0"), "format='q4_0'"),
        (lambda: rocmkern.matmul(X, X, transpose_a=True), "a.swapaxes(-1, -2)"),
        (lambda: rocmkern.embedding(input=np.arange(2), weight=X[0, 0]), "second argument"),
        (lambda: rocmkern.embedding(np.arange(2), X[0, 0]), "embedding(table, indices)"),
    ],
)
def test_other_operations(call, words):
    assert words in answer(call).allowed


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_every_operation_answers(operation):
    needed = [p for p in inspect.signature(operation).parameters.values() if p.default is p.empty]
    given = {p.name: X for p in needed}
    assert answer(operation, **given, no_such_keyword=1).argument == "no_such_keyword"
    if "out" in inspect.signature(operation).parameters:
        assert answer(operation, **given, output=X).allowed == "out=output"


@pytest.mark.parametrize("spelling", sorted(_spellings._SPELLINGS))
def test_what_is_answered_can_be_written(spelling):
    """Each spelling has an operation that it is for, which does not have it itself but the parameter of the answer."""
    answered = 0
    for operation in OPERATIONS:
        parameters = list(inspect.signature(operation).parameters)
        ours = [ours for ours, _ in _spellings._SPELLINGS[spelling] if ours is None or ours in parameters]
        if spelling in parameters or not ours:
            continue
        for value in (0.0, 1, True, "x", (1, 2), None, X, PADDING):
            words = _spellings._instead(spelling, value, parameters)
            assert words
            written = re.match(r"(\w+)=", words)
            if written and ours[0] is not None and written[1] != "bias":
                assert written[1] in parameters
        answered += 1
    assert answered


def test_other_type_errors_are_pythons_own():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'v'"):
        rocmkern.flash_attention(X, X)
    with pytest.raises(TypeError, match="multiple values"):
        rocmkern.softmax(X, x=X)


@pytest.mark.parametrize("value", [(-1, 0), (127, 0), (3, -1), (-1, -1)])
def test_the_window_of_flash_attn_means_the_same(value):
    words = _spellings._instead("window_size", value, ["window"]).partition(":")[0]
    window = ast.literal_eval(words.partition("=")[2])
    assert window is None or [(-1 if side is None else side) for side in window] == list(value)


# Masks


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize(
    "call", [lambda m: rocmkern.flash_attention(X, X, X, mask=m), lambda m: rocmkern.apply_mask(X, m)]
)
def test_masks_of_integers(call, dtype):
    assert "mask.astype(bool)" in answer(lambda: call(np.ones((2, 1, 3, 3), dtype))).allowed


def test_masks_of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.ones(2, 2, 3, 4)
    error = answer(rocmkern.flash_attention, x, x, x, mask=torch.ones(3, 3, dtype=torch.int32))
    assert "mask.bool()" in error.allowed


def test_masks_of_numbers():
    assert "bias=" in answer(lambda: rocmkern.flash_attention(X, X, X, mask=np.zeros((3, 3), np.float32))).allowed


@pytest.mark.parametrize(
    ("shape", "words"), [((2, 3), "mask[:, None, None, :]"), ((2, 5, 3), "mask[:, None] for"), ((4, 4), None)]
)
def test_masks_without_the_axes_between(shape, words):
    q, k = np.ones((2, 4, 5, 8), np.float32), np.ones((2, 4, 3, 8), np.float32)
    allowed = answer(lambda: rocmkern.flash_attention(q, k, k, mask=np.ones(shape, bool)), error=ArgumentError).allowed
    assert words in allowed if words else "mask[" not in allowed
    if words:
        view = eval(words.removesuffix(" for"), {"mask": np.ones(shape, bool)})
        assert rocmkern.flash_attention(q, k, k, mask=view).shape == q.shape
