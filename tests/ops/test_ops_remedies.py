"""What an error says to write instead can be written: it is, and the call then works.

Of every error whose words contain an expression (``mask.astype(bool)``) or a keyword with its value (``scale=0.125``).
"""

from __future__ import annotations

import ast
import re
from contextlib import nullcontext
from importlib.metadata import metadata
from pathlib import Path

import numpy as np
import pytest

import rocmkern
from rocmkern.runtime.errors import ArgumentError

X = np.ones((2, 4, 3, 8), np.float32)
POSITIONS = np.arange(4)
NAMES = {"np": np, "rocmkern": rocmkern}


@pytest.fixture(autouse=True)
def interpreted():
    with rocmkern.using("python"):
        yield


def remedy(call, **arguments):
    """The words behind "allowed" of the error that a call raises, and the argument that it is about."""
    with pytest.raises(ArgumentError) as caught:
        call(**arguments)
    return caught.value.argument, caught.value.allowed


def value_of(text, names):
    """The value of the longest expression that a text begins with."""
    for end in sorted({m.start() for m in re.finditer(r"[:,(]? |$", text)}, reverse=True):
        try:
            tree = ast.parse(text[:end], mode="eval")
            if isinstance(tree.body, ast.Tuple) and not text.startswith("("):
                continue  # two parts of a sentence
            return eval(text[:end], NAMES | names)
        except (SyntaxError, NameError):
            continue
    raise AssertionError(f"{text!r} begins with no expression")


# A keyword in its place

ATTENTION = {"q": X, "k": X, "v": X}
KEYWORDS = [
    (rocmkern.flash_attention, ATTENTION, {"softmax_scale": 0.125}),
    (rocmkern.flash_attention, ATTENTION, {"window_size": (-1, 0)}),
    (rocmkern.flash_attention, ATTENTION, {"window_size": (-1, -1)}),
    (rocmkern.flash_attention, ATTENTION, {"sliding_window": 4}),
    (rocmkern.flash_attention, ATTENTION, {"is_causal": True}),
    (rocmkern.flash_attention, ATTENTION, {"attn_mask": np.ones((3, 3), bool)}),
    (rocmkern.flash_attention, ATTENTION, {"attn_mask": np.ones((3, 3), np.float32)}),
    (rocmkern.flash_attention, ATTENTION, {"attention_mask": np.ones((2, 3), np.int64)}),
    (rocmkern.flash_attention, ATTENTION, {"key_padding_mask": np.zeros((2, 3), bool)}),
    (rocmkern.flash_attention, ATTENTION, {"logits_soft_cap": 30.0}),
    (rocmkern.flash_attention, ATTENTION, {"return_softmax_lse": True}),
    (rocmkern.flash_attention, ATTENTION, {"qkv_format": "NHD"}),
    (rocmkern.flash_attention, ATTENTION, {"s_aux": np.ones(4, np.float32)}),
    (rocmkern.flash_attention, ATTENTION, {"alibi": np.ones(4, np.float32)}),
    (rocmkern.flash_attention, ATTENTION, {"casual": True}),
    (rocmkern.decode_attention, ATTENTION, {"num_kv_splits": 2}),
    (rocmkern.rms_norm, {"x": X, "weight": X[0, 0, 0]}, {"epsilon": 1e-6}),
    (rocmkern.rms_norm, {"x": X, "weight": X[0, 0, 0]}, {"other": X}),
    (rocmkern.layer_norm, {"x": X, "weight": X[0, 0, 0]}, {"beta": X[0, 0, 0]}),
    (rocmkern.transpose, {"x": X}, {"perm": (1, 0, 2, 3)}),
    (rocmkern.rope, {"x": X, "positions": POSITIONS}, {"theta": 1e6}),
    (rocmkern.rope, {"x": X, "positions": POSITIONS}, {"rope_scaling": {"rope_type": "default"}}),
    (rocmkern.rope, {"x": X, "positions": POSITIONS}, {"is_neox_style": False}),
    (rocmkern.rope, {"x": X, "positions": POSITIONS}, {"rot_dim": 4}),
    (rocmkern.sample, {"logits": X[0, 0], "seed": 0}, {"do_sample": False}),
    (rocmkern.sample, {"logits": X[0, 0], "seed": 0}, {"topk": 5}),
    (rocmkern.matmul, {"a": X, "b": X}, {"trans_b": True}),
    (rocmkern.linear, {"x": X, "weight": X[0, 0]}, {"act_fn": "silu"}),
    (rocmkern.quantize, {"x": np.ones((2, 32), np.float32)}, {"qtype": "q4_0"}),
]


@pytest.mark.parametrize(
    ("operation", "arguments", "keyword"), KEYWORDS, ids=lambda x: "-".join(x) if isinstance(x, dict) else ""
)
def test_the_keyword_that_is_proposed_is_taken(operation, arguments, keyword):
    name, allowed = remedy(operation, **arguments, **keyword)
    assert name in keyword
    ours, _, rest = allowed.partition("=")
    operation(**arguments, **{ours: value_of(rest, keyword)})


