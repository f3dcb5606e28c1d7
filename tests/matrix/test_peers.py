"""Peers of benchmark rows: they do the same work, or say why they do not."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch_in_numpy

from rocmkern.matrix import PeerUnavailable, find_case, load_cases, make_call, peers
from rocmkern.matrix.registry import resolve

MATRIX = Path(__file__).parents[2] / "matrix.yaml"
PLAIN = "plain-b1h2s4d8-f32-causal"


def peer(case, name):
    return case.operation.peer_table[name]


def test_numpy_is_the_baseline_of_the_row():
    pytest.importorskip("torch")
    case = find_case(MATRIX, f"flash_attention-{PLAIN}")
    call = make_call(case)
    ours = peer(case, "numpy").prepare(call, case, "cpu")()
    theirs = peer(case, "torch").prepare(call, case, "cpu")()
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["torch_flash", "torch_math"])
def test_a_backend_alone_computes_what_all_do(name):
    pytest.importorskip("torch")
    case = find_case(MATRIX, f"flash_attention-{PLAIN}")
    call = make_call(case)
    alone, chosen = (peer(case, n).prepare(call, case, "cpu")() for n in (name, "torch"))
    np.testing.assert_allclose(alone.numpy(), chosen.numpy(), rtol=1e-5, atol=1e-6)


def test_a_backend_that_does_not_take_a_row_is_unavailable():
    pytest.importorskip("torch")
    case = find_case(MATRIX, f"flash_attention-{PLAIN}")
    with pytest.raises(PeerUnavailable, match=r"SDPBackend\.CUDNN_ATTENTION does not take this row: "):
        peer(case, "torch_cudnn").prepare(make_call(case), case, "cpu")


def test_peers_of_another_place_are_unavailable():
    pytest.importorskip("torch")
    case = find_case(MATRIX, "softmax-softmax_values-layouts-n3x4x35-f16-transposed")
    call = make_call(case)
    with pytest.raises(PeerUnavailable, match="Triton compiles for GPUs"):
        peer(case, "triton").prepare(call, case, "cpu")
    with pytest.raises(PeerUnavailable, match="NumPy computes on the host"):
        peer(case, "numpy").prepare(call, case, "cuda")


@pytest.fixture
def torch(monkeypatch):
    """PyTorch, or as much of it as peers use."""
    if importlib.util.find_spec("torch") is None:
        for name, module in torch_in_numpy.MODULES.items():
            monkeypatch.setitem(sys.modules, name, module)
    return sys.modules["torch"] if "torch" in sys.modules else importlib.import_module("torch")


@pytest.fixture(scope="module")
def rows():
    """Quick rows in float32 of the operations that have PyTorch as peer."""
    found = defaultdict(list)
    for case in load_cases(MATRIX)[1]:
        plain = (case.category, case.dtype, case.memory, dict(case.facts.inputs)) == ("quick", "f32", "contiguous", {})
        if plain and not case.facts.expect_error and "torch" in case.operation.peer_table:
            found[case.operation.name].append(case)
    return found


def test_pytorch_computes_what_the_reference_does(torch, rows):
    # The one in NumPy has no gradients.
    compared = {name: 0 for name in rows if hasattr(torch, "autograd") or not name.endswith("_backward")}
    for case in (case for cases in rows.values() for case in cases):
        call = make_call(case)
        if not all(array.size for array in call.arguments.values() if isinstance(array, np.ndarray)):
            continue
        try:
            work = peer(case, "torch").prepare(call, case, "cpu")
        except PeerUnavailable:
            continue
        assert case.operation.name in compared
        expected = resolve(case.operation.reference)(**call.arguments)
        expected = expected[0] if isinstance(expected, tuple) else expected
        if case.features.get("layout") == "bshd":
            expected = np.swapaxes(expected, 1, 2)
        with np.errstate(all="ignore"):
            theirs = np.asarray(work())
        # Where nothing is visible, it has no number. Its angles of far positions are those of float32.
        known, far = np.isfinite(theirs), np.abs(call.arguments.get("positions", 0)).max() > 1000
        close = {"rtol": 2e-3, "atol": 0.02 if far else 2e-4, "err_msg": case.id}
        np.testing.assert_allclose(theirs[known], expected[known], **close)
        compared[case.operation.name] += bool(known.mean() > 0.5)
    assert len(compared) >= 12 and min(compared.values()) >= 3


@pytest.mark.parametrize("name", ["softcap", "alibi", "sinks", "bias", "mask"])
def test_pytorch_is_not_asked_for_what_it_does_not_do_here(torch, rows, name):
    case = next(case for case in rows["flash_attention"] if case.features.get(name))
    with pytest.raises(PeerUnavailable, match=f"scaled_dot_product_attention is not asked for (softcap|{name})"):
        peer(case, "torch").prepare(make_call(case), case, "cpu")
    assert sum(not any(case.features.get(n) for n in ("bias", "mask")) for case in rows["flash_attention"]) > 20


def test_a_rotation_that_is_not_plain_has_no_peer(torch, rows):
    for case in rows["rope"]:
        plain = not any(
            case.features[name] for name in ("base", "scaling", "freq_factors", "inverse", "block_positions")
        )
        plain = plain and case.features["variant"] == "half" and case.features["rotary_dim"] is None
        if plain:
            peer(case, "torch").prepare(make_call(case), case, "cpu")
        else:
            with pytest.raises(PeerUnavailable, match="the plain form only"):
                peer(case, "torch").prepare(make_call(case), case, "cpu")


def test_what_is_missing_is_said(torch, rows):
    case = rows["flash_attention"][0]
    call = make_call(case)
    with pytest.raises(PeerUnavailable, match=r"this torch \(.*\) cannot use the device of the target (hip|cuda)"):
        peer(case, "torch").prepare(call, case, "hip")
    if torch is torch_in_numpy.torch:
        with pytest.raises(PeerUnavailable, match=r"this torch \(in NumPy\) has no SDPBackend\.FLASH_ATTENTION"):
            peer(case, "torch_flash").prepare(call, case, "cpu")
        alone, all_of_them = (peer(case, n).prepare(call, case, "cpu")() for n in ("torch_math", "torch"))
        np.testing.assert_array_equal(alone, all_of_them)


@pytest.mark.parametrize(
    ("features", "queries", "keys", "asked"),
    [
        ({}, 4, 4, {"is_causal": False}),
        ({}, 4, 6, None),
        ({"causal": "bottom_right"}, 4, 4, {"is_causal": True}),
        ({"causal": "top_left"}, 4, 6, {"is_causal": True}),
        ({"causal": "bottom_right"}, 4, 6, {"attn_mask": np.tri(4, 6, 2, dtype=bool)}),
        ({"causal": "bottom_right"}, 1, 6, None),
        ({"window": [1, 0]}, 3, 3, {"attn_mask": np.tri(3, 3, dtype=bool) & ~np.tri(3, 3, -2, dtype=bool)}),
        ({"scale": 0.5}, 4, 4, {"is_causal": False, "scale": 0.5}),
    ],
    ids=str,
)
def test_pytorch_is_asked_for_its_fast_paths(torch, monkeypatch, features, queries, keys, asked):
    """A mask only where nothing else says the same."""
    found = []
    functional = torch.nn.functional
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda q, k, v, **options: found.append(options))
    arrays = {"q": np.ones((1, 2, queries, 4), np.float32)}
    arrays |= {name: np.ones((1, 2, keys, 4), np.float32) for name in "kv"}
    usual = {"layout": "bhsd", "scale": None, "window": None, "causal": False}
    case = SimpleNamespace(features=usual | features, dims={"heads": 2, "kv_heads": 2, "seq_q": queries, "seq_k": keys})
    window = features.get("window")
    call = SimpleNamespace(arguments=arrays, options={"window": tuple(window)} if window else {})
    peers.TORCH_SDPA.prepare(call, case, "cpu")()
    assert set(found[0]) == set(asked or {})
    for name, value in (asked or {}).items():
        np.testing.assert_array_equal(np.asarray(found[0][name]), value)
