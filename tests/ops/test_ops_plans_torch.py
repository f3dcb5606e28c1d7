"""Plans for PyTorch's tensors, on its current stream. A small stand-in for PyTorch has memory on the stand-in GPU."""

from __future__ import annotations

import functools
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from stand_in_gpu import StandInVariant

import rocmkern
from rocmkern import reference
from rocmkern.calls import plan as _plan
from rocmkern.calls import routing as _routing
from rocmkern.calls.adapters import torch_tensors
from rocmkern.runtime import devices
from rocmkern.runtime.errors import ArgumentError, TargetError
from rocmkern.runtime.manager import default_manager


class Dtype(str):
    """Prints as PyTorch's dtypes do."""


FLOAT32, INT64 = Dtype("torch.float32"), Dtype("torch.int64")


class Tensor:
    """A tensor of the stand-in library; the numbers that a test looks at are ``x.numbers``."""

    is_cuda, is_cpu, requires_grad, layout, dtype, negative = True, False, False, "strided", FLOAT32, False
    device, is_nested, is_quantized, __torch_dispatch__ = SimpleNamespace(type="cuda"), False, False, None

    def __init__(self, numbers, owner=None):
        self.numbers, self.owner = numbers, owner

    @property
    def shape(self):
        return self.numbers.shape

    def stride(self):
        return tuple(step // 4 for step in self.numbers.strides)

    def data_ptr(self):
        return self.numbers.ctypes.data

    def numel(self):
        return self.numbers.size

    def get_device(self):
        return 0

    version = 0

    def is_inference(self):
        return False

    def is_neg(self):
        return self.negative

    def is_conj(self):
        return False

    def _is_zerotensor(self):
        return False

    def detach(self):
        plain = Tensor(self.numbers, self.owner)
        plain.dtype = self.dtype
        return plain

    def __dlpack_device__(self):
        return 10, 0  # kDLROCM

    def __dlpack__(self, **options):
        raise AssertionError("the attributes say everything")


def written(x):
    x.version += 1


@pytest.fixture
def torch(device, no_plans, monkeypatch):
    """The stand-in library, of which ``current`` is the current stream."""
    library = ModuleType("torch")
    library.Tensor, library.strided, library.current = Tensor, "strided", 0
    library.gradients, library.transform = True, None
    library.is_grad_enabled = lambda: library.gradients
    library._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda index: library.current,
        _len_torch_dispatch_stack=lambda: 0,
        _is_any_autocast_enabled=lambda: False,
        _get_tracing_state=lambda: None,
        _functorch=SimpleNamespace(
            peek_interpreter_stack=lambda: library.transform,
            is_functorch_wrapped_tensor=lambda x: library.transform is not None,
        ),
    )
    library.autograd = SimpleNamespace(
        forward_ad=SimpleNamespace(_current_level=-1), graph=SimpleNamespace(increment_version=written)
    )
    library.nn = SimpleNamespace(
        Parameter=type("Parameter", (Tensor,), {"__module__": "torch"}),
        parameter=SimpleNamespace(UninitializedTensorMixin=type("UninitializedTensorMixin", (), {})),
    )
    library.cuda = SimpleNamespace(
        Stream=type("Stream", (SimpleNamespace,), {"__module__": "torch"}),
        current_stream=lambda index: library.cuda.Stream(cuda_stream=library.current),
    )

    def from_dlpack(exporter):
        raise AssertionError("PyTorch allocates its own results")

    def empty_strided(shape, strides, *, dtype, device):
        new = Tensor(np.empty(shape, np.float32))
        assert (new.stride(), dtype, device) == (strides, FLOAT32, Tensor.device)
        return new

    library.from_dlpack, library.float32, library.empty_strided = from_dlpack, FLOAT32, empty_strided
    monkeypatch.setattr(Tensor, "__module__", "torch")
    monkeypatch.setitem(sys.modules, "torch", library)
    monkeypatch.setattr(devices, "device_of", lambda kind, index, address=0: device)
    monkeypatch.setattr(_routing, "_has_to_see", lambda torch, values: False)  # the stand-in has no operators
    monkeypatch.setattr(torch_tensors, "_contiguous", functools.cache(torch_tensors._contiguous.__wrapped__))
    for known in (_plan._torch_kinds, _plan._torch_streams, _plan._torch_layouts):
        monkeypatch.setattr(_plan, next(n for n, v in vars(_plan).items() if v is known), type(known)())
    for name in ("_torch", "_outside"):  # learned with the kinds: put back with them
        monkeypatch.setattr(_plan, name, getattr(_plan, name))
    return library


