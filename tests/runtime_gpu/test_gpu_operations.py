"""Operations on arrays in device memory: what is accepted, where results lie, on which stream it runs.

The kernels run here in the interpreter on copies of the arrays, so that nothing but the way of the arrays is tested.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference, targets
from rocmkern.calls import arguments as _arguments
from rocmkern.calls import launch as _launch
from rocmkern.calls import plan as _plan
from rocmkern.calls import results as _results
from rocmkern.calls import values as _values
from rocmkern.calls.view import View
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.runtime.manager import DeviceTensor, default_manager
from rocmkern.targets.python import PythonTarget


class Interpreter:
    """A target that runs a launch in the interpreter: copies the arguments to the host and the outputs back."""

    arch = "python"
    parallelism = 1

    def __init__(self, device):
        self.device, self.streams = device, []

    def launch(self, kernel, cfg, grid, args, stream):
        self.streams.append(stream)
        for view in (a for a in args if isinstance(a, View) and a.size):
            assert view.place is self.device
        default_manager(self.device).wait(stream=stream)
        copies = [self.read(a) if isinstance(a, View) and a.size else a for a in args]
        PythonTarget().launch(kernel, cfg, grid, copies)
        for (_, parameter), copy, view in zip(kernel.parameters, copies, args, strict=True):
            if parameter.kind == "tensor" and parameter.output and view.size:
                self.tensor(view).copy_(copy)
        default_manager(self.device).wait()

    def tensor(self, view):
        return DeviceTensor.from_foreign(view, view.address, view.shape, view.dtype, view.strides, self.device)

    def read(self, view):
        return self.tensor(view).to_numpy()


@pytest.fixture
def interpreter(device, monkeypatch):
    """Every launch on the GPU runs in the interpreter."""
    target = Interpreter(device)
    monkeypatch.setattr(_launch, "target_of", lambda place: target)
    return target


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Views


def test_a_view_is_never_read_by_the_cpu(manager):
    view = _arguments.accept("x", manager.from_numpy(normal(2, 3, 4))).view
    assert (view.shape, view.dtype) == ((2, 3, 4), np.float32)
    for part in (view[0], view.transpose(2, 0, 1), view[None, ..., ::2], view.broadcast_to((5, 2, 3, 4))):
        assert part.on_device
        assert (part.place, part.owner) == (manager.device, view.owner)
    for read in (view.numpy, lambda: _values.look(np.sum, view), lambda: _values.converted(view, np.copy)):
        with pytest.raises(TypeError, match="cannot be read by the CPU"):
            read()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_values_are_written_and_read_through_any_strides(manager, dtype):
    tensor = manager.zeros((4, 6, 5), dtype)
    view = _arguments.accept("x", tensor).view.transpose(1, 2, 0)[::-2, 1:4]
    _results.assign(view, np.arange(4), None)
    np.testing.assert_array_equal(_results.read(view), np.broadcast_to(np.arange(4), (3, 3, 4)).astype(dtype))
    expected = np.zeros((4, 6, 5), dtype)
    expected.transpose(1, 2, 0)[::-2, 1:4] = np.arange(4)
    np.testing.assert_array_equal(tensor.to_numpy(), expected)
    del view


# Operations


def test_tensors_in_give_a_tensor_out(interpreter, manager):
    x = normal(2, 3, 17)
    out = rocmkern.softmax(manager.from_numpy(x))
    assert isinstance(out, DeviceTensor)
    assert out.device is manager.device
    np.testing.assert_allclose(out.to_numpy(), reference.softmax(x), rtol=1e-5)
    assert interpreter.streams == [manager.stream]


def test_attention_with_everything(interpreter, manager):
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, 7, 8, seed=1), normal(2, 2, 7, 6, seed=2)
    options = dict(
        sinks=normal(4), alibi_slopes=normal(4, seed=3), bias=normal(5, 7), mask=normal(2, 1, 1, 7, seed=4) > -1
    )
    exact, exact_lse = reference.flash_attention(q, k, v, causal=True, return_lse=True, **options)
    on_device = {name: manager.from_numpy(value) for name, value in options.items()}
    half = manager.from_numpy(options["sinks"].astype(np.float16))
    q, k, v = map(manager.from_numpy, (q, k, v))
    out, lse = rocmkern.flash_attention(q, k, v, causal=True, return_lse=True, **on_device)
    np.testing.assert_allclose(out.to_numpy(), exact, atol=1e-5)
    np.testing.assert_allclose(lse.to_numpy(), exact_lse, atol=1e-5)
    on_device["sinks"] = half
    again = rocmkern.flash_attention(q, k, v, causal=True, out=out, **on_device)
    assert again is out
    np.testing.assert_allclose(out.to_numpy(), exact, atol=1e-2)


def test_sampling_reads_a_row_as_overlapping_parts(interpreter, manager):
    logits = normal(3, 45)
    tokens = rocmkern.sample(manager.from_numpy(logits)[::-1], top_k=7, seed=5)
    assert isinstance(tokens, DeviceTensor)
    np.testing.assert_array_equal(tokens.to_numpy(), reference.sample(logits[::-1], top_k=7, seed=5))
    logits[1, 44] = np.nan
    tokens = manager.zeros(3, np.int32)
    with pytest.raises(ArgumentError, match="logits: got a row, in device memory"):
        rocmkern.sample(manager.from_numpy(logits), seed=5, out=tokens).to_numpy()
    assert tokens.to_numpy()[1] == -1


def test_sampling_reads_numbers_of_rows_in_device_memory(interpreter, manager):
    logits = normal(4, 45)
    numbers = {
        "temperature": np.array([0.5, 0, 2, 1], np.float32),
        "top_k": np.array([3, 9, 45, 2**40]),
        "top_p": np.array([0.5, 1, 0.9, 0.7], np.float32),
        "seed": np.array([0, 2**63, 2**64 - 1, 5], np.uint64),
        "offset": np.array([7, 2**33, 1, 0]),
    }
    expected = reference.sample(logits, **numbers)
    there = {name: manager.from_numpy(array) for name, array in numbers.items()}
    x, out = manager.from_numpy(logits), manager.zeros(4, np.int32)
    np.testing.assert_array_equal(rocmkern.sample(x, **there).to_numpy(), expected)
    np.testing.assert_array_equal(rocmkern.sample(x, **numbers).to_numpy(), expected)
    np.testing.assert_array_equal(rocmkern.sample(x, **numbers | {"seed": there["seed"]}).to_numpy(), expected)
    with pytest.raises(ArgumentError, match="temperature: got an array in"):
        rocmkern.sample(logits, **there)
    for name, value in (("temperature", -1), ("temperature", np.nan), ("top_k", 0), ("top_p", 0), ("top_p", 1.5)):
        wrong = numbers[name].copy()
        wrong[2] = value
        with pytest.raises(ArgumentError, match="temperature, top_k or top_p: got a number of a row, in device memory"):
            rocmkern.sample(x, **there | {name: manager.from_numpy(wrong)}, out=out).to_numpy()
        assert (out.to_numpy() == np.where(np.arange(4) == 2, -1, expected)).all()
    with pytest.raises(ArgumentError, match="dtype float32") as error:
        rocmkern.sample(x, **there | {"top_p": manager.from_numpy(np.ones(4))})
    assert error.value.argument == "top_p"


def test_lazy_weights_reach_the_device_when_an_operation_takes_them(interpreter, manager):
    class Source:
        shape, dtype = (4, 6), np.dtype(np.float32)

        def pieces(self):
            yield normal(4, 6)

    lazy = manager.lazy(Source())
    part = lazy[1:, ::2]
    assert not lazy.loaded
    np.testing.assert_allclose(rocmkern.scale(part, 2.0).to_numpy(), normal(4, 6)[1:, ::2] * 2)
    assert lazy.loaded


def test_split_attention(interpreter, manager):
    q, k, v = normal(1, 2, 1, 8), normal(1, 2, 40, 8, seed=1), normal(1, 2, 40, 8, seed=2)
    out = rocmkern.decode_attention(*map(manager.from_numpy, (q, k, v)), num_splits=3)
    np.testing.assert_allclose(out.to_numpy(), reference.flash_attention(q, k, v), atol=1e-5)


@pytest.mark.parametrize("where", ["host", "device"])
def test_packed_sequences(interpreter, manager, where):
    q, k, v = normal(9, 2, 8), normal(11, 2, 8, seed=1), normal(11, 2, 8, seed=2)
    cu_q, cu_k = np.int32([0, 4, 4, 9]), np.int32([0, 5, 8, 11])
    exact = reference.flash_attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    lengths = dict(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    if where == "device":
        lengths = {name: manager.from_numpy(value) for name, value in lengths.items()}
    q, k, v = map(manager.from_numpy, (q, k, v))
    for more in ({}, {"max_seqlen_q": 5, "max_seqlen_k": 5}):
        out = rocmkern.flash_attention(q, k, v, **lengths, **more)
        np.testing.assert_allclose(out.to_numpy(), exact, atol=1e-5)


def test_lengths_on_the_device_are_checked_by_shape_only(interpreter, manager):
    q = manager.zeros((9, 2, 8))
    good, flat = manager.from_numpy(np.int32([0, 9])), manager.from_numpy(np.int32([[0, 9]]))
    with pytest.raises(ArgumentError, match="cu_seqlens_q"):
        rocmkern.flash_attention(q, q, q, cu_seqlens_q=flat, cu_seqlens_k=good)
    with pytest.raises(ArgumentTypeError, match="cu_seqlens_k"):
        wrong = manager.zeros(2, np.int64)
        rocmkern.flash_attention(q, q, q, cu_seqlens_q=good, cu_seqlens_k=wrong)
    host = np.zeros((9, 2, 8), np.float32)
    with pytest.raises(ArgumentError, match="cu_seqlens_q"):
        rocmkern.flash_attention(host, host, host, cu_seqlens_q=good, cu_seqlens_k=good)
    wrong.close()


def test_no_keys(interpreter, manager):
    q, k, sinks = manager.from_numpy(normal(1, 2, 3, 8)), manager.zeros((1, 2, 0, 8)), manager.from_numpy(normal(2))
    out = manager.from_numpy(normal(1, 3, 2, 8)).transpose(0, 2, 1, 3)
    result, lse = rocmkern.flash_attention(q, k, k, return_lse=True, sinks=sinks)
    assert not result.to_numpy().any()
    np.testing.assert_array_equal(lse.to_numpy()[0], np.repeat(sinks.to_numpy()[:, None], 3, axis=1))
    rocmkern.flash_attention(q, k, k, out=out)
    assert not out.to_numpy().any()
    assert not rocmkern.weighted_values(manager.zeros((1, 2, 3, 0)), k).to_numpy().any()
    _, lse = rocmkern.flash_attention(q, k, k, return_lse=True)
    assert (lse.to_numpy() == -np.inf).all()
    assert interpreter.streams == []


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_arrays(interpreter, manager, shape):
    assert rocmkern.scale(manager.zeros(shape), 2.0).shape == shape


def test_outputs_are_checked_on_the_device_too(interpreter, manager):
    x = manager.from_numpy(normal(4, 8))
    rocmkern.scale(x, 2.0, out=x)
    np.testing.assert_allclose(x.to_numpy(), 2 * normal(4, 8))
    with pytest.raises(ArgumentError, match="overlaps"):
        rocmkern.scale(x[:3], 2.0, out=x[1:])
    with pytest.raises(ArgumentError, match="out: got an array in host memory"):
        rocmkern.scale(x, 2.0, out=np.empty((4, 8), np.float32))
    with pytest.raises(ArgumentError, match="mask: got an array in host memory"):
        rocmkern.apply_mask(x, np.zeros(8, np.float32))
    odd = DeviceTensor.from_foreign(x, x.data_ptr + 2, (3,), np.float32, device=manager.device)
    with pytest.raises(ArgumentError, match="not aligned"):
        rocmkern.softmax(odd)


def test_new_results_are_poisoned_under_test(manager):
    like = _arguments.accept("x", manager.zeros(3, np.float16))
    with _results.poison_outputs():
        result = _results.allocate("out", (5,), np.dtype(np.float16), like)
    assert np.isnan(result.source.to_numpy()).all()
    del like, result


def test_numpy_goes_to_the_card_and_back(interpreter, device, monkeypatch):
    monkeypatch.setattr(_launch, "current_target", lambda: interpreter)
    x = normal(3, 20)
    np.testing.assert_allclose(rocmkern.softmax(x), reference.softmax(x), rtol=1e-5)
    default_manager(device).assert_no_leak()


# Streams


def test_another_stream_is_ordered_with_ours(interpreter, manager):
    stream = manager.device.create_stream()
    x = normal(100, 64)
    tensor = manager.from_numpy(x)
    for _ in range(5):
        out = rocmkern.scale(tensor, 2.0, stream=stream)
        np.testing.assert_array_equal(out.to_numpy(), 2 * x)
    assert interpreter.streams == [stream] * 5
    assert {stream, manager.stream} <= tensor.keep_alive().streams()


def test_numbas_arrays_run_on_the_default_stream(interpreter, manager, numba_gpu):
    x = normal(6, 7)
    theirs = numba_gpu.to_device(x)  # device call: an array of Numba's own
    out = rocmkern.softmax(theirs)
    assert isinstance(out, DeviceTensor)
    np.testing.assert_allclose(out.to_numpy(), reference.softmax(x), rtol=1e-5)
    given = numba_gpu.to_device(np.zeros_like(x))  # device call: an array of Numba's own
    assert rocmkern.softmax(theirs, out=given).copy_to_host().any()
    assert interpreter.streams == [0, 0]


class Foreign:
    """An array of a library that has DLPack and nothing else."""

    def __init__(self, tensor):
        self.tensor, self.asked = tensor, []

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        self.asked.append(stream)
        return self.tensor.__dlpack__(stream=stream, **options)


def test_a_library_that_names_no_stream_gets_finished_work(interpreter, manager, device):
    x = Foreign(manager.from_numpy(normal(6, 7)))
    out = rocmkern.softmax(x)
    assert x.asked == [{"hip": 0, "cuda": 1}[device.kind]]
    assert interpreter.streams == [0]
    np.testing.assert_allclose(out.to_numpy(), reference.softmax(normal(6, 7)), rtol=1e-5)
    del x


def torch_with_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_torch_in_gives_torch_out_on_its_current_stream(interpreter, device, name):
    torch = torch_with_a_gpu()
    side = torch.cuda.Stream()
    x = torch.randn(5, 33, device="cuda", dtype=getattr(torch, name))
    for stream in (torch.cuda.default_stream(), side):
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            out = rocmkern.softmax(x)
            assert isinstance(out, torch.Tensor)
            assert (out.dtype, out.device) == (x.dtype, x.device)
            difference = (out.float() - torch.softmax(x.float(), -1)).abs().max().item()
            assert difference < 1e-2
            assert rocmkern.softmax(x, out=out) is out
    assert interpreter.streams == [0, 0, side.cuda_stream, side.cuda_stream]
    del out
    default_manager(device).assert_no_leak()


# The real thing


def test_a_kernel_on_the_card(device, manager):
    """One launch through the card's own target."""
    target = targets.target_of(device)
    q, k, v = normal(1, 2, 20, 16), normal(1, 1, 30, 16, seed=1), normal(1, 1, 30, 16, seed=2)
    out = rocmkern.flash_attention(*map(manager.from_numpy, (q, k, v)), causal=True)
    np.testing.assert_allclose(out.to_numpy(), reference.flash_attention(q, k, v, causal=True), atol=1e-4)
    with targets.using(target.name):
        host = rocmkern.flash_attention(q, k, v, causal=True)
    np.testing.assert_array_equal(host, out.to_numpy())


