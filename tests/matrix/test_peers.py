"""Peers of benchmark rows: they do the same work, or say why they do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rocmkern.matrix import PeerUnavailable, find_case, make_call

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
