"""Autocast of the operators: PyTorch's own rules for its operations of the same kind."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional as F  # noqa: E402

import rocmkern  # noqa: E402
from rocmkern import targets  # noqa: E402
from rocmkern.torch import autocast  # noqa: E402
from rocmkern.torch.operators import OPERATORS  # noqa: E402

X, W = torch.randn(2, 4), torch.randn(4, 4)
Q = torch.randn(1, 2, 4, 4)
PAIRS = {
    "linear": (lambda x: rocmkern.linear(x, W.to(x.dtype)), lambda x: F.linear(x, W.to(x.dtype))),
    "matmul": (lambda x: rocmkern.matmul(x, W.to(x.dtype)), lambda x: x @ W.to(x.dtype)),
    "flash_attention": (
        lambda x: rocmkern.flash_attention(*(Q.to(x.dtype) * x[0],) * 3),
        lambda x: F.scaled_dot_product_attention(*(Q.to(x.dtype) * x[0],) * 3),
    ),
    "layer_norm": (rocmkern.layer_norm, lambda x: F.layer_norm(x, (4,))),
    "rms_norm": (lambda x: rocmkern.rms_norm(x, W[0]), lambda x: F.rms_norm(x, (4,), W[0])),
    "softmax": (rocmkern.softmax, lambda x: torch.softmax(x, -1)),
    "swiglu": (lambda x: rocmkern.swiglu(x, x), lambda x: F.silu(x) * x),
    "add_residual": (lambda x: rocmkern.add_residual(x, x), lambda x: x + x),
    "embedding": (lambda x: rocmkern.embedding(x, torch.tensor([1])), lambda x: F.embedding(torch.tensor([1]), x)),
}


@pytest.fixture(autouse=True)
def interpreted():
    with targets.using("python"):
        yield


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PAIRS)
def test_on_the_cpu_as_pytorch(name, wanted, given):
    ours, theirs = PAIRS[name]
    with torch.autocast("cpu", wanted):
        got, exact = ours(X.to(given)), theirs(X.to(given))
    if name == "rms_norm":  # theirs has no fused kernel for mixed dtypes on the CPU: its result is promoted
        assert got.dtype == given
    else:
        assert got.dtype == exact.dtype
    torch.testing.assert_close(got.float(), exact.float(), rtol=2e-2, atol=2e-2)


def test_the_operator_computes_in_autocasts_dtype():
    x, weight = torch.randn(3, 64), torch.randn(5, 64)
    with torch.autocast("cpu", torch.bfloat16):
        got = rocmkern.linear(x, weight, torch.ones(5))
        assert torch.equal(got, torch.ops.rocmkern.linear(x, weight, torch.ones(5)))
    assert torch.equal(got, rocmkern.linear(x.bfloat16(), weight.bfloat16(), torch.ones(5)))


def test_what_is_written_to_out_is_not_cast():
    out = torch.empty(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert rocmkern.linear(X, W, out=out) is out
    torch.testing.assert_close(out, X @ W.T)


def test_numpy_is_not_cast():
    with torch.autocast("cpu", torch.bfloat16):
        assert rocmkern.linear(X.numpy(), W.numpy()).dtype == "float32"


@pytest.mark.parametrize("name", ["linear", "matmul", "flash_attention", "rms_norm", "layer_norm", "softmax", "swiglu"])
def test_gradients_are_of_the_dtypes_of_their_arguments(name):
    """Inside of autocast, and after it."""
    ours, theirs = PAIRS[name]
    for inside in (True, False):
        found = []
        for function in (ours, theirs):
            x = X.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                out = function(x)
                if inside:
                    out.float().square().sum().backward()
            if not inside:
                out.float().square().sum().backward()
            assert x.grad.dtype == torch.float32
            found.append(x.grad)
        torch.testing.assert_close(*found, rtol=3e-2, atol=3e-2)


MIXED = {
    "add_residual": (rocmkern.add_residual, lambda x, y: x + y),
    "swiglu": (rocmkern.swiglu, lambda x, y: F.silu(x) * y),
    "geglu": (rocmkern.geglu, lambda x, y: F.gelu(x, approximate="tanh") * y),
    "rms_norm": (lambda x, y: rocmkern.rms_norm(x, W[0], residual=y)[1], lambda x, y: x + y),
}


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.float16, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("name", MIXED)
def test_sums_of_two_dtypes_are_of_the_widest(name, dtypes):
    """As where a stream of residuals is float32, and what is added comes from a product."""
    ours, theirs = MIXED[name]
    for first, second in (dtypes, dtypes[::-1]):
        found = []
        for function in (ours, theirs):
            x, y = X.to(first, copy=True).requires_grad_(), X.flip(0).to(second, copy=True).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                out = function(x, y)
            assert out.dtype == torch.float32
            out.square().sum().backward()
            assert (x.grad.dtype, y.grad.dtype) == (first, second)
            found += [out, x.grad.float(), y.grad.float()]
        for got, exact in zip(found[:3], found[3:], strict=True):
            torch.testing.assert_close(got, exact, rtol=2e-2, atol=2e-2)


def test_the_last_layer_and_the_loss_in_one():
    h, head, labels = torch.randn(5, 8), torch.randn(11, 8), torch.arange(5)
    with torch.autocast("cpu", torch.bfloat16):
        h = rocmkern.linear(h, torch.randn(8, 8))
        loss = rocmkern.linear_cross_entropy(h, head, labels)[0]
        exact = F.cross_entropy(F.linear(h, head), labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact.float(), rtol=2e-2, atol=2e-2)


def test_numbers_of_numpy_change_nothing():
    with torch.autocast("cpu", torch.bfloat16):
        assert rocmkern.flash_attention(Q, Q, Q, scale=np.float32(0.3)).dtype == torch.bfloat16
        assert rocmkern.linear(X, W, np.zeros(4, np.float32)).dtype == torch.bfloat16


def test_inside_a_graph_as_outside():
    def layer(x):
        with torch.autocast("cpu", torch.bfloat16):
            return rocmkern.linear(rocmkern.softmax(x), W)

    got = torch.compile(layer, backend="aot_eager", fullgraph=True)(X)
    assert got.dtype == torch.bfloat16 and torch.equal(got, layer(X))


def test_rules_for_gpus_as_pytorch():
    """Of those without a card: that there are kernels for the key of CUDA and ROCm, by PyTorch's lists."""

    def has(name, key):
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)

    assert has("aten::layer_norm", "AutocastCUDA") and not has("aten::layer_norm", "AutocastCPU")
    pairs = {
        "linear": "linear", "matmul": "matmul", "flash_attention": "scaled_dot_product_attention",
        "layer_norm": "layer_norm", "rms_norm": "rms_norm", "softmax": "softmax.int", "swiglu": "silu",
        "add_residual": "add.Tensor", "embedding": "embedding", "transpose": "permute", "clamp": "clamp",
    }  # fmt: skip
    for ours, theirs in pairs.items():
        for key in ("AutocastCPU", "AutocastCUDA"):
            # What PyTorch promotes by itself has no kernel for it.
            expected = ours in autocast.WIDEST or has(f"aten::{theirs}", key)
            assert has(f"rocmkern::{ours}", key) == expected, (ours, key)


def test_every_argument_that_is_cast_is_one():
    of_float32 = {name: arguments for name, (_, arguments) in autocast.FLOAT32.items()}
    for name, arguments in [*autocast.LOWER.items(), *of_float32.items(), *autocast.WIDEST.items()]:
        assert set(arguments) <= {p.name for p in OPERATORS[name].parameters}