@pytest.fixture
def ordinary(device, monkeypatch):
    """Names of the kernels that were launched by the ordinary way, not by a plan of this test."""
    for plans in _plan._all_plans:
        plans.forget()
    target, names = targets.target_of(device), []
    launch = target.launch
    monkeypatch.setattr(target, "launch", lambda kernel, *args: names.append(kernel.__name__) or launch(kernel, *args))
    return names


def test_a_plan_on_the_card(manager, ordinary):
    """The second and third call go by the plan of the first: new memory, inner results, several launches.

    There are too few keys for any card to split them unasked.
    """
    for seed in range(3):
        q, k, v = (
            normal(1, 2, 20, 16, seed=seed),
            normal(1, 1, 40, 16, seed=seed + 3),
            normal(1, 1, 40, 16, seed=seed + 6),
        )
        exact = reference.flash_attention(q, k, v, causal=True)
        q, k, v = map(manager.from_numpy, (q, k, v))
        out = manager.zeros(q.shape)
        rocmkern.flash_attention(q, k, v, causal=True, out=out)
        np.testing.assert_allclose(out.to_numpy(), exact, atol=1e-4)
        np.testing.assert_allclose(rocmkern.flash_attention(q, k, v, causal=True).to_numpy(), exact, atol=1e-4)
        split = rocmkern.decode_attention(q, k, v, causal=True, num_splits=2)
        np.testing.assert_allclose(split.to_numpy(), exact, atol=1e-4)
    assert ordinary == ["flash_attention"] * 3 + ["combine_splits"]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_a_plan_for_torch(device, ordinary, name):
    torch = torch_with_a_gpu()
    side = torch.cuda.Stream()
    for stream in (torch.cuda.default_stream(), side):
        ordinary.clear()
        with torch.cuda.stream(stream):
            for seed in range(3):
                torch.manual_seed(seed)
                x = torch.randn(5, 33, device="cuda", dtype=getattr(torch, name))
                out = torch.empty_like(x)
                assert rocmkern.softmax(x, out=out) is out
                assert torch.equal(rocmkern.softmax(x), out)
                assert (out.float() - torch.softmax(x.float(), -1)).abs().max().item() < 1e-2
        assert ordinary == ["softmax"] * 2
    del out
    default_manager(device).assert_no_leak()


