"""PyTorch learns of what an operation writes, as it does of its own in-place operations."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import rocmkern  # noqa: E402
import rocmkern.torch  # noqa: E402
from rocmkern.runtime.errors import ArgumentError  # noqa: E402


def by_operator(x, weight, out):
    torch.ops.rocmkern.linear.out(x, weight, out=out)


WAYS = {"public": lambda x, weight, out: rocmkern.linear(x, weight, out=out), "operator": by_operator}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("times", [1, 3])
def test_a_gradient_that_needs_what_was_overwritten_is_an_error(way, times):
    a = torch.randn(2, 8, requires_grad=True)
    y = a.sin()
    total = (y * y).sum()
    x, weight, kept = torch.randn(2, 16), torch.randn(8, 16), y.detach()
    for _ in range(times):  # with and without a plan
        way(x, weight, kept)
    assert kept._version >= times
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_what_is_only_read_keeps_its_version():
    x, weight = torch.randn(2, 16), torch.randn(8, 16)
    for _ in range(3):
        rocmkern.linear(x, weight)
    assert x._version == weight._version == 0


def test_caches_that_are_appended_to_are_written():
    k, v, zero = torch.randn(1, 2, 8), torch.randn(1, 2, 8), torch.zeros(1, dtype=torch.int32)
    caches = torch.zeros(2, 4, 2, 8), torch.zeros(2, 4, 2, 8)
    for _ in range(2):
        rocmkern.rope_append_kv(k, v, zero, *caches, zero)
    assert min(cache._version for cache in caches) >= 2


def test_a_tensor_of_inference_mode_is_written_in_it_only():
    with torch.inference_mode():
        out = torch.empty(2, 8)
        rocmkern.linear(torch.randn(2, 16), torch.randn(8, 16), out=out)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="inference mode") as caught:
            rocmkern.linear(torch.randn(2, 16), torch.randn(8, 16), out=out)
        assert caught.value.argument == "out"
