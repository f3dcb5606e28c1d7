"""PyTorch's tensors in host memory: planned as NumPy arrays are, with results from PyTorch's own memory."""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern.calls import results as _results
from rocmkern.calls.replay import HostPlan
from rocmkern.runtime.errors import ArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.usefixtures("no_plans")


@pytest.fixture(autouse=True)
def cpu():
    with rocmkern.use("cpu"), torch.no_grad():
        yield


def plans_of(operation):
    return list(operation.plans._young.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_call_is_planned_and_its_result_is_pytorchs(dtype):
    weight = torch.nn.Parameter(torch.randn(64, dtype=torch.float64).to(dtype))
    for seed in range(3):
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(seed)).to(dtype)
        result = rocmkern.rms_norm(x, weight, 1e-5)
        assert type(result) is torch.Tensor and result.dtype == dtype
        assert result.untyped_storage().resizable()  # not so of memory that was handed over
        exact = torch.nn.functional.rms_norm(x.double(), (64,), weight.double(), 1e-5)
        torch.testing.assert_close(result, exact.to(dtype))
    (plan,) = plans_of(rocmkern.rms_norm)
    assert isinstance(plan, HostPlan)
    with torch.enable_grad():
        assert rocmkern.rms_norm(x, weight).requires_grad
        with pytest.raises(ArgumentError, match="requires a gradient"):
            rocmkern.rms_norm(x, weight, out=result)


def test_attention_is_that_of_pytorch():
    for _ in range(3):
        q, k, v = torch.randn(3, 2, 4, 20, 16).unbind()
        exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(rocmkern.flash_attention(q, k, v, causal=True), exact)
    (plan,) = plans_of(rocmkern.flash_attention)
    assert isinstance(plan, HostPlan)


def test_numpy_arrays_of_the_same_layout_have_a_plan_of_their_own():
    x = torch.randn(3, 8)
    for _ in range(3):
        assert type(rocmkern.scale(x, 2.0)) is torch.Tensor
        assert type(rocmkern.scale(x.numpy(), 2.0)) is np.ndarray
    assert len(plans_of(rocmkern.scale)) == 2


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_values_are_asked_for_again(dtype):
    table = torch.randn(7, 8)
    for numbers in ([0, 6], [5, 5], [1, 2]):
        indices = torch.tensor(numbers, dtype=dtype)
        assert torch.equal(rocmkern.embedding(table, indices), table[indices])
    (plan,) = plans_of(rocmkern.embedding)
    assert isinstance(plan, HostPlan)
    with pytest.raises(ArgumentError, match="indices: got 7 at index"):
        rocmkern.embedding(table, torch.tensor([0, 7], dtype=dtype))


def test_half_precision_numbers_are_widened_again():
    q = torch.randn(1, 2, 4, 16)
    for sink in (0.0, 1.0, -1.0):
        sinks = torch.full((2,), sink, dtype=torch.bfloat16)
        _, lse = rocmkern.flash_attention(q, q, q, sinks=sinks, return_lse=True)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, q) / 4
        exact = torch.logsumexp(torch.cat([scores, torch.full((1, 2, 4, 1), sink)], -1), -1)
        torch.testing.assert_close(lse, exact)
    (plan,) = plans_of(rocmkern.flash_attention)
    assert isinstance(plan, HostPlan)


def test_a_mixture_goes_the_ordinary_way():
    x, weight = torch.randn(3, 8), np.ones(8, np.float32)
    for _ in range(2):
        result = rocmkern.rms_norm(x, weight)
        torch.testing.assert_close(result, torch.nn.functional.rms_norm(x, (8,), eps=1e-6))
        assert type(rocmkern.rms_norm(x.numpy(), torch.ones(8))) is np.ndarray
    assert not plans_of(rocmkern.rms_norm)


def test_out_and_views_of_it():
    x, memory = torch.randn(4, 6), torch.zeros(8, 6)
    for _ in range(2):
        out = memory[::2]
        assert rocmkern.scale(x, 2.0, out=out) is out
        assert torch.equal(memory[::2], 2 * x) and not memory[1::2].any()
    with pytest.raises(ArgumentError, match="overlaps with x"):
        rocmkern.scale(memory[:3], 2.0, out=memory[1:4])


def test_a_result_that_no_memory_holds_is_refused_by_name():
    with pytest.raises(ArgumentError, match=r"out: .*less than 2 \*\* 63 bytes"):
        rocmkern.repeat_kv(torch.ones(1, 1, 1, 8), 2**60)


def test_new_results_are_poisoned_under_test():
    like = torch.empty(2)
    for dtype in (np.float32, np.float16):
        with _results.poison_outputs():
            assert _results.new_tensor((3, 2), np.dtype(dtype), like).isnan().all()