@pytest.fixture
def planned(gpu):
    """Call an operation and say whether it went by a plan."""

    def call(operation, *args, **kwargs):
        ordinary = gpu.ordinary
        call.result = operation(*args, **kwargs)
        return gpu.ordinary == ordinary

    return call


def normal(*shape, seed=0):
    return Tensor(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def test_a_call_with_out_is_planned_on_the_current_stream(torch, gpu, planned):
    for stream, hits in ((0, (False, True)), (0x77, (False, True)), (0, (True, True))):
        torch.current = stream
        for seed, expected in enumerate(hits):
            x, out = normal(3, 40, seed=seed), Tensor(np.zeros((3, 40), np.float32))
            assert planned(rocmkern.softmax, x, out=out) is expected
            assert (x.version, out.version) == (0, 1)
            assert planned.result is out
            np.testing.assert_allclose(out.numbers, reference.softmax(x.numbers), rtol=1e-5)
    assert [stream for _, stream in gpu.ran] == [0, 0, 0x77, 0x77, 0, 0]


def test_new_results_are_the_librarys(torch, device, planned):
    x = normal(3, 40)
    for expected in (False, True, True):
        assert planned(rocmkern.softmax, x) is expected
        assert type(planned.result) is Tensor
        np.testing.assert_allclose(planned.result.numbers, reference.softmax(x.numbers), rtol=1e-5)
    assert default_manager(device).live_buffers() == []


def test_strides_and_offsets(torch, planned):
    for index, expected in enumerate((False, True)):
        x, out = normal(4, 8, 12, seed=index), Tensor(np.zeros((4, 8, 12), np.float32))
        part, given = Tensor(x.numbers[2 * index, :, 4:8], x), Tensor(out.numbers[2 * index, :, 4:8], out)
        assert planned(rocmkern.scale, part, 2.0, out=given) is expected
        exact = np.zeros_like(x.numbers)
        exact[2 * index, :, 4:8] = 2 * x.numbers[2 * index, :, 4:8]
        np.testing.assert_array_equal(out.numbers, exact)


def test_in_place_and_overlap(torch, planned):
    x = normal(6, 8)
    assert not planned(rocmkern.scale, x, 2.0, out=x)
    assert planned(rocmkern.scale, x, 2.0, out=x)
    for expected in (False, True):  # the same memory, but what is returned is another object
        out = Tensor(x.numbers)
        assert planned(rocmkern.scale, x, 2.0, out=out) is expected
        assert planned.result is out
    assert planned(rocmkern.scale, x, 0.5, out=Tensor(x.numbers)) is False
    with pytest.raises(ArgumentError, match="overlaps"):
        rocmkern.softmax(Tensor(x.numbers[:3]), out=Tensor(x.numbers[2:5]))
    rocmkern.softmax(Tensor(x.numbers[:3]), out=Tensor(x.numbers[3:]))
    with pytest.raises(ArgumentError, match="overlaps"):
        rocmkern.softmax(Tensor(x.numbers[:3]), out=Tensor(x.numbers[2:5]))


def test_what_is_refused_stays_refused(torch, planned):
    x, out = normal(3, 8), normal(3, 8)
    rocmkern.softmax(x, out=out)
    assert planned(rocmkern.softmax, x, out=out)
    for name, value, allowed in (("requires_grad", True, "gradient"), ("negative", True, "lazy negative")):
        y = normal(3, 8)
        setattr(y, name, value)
        for _ in range(2):
            with pytest.raises(ArgumentError, match=allowed):
                rocmkern.softmax(y, out=out)


def test_a_parameter_and_a_stream_object(torch, gpu, planned):
    stream = torch.cuda.Stream(cuda_stream=0x88)
    for expected in (False, True):
        x, out = torch.nn.Parameter(normal(3, 8).numbers), normal(3, 8)
        assert planned(rocmkern.softmax, x, out=out, stream=stream) is expected
    assert [stream for _, stream in gpu.ran] == [0x88, 0x88]


def test_both_kinds_of_tensors_in_one_call(torch, device, gpu, planned):
    manager = default_manager(device)
    torch.current = 0x77
    x, ours = normal(3, 8), manager.zeros((3, 8))
    for seed in range(3):
        device.calls.clear()
        assert planned(rocmkern.scale, x, 2.0, out=ours) is (seed > 0)
        waits = [call for call in device.calls if "waits" in call]
        assert waits == [f"stream 0x77 waits for {manager.stream:#x}"]
        np.testing.assert_array_equal(ours.to_numpy(), 2 * x.numbers)


def test_all_launches_of_a_call_go_on_the_current_stream(torch, gpu, planned):
    # The second launch of each sees inner results and the new result only.
    torch.current, gpu.parallelism = 0x77, 8
    a, b = normal(4, 256), normal(256, 8)
    q, k, v = (normal(1, 2, n, 16, seed=n) for n in (20, 300, 301))
    v.numbers = v.numbers[:, :, :300]
    for expected in (False, True):
        assert planned(rocmkern.matmul, a, b) is expected
        np.testing.assert_allclose(planned.result.numbers, a.numbers @ b.numbers, rtol=1e-4, atol=1e-4)
        assert planned(rocmkern.decode_attention, q, k, v, num_splits=2) is expected
    names = ["matmul", "sum_splits", "flash_attention", "combine_splits"]
    assert gpu.ran == [(name, 0x77) for name in names] * 2


def test_what_was_launched_before_a_launch_that_fails_is_waited_for(torch, device, gpu, planned, monkeypatch):
    torch.current, gpu.parallelism = 0x77, 8
    a, b, out = normal(4, 256), normal(256, 8), normal(4, 8)
    for expected in (False, True):
        assert planned(rocmkern.matmul, a, b, out=out, stream=0x88) is expected
    device.calls.clear()
    run = StandInVariant.run
    monkeypatch.setattr(
        StandInVariant, "run", lambda self, *args: (1,) if self.kernel_name == "sum_splits" else run(self, *args)
    )
    ran = len(gpu.ran)
    with pytest.raises(TargetError, match="sum_splits"):
        rocmkern.matmul(a, b, out=out, stream=0x88)
    assert gpu.ran[ran:] == [("matmul", 0x88)]
    waits = [call for call in device.calls if "waits" in call]
    assert waits == ["stream 0x88 waits for 0x77", "stream 0x77 waits for 0x88"]


def test_work_for_the_default_stream_of_a_thread_goes_on_our_own(torch, device, gpu, planned):
    own = default_manager(device).stream
    q, k, v = (normal(1, 2, n, 16, seed=n) for n in (1, 300, 301))
    v.numbers = v.numbers[:, :, :300]
    torch.current = 2
    for expected in (False, True):
        device.calls.clear()
        assert planned(rocmkern.decode_attention, q, k, v, num_splits=2) is expected
        assert gpu.ran.pop() == ("flash_attention", own) and not gpu.ran
        waits = [call for call in device.calls if "waits" in call]
        assert waits[0] == f"stream {own:#x} waits for 0x2" and waits[-1] == f"stream 0x2 waits for {own:#x}"


def test_parameters_are_planned_where_gradients_are_off(torch, planned):
    weight = torch.nn.Parameter(normal(8, 16).numbers)
    weight.requires_grad, torch.gradients = True, False
    for seed, expected in enumerate((False, True)):
        x = normal(3, 16, seed=seed + 1)
        assert planned(rocmkern.linear, x, weight) is expected
        np.testing.assert_allclose(planned.result.numbers, x.numbers @ weight.numbers.T, rtol=1e-4, atol=1e-4)
    torch.gradients = True
    with pytest.raises(ArgumentError, match=r"weight: .*requires a gradient.*no_grad"):
        rocmkern.linear(normal(3, 16), weight)


def test_no_plan_answers_inside_a_transform(torch, planned):
    x = normal(3, 40)
    assert [planned(rocmkern.softmax, x) for _ in range(2)] == [False, True]
    torch.transform = "vmap"
    with pytest.raises(ArgumentError, match=r"x: .*torch\.func"):
        rocmkern.softmax(x)
