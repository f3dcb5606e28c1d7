"""Operands: views, overlap, allocation, axes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import axes as _axes
from rocmkern.calls import overlaps as _overlaps
from rocmkern.calls import results as _results
from rocmkern.calls.view import view_of
from rocmkern.ops.attention.problem import Visibility


def test_numpy_views_share_memory():
    x = np.zeros((3, 4), np.float32)
    assert np.shares_memory(_arguments.accept("x", x).view.numpy(), x)
    subclass = x.view(np.memmap)
    operand = _arguments.accept("x", subclass)
    array = operand.view.numpy()
    assert type(array) is np.ndarray and np.shares_memory(array, x) and operand.source is subclass


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_torch_views_share_memory(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.zeros(3, 4, 5, dtype=getattr(torch, name)).permute(2, 0, 1)[:, ::2]
    array = _arguments.accept("x", x).view.numpy()
    assert array.shape == (5, 2, 4) and array.dtype == getattr(ml_dtypes, name, name)
    array[1, 1, 3] = 7
    assert x[1, 1, 3] == 7


def test_a_view_keeps_its_owner_alive():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    array = _arguments.accept("x", torch.full((1000,), 5.0)).view.numpy()
    torch.full((1000,), 9.0)
    assert (array == 5).all()


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_results_of_the_kind_of_the_first_input(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    like = _arguments.accept("x", torch.zeros(1, dtype=getattr(torch, name)))
    result = _results.allocate("out", (2, 3), dtype, like)
    assert isinstance(result.source, torch.Tensor) and result.source.dtype == getattr(torch, name)
    result.view.numpy()[1, 2] = 4
    assert result.source[1, 2] == 4
    assert _results.allocate("out", (2, 0), dtype, like).source.shape == (2, 0)


def test_poison_fills_results_and_ends(monkeypatch):
    monkeypatch.setattr(_results, "_poison", None)
    with _results.poison_outputs():
        with _results.poison_outputs():
            pass
        for dtype in _arguments.FLOATS:
            assert np.isnan(_results.allocate("out", (3,), dtype).view.numpy().astype(np.float32)).all()
    assert not _results._poison


def test_overlap_is_exact_for_interleaved_arrays():
    x = view_of(np.zeros(1000, np.float32))
    assert not _overlaps.overlap(x[::2], x[1::2])
    assert _overlaps.overlap(x[::2], x[::3])
    assert not _overlaps.overlap(x[:500], x[500:]) and _overlaps.overlap(x[:501], x[500:])


def test_overlap_that_is_too_hard_counts():
    # Strides without a common structure: the exact answer takes more work than is allowed.
    x = np.zeros(2_000_000, np.uint8)
    shape = (7, 9, 11, 13, 15)
    a = np.lib.stride_tricks.as_strided(x, shape, (10007, 1009, 5003, 7001, 3001))
    b = np.lib.stride_tricks.as_strided(x[1:], shape, (10009, 1013, 5009, 7013, 3011))
    assert _overlaps.overlap(view_of(a), view_of(b))


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((3, 4), (16, 4), False),
        ((3, 4), (4, 12), False),
        ((3, 4), (-16, 4), False),
        ((3, 4), (12, 4), True),
        ((3, 4), (0, 4), True),
        ((1, 4), (0, 4), False),
        ((3, 0), (0, 0), False),
        ((3, 4), (64, 8), False),
    ],
)
def test_overlap_with_itself(shape, strides, overlaps):
    x = np.lib.stride_tricks.as_strided(np.zeros(100, np.float32)[50:], shape, strides)
    assert _overlaps.overlaps_itself(view_of(x)) is overlaps


def test_four_axes_adds_leading_axes():
    x = np.arange(6.0).reshape(2, 3)
    (views,) = _axes.four_axes(view_of(x), view_of(x.T.reshape(2, 3)))
    assert [v.shape for v in views] == [(1, 1, 2, 3)] * 2


def test_four_axes_joins_axes_of_contiguous_arrays():
    x = np.zeros((2, 3, 4, 5, 6, 7))
    (views,) = _axes.four_axes(view_of(x), row_axes=1)
    assert views[0].size == x.size and views[0].shape[-1] == 7 and np.shares_memory(views[0].numpy(), x)


def test_four_axes_takes_apart_what_cannot_be_joined():
    x = np.zeros((7, 6, 5, 4, 3)).T
    other = np.zeros((3, 4, 5, 6, 7))
    pieces = list(_axes.four_axes(view_of(x), view_of(other), row_axes=1))
    assert len(pieces) == 3
    for a, b in pieces:
        a.numpy()[...] += 1
        b.numpy()[...] += 1
    assert (x == 1).all() and (other == 1).all()


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [
        (False, None, (1 << 30, 1 << 30, True)),
        (True, None, (1 << 30, 0, True)),
        ("bottom_right", (3, 5), (3, 0, True)),
        ("top_left", (3, None), (3, 0, False)),
        (False, (3, 5), (3, 5, True)),
        (False, (1 << 40, 0), (1 << 30, 0, True)),
        (np.True_, None, (1 << 30, 0, True)),
    ],
)
def test_visibility_is_a_window(causal, window, expected):
    seen = Visibility.of(causal, window)
    assert (seen.left, seen.right, seen.bottom_right) == expected
