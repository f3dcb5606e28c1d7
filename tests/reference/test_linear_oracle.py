"""The float64 products and the MLP against NumPy, hand-computed cases and PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rocmkern import reference


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_matmul_is_numpys():
    a, b = normal(2, 1, 3, 5), normal(4, 5, 6, seed=1)
    assert np.allclose(reference.matmul(a, b), np.einsum("xyij,yjk->xyik", np.repeat(a, 4, 1), b), atol=1e-13)
    assert np.array_equal(reference.matmul(a, b.swapaxes(1, 2), transpose_b=True), reference.matmul(a, b))
    assert reference.matmul(a[0, 0, 0], b[0, :, 0]).shape == ()


def test_activations_by_hand():
    x, one = np.array([[-1.0, 0.0, 2.0]]), np.eye(3)
    expected = {
        None: [-1, 0, 2],
        "relu": [0, 0, 2],
        "silu": [-1 / (1 + math.e), 0, 2 / (1 + math.exp(-2))],
        "gelu": [-(1 - math.erf(math.sqrt(0.5))) / 2, 0, 1 + math.erf(math.sqrt(2))],
        "gelu_tanh": [v / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in (-1, 0, 2)],
    }
    for name, values in expected.items():
        assert np.allclose(reference.linear(x, one, activation=name), values, atol=1e-14), name


def test_the_gate_is_activated_and_not_the_up_projection():
    x, gate, up, down = (np.array([[v]]) for v in (1.0, -3.0, 5.0, 2.0))
    assert reference.mlp(x, gate, up, down, activation="relu").item() == 0
    assert reference.mlp(x, up, gate, down, activation="relu").item() == 5 * -3 * 2
    assert reference.mlp(x, None, up, down, activation="relu", b_up=np.array([1.0]), b_down=np.array([7.0])) == 19


@pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh", "relu"])
def test_equal_to_torch(activation):
    torch = pytest.importorskip("torch", reason="PyTorch, the outside oracle, is not installed")
    functional = torch.nn.functional
    act = {
        None: lambda v: v,
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda v: functional.gelu(v, approximate="tanh"),
        "relu": functional.relu,
    }[activation]
    arrays = {
        "x": normal(2, 3, 5), "w_gate": normal(7, 5, seed=1), "w_up": normal(7, 5, seed=2),
        "w_down": normal(4, 7, seed=3), "b_gate": normal(7, seed=4), "b_up": normal(7, seed=5),
        "b_down": normal(4, seed=6),
    }  # fmt: skip
    t = {name: torch.from_numpy(value) for name, value in arrays.items()}
    gate = act(functional.linear(t["x"], t["w_gate"], t["b_gate"]))
    up = functional.linear(t["x"], t["w_up"], t["b_up"])
    expected = functional.linear(gate * up, t["w_down"], t["b_down"])
    assert np.allclose(reference.mlp(**arrays, activation=activation), expected.numpy(), atol=1e-12)
    ungated = {name: value for name, value in arrays.items() if name != "b_gate"} | {"w_gate": None}
    expected = functional.linear(act(up), t["w_down"], t["b_down"])
    assert np.allclose(reference.mlp(**ungated, activation=activation), expected.numpy(), atol=1e-12)
    got = reference.linear(arrays["x"], arrays["w_up"], arrays["b_up"], activation)
    assert np.allclose(got, act(up).numpy(), atol=1e-12)
    got = reference.matmul(arrays["x"], arrays["w_up"], transpose_b=True)
    assert np.allclose(got, (t["x"] @ t["w_up"].T).numpy(), atol=1e-12)


def test_small_results_of_gelu_lose_nothing():
    x, one = np.array([[-12.0], [-9.0], [3.0]]), np.ones((1, 1))
    exact = [[v / 2 * math.erfc(-v / math.sqrt(2))] for v in x[:, 0]]
    np.testing.assert_allclose(reference.linear(x, one, activation="gelu"), exact, rtol=1e-14)
    smooth = [[v / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))] for v in x[:, 0]]
    np.testing.assert_allclose(reference.linear(x, one, activation="gelu_tanh"), smooth, rtol=1e-13)
    assert (reference.linear(x, one, activation="gelu")[:2] < 0).all()