@pytest.mark.parametrize(
    ("operation", "arguments", "keyword"),
    [
        (rocmkern.flash_attention, ATTENTION, {"dropout_p": 0.0}),
        (rocmkern.flash_attention, ATTENTION, {"enable_gqa": True}),
        (rocmkern.softmax, {"x": X}, {"dim": -1}),
        (rocmkern.layer_norm, {"x": X}, {"normalized_shape": (8,)}),
        (rocmkern.rms_norm, {"x": X, "weight": X[0, 0, 0]}, {"dtype": "float32"}),
    ],
)
def test_the_same_call_without_it_is_taken(operation, arguments, keyword):
    assert "the same call without it" in remedy(operation, **arguments, **keyword)[1]
    operation(**arguments)


def test_the_softmax_of_another_axis():
    words = remedy(rocmkern.softmax, x=X, axis=1)[1]
    view = value_of(words.partition("so a view: ")[2], {"x": X})
    np.testing.assert_allclose(rocmkern.softmax(view).swapaxes(1, -1), np.full(X.shape, 0.25), rtol=1e-6)


def test_a_product_of_a_transposed_left_side():
    a, b = X[0, 0], X[0, 1]
    view = value_of(remedy(rocmkern.matmul, a=a, b=b, transpose_a=True)[1], {"a": a})
    assert rocmkern.matmul(view, b).shape == (8, 8)


# An expression in the place of an argument

MASKED = {"q": X, "k": X, "v": X}


@pytest.mark.parametrize(
    "mask",
    [np.ones((2, 1, 3, 3), np.int32), np.ones((2, 3), bool), np.ones((2, 3, 3), bool), np.ones((3, 3), np.uint8)],
)
def test_the_mask_that_is_proposed_is_taken(mask):
    name, allowed = remedy(rocmkern.flash_attention, **MASKED, mask=mask)
    proposed = re.search(r"mask(\.|\[).*", allowed)
    assert name == "mask" and proposed
    mask = value_of(proposed[0], {"mask": mask})
    assert rocmkern.flash_attention(**MASKED, mask=mask).shape == X.shape


def test_a_padding_mask_of_integers_takes_both_remedies():
    mask = np.ones((2, 3), np.int64)
    for _ in range(2):
        words = remedy(rocmkern.flash_attention, **MASKED, mask=mask)[1]
        mask = value_of(re.search(r"mask(\.|\[).*", words)[0], {"mask": mask})
    assert rocmkern.flash_attention(**MASKED, mask=mask).shape == X.shape


def test_a_head_of_odd_size_is_rotated_in_part_or_not_at_all():
    x = np.ones((4, 2, 7), np.float32)
    assert "rotary_dim=" in remedy(rocmkern.rope, x=x, positions=POSITIONS)[1]
    np.testing.assert_array_equal(rocmkern.rope(x, POSITIONS, rotary_dim=0), x)
    assert rocmkern.rope(x, POSITIONS, rotary_dim=6).shape == x.shape


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["gradient", "lazy sign", "sparse", "quantized", "nested", "zeros", "dual"])
def test_what_is_proposed_of_a_tensor_is_taken(kind):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import torch.autograd.forward_ad as forward_ad

    eye = torch.eye(4)
    make = {
        "gradient": lambda: torch.nn.Linear(4, 4).weight,
        "lazy sign": lambda: torch._neg_view(eye),
        "sparse": lambda: eye.to_sparse(),
        "quantized": lambda: torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(4), torch.ones(3)]),
        "zeros": lambda: torch._efficientzerotensor((4, 4)),
        "dual": lambda: forward_ad.make_dual(eye, eye),
    }[kind]
    with forward_ad.dual_level() if kind == "dual" else nullcontext():
        weight = make()
        out = {"out": torch.empty(2, 4)} if kind == "gradient" else {}
        name, allowed = remedy(rocmkern.linear, x=torch.ones(2, 4), weight=weight, **out)
        start = re.search(r"\S*\bweight\b", allowed.rpartition(" or ")[2] if kind == "gradient" else allowed)
        assert name == "weight" and start, allowed
        names = {"weight": weight, "torch": torch, "forward_ad": forward_ad}
        taken = value_of(allowed[allowed.index(start[0]) :], names)
        assert rocmkern.linear(torch.ones(2, 4), taken).shape[0] == 2


# A line for the shell


def test_every_extra_that_a_line_installs_exists():
    source = Path(rocmkern.__file__).parent
    named = {extra for path in source.rglob("*.py") for extra in re.findall(r"rocmkern\[([a-z]+)\]", path.read_text())}
    assert named and named <= set(metadata("rocmkern").get_all("Provides-Extra"))
