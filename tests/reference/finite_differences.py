"""Gradients by differences of a function in float64: what the references of gradients are held against."""

from __future__ import annotations

import numpy as np

STEP = 1e-5


def gradient(function, x, dout):
    """Gradient of ``sum(dout * function(x))`` for x, by central differences."""
    found = np.empty(x.shape)
    for place in np.ndindex(x.shape):
        ends = []
        for step in (STEP, -STEP):
            moved = x.copy()
            moved[place] += step
            ends.append(float((dout * function(moved)).sum()))
        found[place] = (ends[0] - ends[1]) / (2 * STEP)
    return found


def agree(gradients, function, inputs, dout):
    """Assert that these are the gradients of ``function(*inputs)`` for each of the inputs."""
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    for number, (given, x) in enumerate(zip(gradients, inputs, strict=True)):
        others = list(inputs)

        def of_one(moved, number=number, others=others):
            return function(*others[:number], moved, *others[number + 1 :])

        np.testing.assert_allclose(given, gradient(of_one, x, dout), rtol=1e-6, atol=1e-8)
