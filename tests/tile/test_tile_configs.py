"""A configuration that is an attribute of another one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from rocmkern import TileError
from rocmkern import tile as T


@dataclass(frozen=True)
class Inner(T.Config):
    """``block_m`` rows, each of them ``scale`` times its number."""

    block_m: int = 2
    scale: int = 3
    counts: bool = True

    @property
    def both(self) -> int:
        return self.block_m * self.scale


@dataclass(frozen=True)
class Middle(T.Config):
    block_m: int = 5
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class Outer(T.Config):
    block_m: int = 7
    inner: Inner = field(default_factory=Inner)
    middle: Middle = field(default_factory=Middle)


@T.device
def numbers(cfg):
    """Of a block's rows, as the configuration that is given says."""
    row = T.row_index(cfg, cfg.block_m) + T.block_id(cfg, 0) * cfg.block_m
    if cfg.counts:
        return row * cfg.scale
    return row * 0 - cfg.both


@T.kernel
def configured(cfg, out: T.InOut[2]):
    row = T.row_index(cfg.inner, cfg.inner.block_m) + T.block_id(cfg.inner, 0) * cfg.inner.block_m
    T.store_rows(out[0], (row,), numbers(cfg.inner), row < out.shape[1])
    row = T.row_index(cfg, cfg.middle.inner.block_m) + T.block_id(cfg, 0) * cfg.middle.inner.block_m
    T.store_rows(out[1], (row,), numbers(cfg.middle.inner), row < out.shape[1])
    row = T.row_index(cfg, cfg.middle.block_m)
    T.store_rows(out[2], (row,), row + cfg.block_m, row >= 0)


@pytest.mark.parametrize("block_m", [2, 4])
def test_each_configuration_has_its_own_attributes(launch, arch, block_m):
    inner = Inner(arch=arch, block_m=block_m)
    other = Middle(arch=arch, inner=Inner(arch=arch, block_m=3, scale=5, counts=False))
    out = np.full((3, 12), 99, np.int32)
    launch(configured, Outer(arch=arch, inner=inner, middle=other), (3, 1, 1), out)
    n = np.arange(12)
    np.testing.assert_array_equal(out[0], np.where(n < 3 * block_m, 3 * n, 99))
    np.testing.assert_array_equal(out[1], np.where(n < 9, -15, 99))
    np.testing.assert_array_equal(out[2], np.where(n < 5, n + 7, 99))


@T.kernel
def without_the_attribute(cfg, out: T.InOut[2]):
    T.row_index(cfg, cfg.inner.middle.block_m)


def test_an_attribute_that_the_inner_one_lacks_is_named(launch, arch):
    if arch == "python":
        pytest.skip("what types say")
    with pytest.raises(TileError, match=r"cfg has no attribute 'middle'; it has: arch, .*, block_m, scale, counts"):
        launch(without_the_attribute, Outer(arch=arch), (1, 1, 1), np.zeros((3, 12), np.int32))
