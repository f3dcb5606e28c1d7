"""Slopes of activations have all their digits, where they are nearly 0 too: beside float64, over their whole range."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import rocmkern
from rocmkern import targets
from rocmkern.ops.activations.backward.reference import gelu_slope, silu_slope

#: Beyond these arguments slopes are smaller than what float32 has all digits of; the last place where they are 0.
SLOPES = {
    "silu": (silu_slope, -84.0, -1.278),
    "gelu": (gelu_slope, -12.8, -0.7518),
    "gelu_tanh": (functools.partial(gelu_slope, approximate="tanh"), -9.4, -0.7524),
}
#: Measured on Python's and CPUs' kernels: 6e-7. The old formulas were off by 3e-2 (gelu), 1.4e-5 (tanh), 4e-6 (silu).
BOUND = 1.5e-6
X = np.unique(np.concatenate([-np.geomspace(1e-6, 90, 5000), np.geomspace(1e-6, 90, 500), [0.0]]).astype(np.float32))


def of_gates(name):
    ones = np.ones_like(X)
    if name == "silu":
        return rocmkern.swiglu_backward(ones, X, ones)[0]
    return rocmkern.geglu_backward(ones, X, ones, approximate="tanh" if name == "gelu_tanh" else "none")[0]


def of_products(name):
    one = np.ones((1, 1), np.float32)
    return rocmkern.linear_backward(
        np.ones((len(X), 1), np.float32), X[:, None], one, activation=name, needs=("x",)
    ).ravel()


def of_gated_mlps(name):
    """The gradient of the gate's weights, each of which has an x of its own."""
    ones = np.ones((len(X), 1), np.float32)
    found = rocmkern.mlp_backward(
        np.ones((1, 1), np.float32), ones[:1], X[:, None], ones, ones.T, activation=name, needs=("w_gate",)
    )
    return found.ravel()


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("way", [of_gates, of_products, of_gated_mlps])
def test_digits_of_slopes(way, name, target):
    slope, far, zero = SLOPES[name]
    with targets.using(target):
        found = way(name).astype(np.float64)
    exact = slope(X.astype(np.float64))
    off = np.abs(found - exact)
    counts = (far < X) & (np.abs(X - zero) > 0.2)
    assert (off[counts] <= BOUND * np.abs(exact[counts])).all()
    assert (off <= BOUND).all()