def test_a_graph_captures_a_call_with_out(device):
    torch = torch_with_a_gpu()
    q, k, v = (torch.randn(1, 4, 50, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    out = torch.empty_like(q)
    exact = rocmkern.flash_attention(q, k, v, out=out).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):  # the later ones by a plan
            rocmkern.flash_attention(q, k, v, out=out)
    out.zero_()
    graph.replay()
    assert torch.equal(out, exact)
    q.zero_()
    graph.replay()
    assert (out - v.mean(2, keepdim=True)).abs().max().item() < 1e-2


def calls_with_inner_results(torch):
    """Name, call with ``out=``, its result and an input."""

    def half(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.float16)

    q, k, v, sinks = half(1, 8, 1, 64), half(1, 2, 700, 64), half(1, 2, 700, 64), half(8)
    out = torch.empty_like(q)
    yield "split keys", lambda: rocmkern.decode_attention(q, k, v, num_splits=5, sinks=sinks, out=out), out, v
    x, gate, up, down = half(3, 64), half(96, 64), half(96, 64), half(64, 96)
    hidden = torch.empty_like(x)
    yield "mlp", lambda: rocmkern.mlp(x, gate, up, down, out=hidden), hidden, x
    row, weight = half(1, 4096), half(48, 4096)
    product = torch.empty(1, 48, device="cuda", dtype=torch.float16)
    yield "split product", lambda: rocmkern.linear(row, weight, out=product), product, row


def test_graphs_capture_calls_that_have_inner_results(device, monkeypatch):
    torch = torch_with_a_gpu()
    torch.manual_seed(0)
    manager, allocations, allocate = default_manager(device), [], device.allocate
    monkeypatch.setattr(device, "allocate", lambda nbytes: allocations.append(nbytes) or allocate(nbytes))
    for name, call, out, source in calls_with_inner_results(torch):
        exact = call().clone()
        manager.wait()
        torch.cuda.current_stream().synchronize()
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        before = len(allocations)
        with torch.cuda.graph(graphs[0]):
            for _ in range(3):  # the later ones by a plan
                call()
        # Counters of its own are all that a graph may need beside what was idle.
        assert sum(allocations[before:]) <= 4096, name
        with torch.cuda.graph(graphs[1]):
            call()
        call()  # what the graphs work with is not what others get
        torch.cuda.current_stream().synchronize()
        streams = [torch.cuda.Stream() for _ in graphs]
        for _ in range(3):
            out.zero_()
            torch.cuda.current_stream().synchronize()
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
            for stream in streams:
                stream.synchronize()
            assert torch.equal(out, exact), name
        source.zero_()
        graphs[0].replay()
        torch.cuda.current_stream().synchronize()
        assert not out.any(), name
    manager.assert_no_leak()
