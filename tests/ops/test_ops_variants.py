"""Variants that are chosen for cards only compute the same: they are chosen here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rocmkern
from rocmkern import reference, targets
from rocmkern.ops import streaming
from rocmkern.ops.linear import tuning as linear_tuning
from rocmkern.ops.rotary import tuning as rotary_tuning
from rocmkern.ops.rotary.kernels import rope


@pytest.fixture(params=["python", "cpu"])
def target(request):
    with targets.using(request.param):
        yield targets.current_target()


def drawn(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [4, 16])
@pytest.mark.parametrize("variant", ["half", "interleaved"])
def test_rotations_whose_rows_are_heads(monkeypatch, no_plans, target, variant, rows):
    chosen = []

    def rotation(arch, heads, pairs, interleaved):
        cfg = rope.Config(arch=arch, block_m=rows, block_n=16, rows_are_heads=True, neighbours=interleaved)
        chosen.append((heads, pairs, interleaved))
        return cfg

    monkeypatch.setattr(rotary_tuning, "rotation", rotation)
    x, positions = drawn(2, 5, 7, 40), np.array([3, 0, 99, 7, 2**20], np.int32)
    out = rocmkern.rope(x, positions, variant=variant, rotary_dim=34)
    assert chosen == [(7, 17, variant == "interleaved")]
    expected = reference.rope(x, positions, variant=variant, rotary_dim=34)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    back = rocmkern.rope(out, positions, variant=variant, rotary_dim=34, inverse=True)
    np.testing.assert_allclose(back, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2, 16])
def test_products_with_windows_ahead_and_grouped_blocks(monkeypatch, depth, group):
    with targets.using("python"):
        ordinary = linear_tuning.product

        def product(*arguments):
            return replace(ordinary(*arguments), num_stages=depth, group_m=group)

        monkeypatch.setattr(linear_tuning, "product", product)
        a, b = drawn(70, 50), drawn(50, 45)
        np.testing.assert_allclose(rocmkern.matmul(a, b), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
        turned = rocmkern.linear(a, np.ascontiguousarray(b.T), drawn(45), activation="relu")
        expected = np.maximum(a.astype(np.float64) @ b + drawn(45), 0)
        np.testing.assert_allclose(turned, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("block_m", "block_n"), [(1, 32), (8, 8), (16, 128), (64, 16)])
def test_operations_on_rows_in_blocks_of_any_shape(monkeypatch, no_plans, block_m, block_n):
    """Tiles that end inside of a row, with it, or behind it; 37 rows of 70 columns."""
    ordinary = streaming.rows_config

    def line(config, arch, columns=0, itemsize=2, **features):
        cfg = ordinary(config, arch, columns, itemsize, **features)
        shape = {"block_m": block_m, "block_n": block_n}
        return replace(cfg, **shape, **({"single": columns <= block_n} if hasattr(cfg, "single") else {}))

    monkeypatch.setattr(streaming, "rows_config", line)
    x, y, weight, bias = drawn(37, 70), drawn(37, 70)[::-1], drawn(70), drawn(70)[::-1]
    with targets.using("python"):
        for name, arguments in (
            ("softmax", (x,)), ("add_residual", (x, y)), ("swiglu", (x, y)), ("geglu", (x, y)),
            ("rms_norm", (x, weight)), ("layer_norm", (x, weight, bias)),
        ):  # fmt: skip
            expected = getattr(reference, name)(*arguments)
            np.testing.assert_allclose(
                getattr(rocmkern, name)(*arguments), expected, rtol=1e-5, atol=1e-5, err_msg=name
            )
