"""Angles and rotations: exact at every position, and no change at angle 0."""

from __future__ import annotations

import numpy as np
import pytest
from tile_kernels import Config, rotating

pytestmark = pytest.mark.tiles(widest=(1, 8, 32), others=(2, 16))

N = 32
POSITIONS = [0, 1, 255, 257, 4095, 15962, 131071, 2**31 - 1, -1, -131071]


def run(launch, arch, m, position, turns, x=None, y=None, col0=0):
    position = np.asarray(position)
    shape = len(position), N
    x, y = (np.ones(shape, np.float32) if a is None else a for a in (x, y))
    cos, sin = (np.full(shape, 99, np.float32) for _ in range(2))
    out, read = np.full((2, *shape), 99, np.float32), np.full(len(position), 99, np.float32)
    cfg = Config(arch=arch, m=m, n=N)
    launch(rotating, cfg, (-(-len(position) // m), 1, 1), x, y, position, turns, cos, sin, out, read, col0)
    return cos, sin, out, read


def exact_angles(position, turns, col0=0):
    """Angles in radians, reduced in Python's integers."""
    turns = [int(t) for t in turns[col0 : col0 + N]] + [0] * max(0, N - len(turns[col0:]))
    return np.array([[(int(p) * t % 2**64) * (2 * np.pi / 2**64) for t in turns] for p in position])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("col0", [0, 5, 40])
def test_cosine_and_sine_are_exact_at_every_position(launch, arch, m, dtype, col0):
    turns = np.random.default_rng(0).integers(-(2**63), 2**63, 40)
    position = np.array(POSITIONS, dtype)
    cos, sin, out, read = run(launch, arch, m, position, turns, col0=col0)
    angle = exact_angles(position, turns, col0)
    assert abs(cos - np.cos(angle)).max() < 2e-7 and abs(sin - np.sin(angle)).max() < 2e-7
    np.testing.assert_allclose(out[0], np.cos(angle) - np.sin(angle), atol=5e-7)
    np.testing.assert_allclose(out[1], np.cos(angle) + np.sin(angle), atol=5e-7)
    np.testing.assert_array_equal(read, position % 4099)


def test_eighths_of_a_turn(launch, arch, m):
    turns = (np.arange(-16, 16, dtype=np.int64) * 2**59).astype(np.int64)
    cos, sin, _, _ = run(launch, arch, m, np.array([1, 2, 4], np.int32), turns)
    angle = exact_angles([1, 2, 4], turns)
    assert abs(cos - np.cos(angle)).max() < 1e-7 and abs(sin - np.sin(angle)).max() < 1e-7
    assert (sin[0, 16], cos[0, 16], cos[2, 20]) == (0, 1, -1)


def test_no_angle_changes_no_bit(launch, arch, m):
    special = np.float32([0.0, -0.0, 1e-40, np.inf, -np.inf, np.nan, 3.5, -1.25])
    x, y = (np.resize(np.roll(special, shift), (1, N)) for shift in (0, 3))
    turns = np.full(N, 12345678901234567, np.int64)
    _, _, out, _ = run(launch, arch, m, np.zeros(1, np.int32), turns, x, y)
    np.testing.assert_array_equal(out[0].view(np.uint32), x.view(np.uint32))
    np.testing.assert_array_equal(out[1].view(np.uint32), y.view(np.uint32))


def test_wide_integers_become_the_nearest_that_fit(launch, arch, m):
    position = np.array([2**40, -(2**40), 7], np.int64)
    turns = np.full(N, 3, np.int64)
    read = run(launch, arch, m, position, turns)[3]
    np.testing.assert_array_equal(read, np.array([2**31 - 1, -(2**31), 7]) % 4099)
