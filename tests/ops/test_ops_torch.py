"""PyTorch's tensors: which are taken, and which are refused because they are not what lies at their address.

The operators of PyTorch, `rocmkern.torch`, have tests of their own.
"""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import rocmkern
from rocmkern.runtime import dlpack
from rocmkern.runtime.errors import ArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

OPERATIONS = {
    "softmax": lambda x: rocmkern.softmax(x),
    "flash_attention": lambda x: rocmkern.flash_attention(*(x.reshape(1, 1, *x.shape),) * 3),
    "rms_norm": lambda x: rocmkern.rms_norm(x, np_ones(x)),
    "linear": lambda x: rocmkern.linear(np_ones(x)[None], x),
    "out": lambda x: rocmkern.softmax(torch.ones(x.shape), out=x),
    "dlpack": lambda x: dlpack.read_dlpack(x, argument="x"),
}


def np_ones(x):
    return torch.ones(x.shape[-1])


@pytest.fixture(params=OPERATIONS)
def operation(request):
    """Something that takes a matrix of PyTorch."""
    return OPERATIONS[request.param]


# Gradient mode


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_parameters_are_taken_where_gradients_are_off(operation, off):
    parameter = torch.nn.Linear(4, 3).weight
    with off():
        operation(parameter)
        operation(parameter[:2])
    try:
        result = operation(parameter)
    except ArgumentError as error:
        assert re.search(r"requires a gradient.*no_grad.*detach", str(error))
    else:
        assert result.requires_grad  # never detached in silence


def test_a_linear_layer_without_gradients():
    layer, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    with torch.no_grad():
        ours, theirs = rocmkern.linear(x, layer.weight, layer.bias), layer(x)
    assert not ours.requires_grad
    torch.testing.assert_close(ours, theirs)


# Tensors that are not what lies at their address


def refused(call, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        call()
    assert str(caught.value).startswith(f"{caught.value.argument}: got ") and "; allowed: " in str(caught.value)


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - {"dlpack"}))
def test_fake_tensors_have_no_numbers(name):
    from torch._subclasses import FakeTensorMode
    from torch._subclasses.fake_tensor import FakeTensor

    with FakeTensorMode():
        x = torch.randn(3, 4)
        assert isinstance(OPERATIONS[name](x), FakeTensor)
        refused(lambda: OPERATIONS["dlpack"](x), "FakeTensorMode")
    refused(lambda: OPERATIONS["dlpack"](x), "FakeTensor")
    with FakeTensorMode():
        real = rocmkern.softmax(np.zeros((1, 2), np.float32))  # NumPy is not PyTorch's matter
    assert (real == 0.5).all()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("transform", [torch.vmap, torch.func.functionalize])
def test_transforms(transform):
    x = torch.randn(2, 4)
    torch.testing.assert_close(transform(rocmkern.softmax)(x), torch.softmax(x, -1))


@pytest.mark.parametrize("softmax", [rocmkern.softmax, lambda x: torch.ops.rocmkern.softmax(x)])
def test_transforms_that_differentiate(softmax):
    import torch.autograd.forward_ad as forward

    rocmkern.torch  # noqa: B018
    x = torch.randn(2, 4)
    refused(lambda: torch.func.grad(lambda x: softmax(x).sum())(x), "gradient")
    refused(lambda: torch.func.jvp(softmax, (x,), (x,)), "primal")
    with forward.dual_level():
        refused(lambda: softmax(forward.make_dual(x, torch.ones(2, 4))), "primal")
        assert softmax(x).shape == (2, 4)


def test_tracers_do_not_get_a_constant():
    refused(lambda: torch.jit.trace(lambda x: rocmkern.softmax(x) + x, torch.randn(2, 4)), "torch.jit.trace")


def test_wrapper_subclasses_get_the_operator():
    from torch.testing._internal.two_tensor import TwoTensor

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    both = rocmkern.softmax(TwoTensor(x, y))
    torch.testing.assert_close(both.a, torch.softmax(x, -1))
    torch.testing.assert_close(both.b, torch.softmax(y, -1))


def test_subclasses_with_elements_of_their_own_are_taken(operation):
    class Named(torch.Tensor):
        pass

    operation(torch.randn(3, 4).as_subclass(Named))


def test_subclasses_are_not_asked_for_a_result():
    class Only(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            assert "empty" not in func.__name__
            return super().__torch_function__(func, types, args, kwargs or {})

    for _ in range(2):
        assert type(rocmkern.softmax(torch.randn(3, 4).as_subclass(Only))) is torch.Tensor


def given_back(x):
    x.untyped_storage().resize_(0)
    return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: x.to_sparse(), "to_dense"),
        (lambda x: x.to_sparse_csr(), "to_dense"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "dequantize"),
        (lambda x: torch.nested.nested_tensor([x, x]), "padded"),
        (lambda x: x.to("meta"), "meta"),
        (lambda x: torch._neg_view(x), "resolve_neg"),
        (lambda x: torch.complex(x, x).conj().imag, "resolve_neg"),
        (lambda x: torch._efficientzerotensor(x.shape), "clone"),
        (given_back, "with memory"),
        (lambda x: torch.nn.LazyLinear(3).weight, "initialized"),
    ],
)
def test_other_memory(make, words):
    with torch.no_grad():
        x = make(torch.eye(4))
        refused(lambda: rocmkern.softmax(x), words)
        refused(lambda: rocmkern.linear(torch.ones(2, 4), x), words)
        refused(lambda: rocmkern.softmax(torch.ones(4, 4), out=x), words)


# torch.compile, before anything of ours was used

_COMPILED = """
import torch, rocmkern
rocmkern.use("python")
layer = torch.nn.Linear(4, 3)
x = torch.randn(2, 4)
with torch.no_grad():
    for backend in ("eager", "aot_eager"):
        two = lambda x: torch.relu(rocmkern.linear(rocmkern.softmax(x * 2), layer.weight))
        compiled = torch.compile(two, backend=backend, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), torch.relu(torch.softmax(x * 2, -1) @ layer.weight.T))
"""


@pytest.mark.parametrize("before", ["import rocmkern; rocmkern.softmax", "import torch"])
def test_the_first_call_may_be_traced(before):
    done = subprocess.run([sys.executable, "-c", f"{before}\n{_COMPILED}"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_a_dtype_may_be_torchs(name):
    blocks = torch.from_numpy(rocmkern.quantize(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), "q8_0"))
    asked = getattr(torch, name)
    got = rocmkern.dequantize(blocks, "q8_0", asked)
    assert got.dtype == asked and torch.equal(got, rocmkern.dequantize(blocks, "q8_0").to(asked))
    assert str(rocmkern.causal_mask(2, 3, dtype=asked).dtype) == name


@pytest.mark.parametrize("name", ["float64", "int8", "bool", "float8_e4m3fn"])
def test_a_dtype_of_torchs_that_is_no_result_is_refused(name):
    with pytest.raises(ArgumentError, match=rf"dtype: got torch\.{name}; allowed: float32, float16, bfloat16"):
        rocmkern.causal_mask(2, 3, dtype=getattr(torch, name))
