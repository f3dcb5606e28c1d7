"""``out=`` of operations with several results: one rule for all of them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import rocmkern
from rocmkern import targets
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

A = np.ones((2, 4), np.float32)
SQUARE = np.ones((4, 4), np.float32)
ROW = np.ones(4, np.float32)
LABELS = np.zeros(2, np.int64)
HEADS = np.ones((1, 1, 2, 4), np.float32)
LSE = np.zeros((1, 1, 2), np.float32)
BLOCKS = np.zeros((4, 34), np.uint8)

CALLS = {
    "decode_attention": {"q": HEADS, "k": HEADS, "v": HEADS, "return_lse": True},
    "flash_attention": {"q": HEADS, "k": HEADS, "v": HEADS, "return_lse": True},
    "flash_attention_backward": {"dout": HEADS, "q": HEADS, "k": HEADS, "v": HEADS, "o": HEADS, "lse": LSE},
    "geglu_backward": {"dout": A, "gate": A, "up": A},
    "layer_norm_backward": {"dout": A, "x": A, "weight": ROW, "bias": ROW},
    "linear_backward": {"dout": A, "x": A, "weight": SQUARE},
    "linear_cross_entropy": {"x": A, "weight": SQUARE, "target": LABELS},
    "linear_cross_entropy_backward": {
        "dloss": np.ones((), np.float32), "x": A, "weight": SQUARE, "target": LABELS, "lse": A[:, 0],
    },
    "matmul_backward": {"dout": A, "a": A, "b": SQUARE},
    "merge_attention": {"o1": HEADS, "lse1": LSE, "o2": HEADS, "lse2": LSE},
    "mlp_backward": {"dout": A, "x": A, "w_gate": SQUARE, "w_up": SQUARE, "w_down": SQUARE},
    "paged_attention": {
        "q": HEADS[0], "key_cache": HEADS, "value_cache": HEADS, "block_table": np.zeros((1, 1), np.int32),
        "context_lens": np.ones(1, np.int32), "return_lse": True,
    },
    "quantized_linear_backward": {
        "dout": np.ones((2, 4), np.float32), "x": np.ones((2, 32), np.float32), "blocks": BLOCKS, "format": "q8_0",
        "bias": ROW,
    },
    "rms_norm": {"x": A, "weight": ROW, "residual": A},
    "rms_norm_backward": {"dout": A, "x": A, "weight": ROW},
    "swiglu_backward": {"dout": A, "gate": A, "up": A},
}  # fmt: skip
#: One array may stand for the result alone, without the log-sum-exp.
ONE_IS_ENOUGH = {"decode_attention", "flash_attention", "merge_attention", "paged_attention"}


@pytest.fixture(autouse=True)
def interpreted():
    with targets.using("python"):
        yield


def results(name, **more):
    return getattr(rocmkern, name)(**CALLS[name], **more)


def test_every_operation_with_several_results_is_here():
    several = set()
    for name in rocmkern.__all__:
        operation = inspect.unwrap(getattr(rocmkern, name))
        if inspect.isfunction(operation):
            out = inspect.signature(operation).parameters.get("out")
            several |= {name} if out is not None and "tuple" in str(out.annotation) else set()
    assert set(CALLS) == several


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("name", CALLS)
def test_tuples_and_lists(name, kind):
    wanted = results(name)
    out = kind(np.full_like(x, np.nan) for x in wanted)
    found = results(name, out=out)
    for given, here, exact in zip(out, found, wanted, strict=True):
        assert here is given
        assert np.array_equal(here, exact)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_wrong_is_named(name):
    out = [np.full_like(x, np.nan) for x in results(name)]
    for wrong in ([*out, out[-1]], out[:-1]):
        with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
            results(name, out=wrong)
        assert caught.value.argument == "out"
    if name not in ONE_IS_ENOUGH:
        with pytest.raises(ArgumentTypeError) as caught:
            results(name, out=out[0])
        assert caught.value.argument == "out"
    for place, x in enumerate(out):
        others = [np.empty((*x.shape, 2), x.dtype) if n == place else each for n, each in enumerate(out)]
        with pytest.raises(ArgumentError) as caught:
            results(name, out=others)
        assert caught.value.argument == f"out[{place}]"
