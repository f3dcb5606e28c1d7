"""Bad input: which error, which argument it names, and that nothing was allocated, launched or written."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from rocmkern.ops import places
from rocmkern.ops.attention.api import decode_attention, flash_attention, merge_attention
from rocmkern.ops.linear.api import linear, matmul
from rocmkern.ops.mlp.api import mlp
from rocmkern.ops.steps import api as steps
from rocmkern.runtime import devices
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, DeviceUnavailableError, TargetError

F32, F16, I32 = np.float32, np.float16, np.int32


@pytest.fixture(autouse=True)
def no_effect(monkeypatch):
    """Every allocation and every launch fails the test."""

    def refuse(*args, **kwargs):
        raise AssertionError("allocated or launched before the checks were done")

    class Launches:
        def __getattr__(self, name):
            if not name.startswith("launch_"):
                raise AttributeError(name)
            return refuse

    for name in places.modules("launch"):
        monkeypatch.setitem(sys.modules, name, Launches())
    monkeypatch.setattr("rocmkern.calls.results.allocate", refuse)


def filled(*shape, dtype=F32):
    return np.full(shape, 3, dtype)


def refused(function, *arguments, argument, error=ArgumentError, **options):
    """Call, and check the error, the argument that it names, and that no array has changed."""
    arrays = [x for x in (*arguments, *options.values()) if isinstance(x, np.ndarray) and x.dtype != object]
    before = [x.copy() for x in arrays]
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    assert type(caught.value) is error
    assert caught.value.argument == argument
    assert str(caught.value).startswith(f"{argument}: got ") and "; allowed: " in str(caught.value)
    for x, y in zip(arrays, before, strict=True):
        assert np.array_equal(x, y)
    return str(caught.value)


def qkv(**changes):
    """A good call's q ``[2, 4, 5, 8]``, k ``[2, 2, 7, 8]``, v ``[2, 2, 7, 6]``, some of them replaced."""
    good = {"q": filled(2, 4, 5, 8), "k": filled(2, 2, 7, 8), "v": filled(2, 2, 7, 6)}
    return list({**good, **changes}.values())


@pytest.mark.parametrize("function", [flash_attention, decode_attention])
@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("q", filled(4, 5, 8), ArgumentError),
        ("q", filled(1, 2, 4, 5, 8), ArgumentError),
        ("k", filled(2, 7, 8), ArgumentError),
        ("v", filled(7, 6), ArgumentError),
        ("q", np.float32(1), ArgumentTypeError),
        ("q", np.array(1, F32), ArgumentError),
        ("q", filled(2, 4, 5, 0), ArgumentError),
        ("v", filled(2, 2, 7, 257), ArgumentError),
        ("k", filled(2, 2, 7, 9), ArgumentError),
        ("k", filled(3, 2, 7, 8), ArgumentError),
        ("k", filled(2, 3, 7, 8), ArgumentError),
        ("k", filled(2, 8, 7, 8), ArgumentError),
        ("k", filled(2, 0, 7, 8), ArgumentError),
        ("v", filled(2, 4, 7, 6), ArgumentError),
        ("v", filled(2, 2, 6, 6), ArgumentError),
        ("v", filled(1, 2, 7, 6), ArgumentError),
        ("k", filled(2, 2, 7, 8, dtype=F16), ArgumentTypeError),
        ("v", filled(2, 2, 7, 6, dtype=F16), ArgumentTypeError),
        ("q", filled(2, 4, 5, 8).tolist(), ArgumentTypeError),
        ("k", filled(2, 2, 7, 8).tolist(), ArgumentTypeError),
        ("v", None, ArgumentTypeError),
        ("q", filled(2, 4, 5, 8).astype(object), ArgumentTypeError),
        ("q", filled(2, 4, 5, 8, dtype=I32), ArgumentTypeError),
        ("q", filled(2, 4, 5, 8, dtype=np.float64), ArgumentTypeError),
        ("q", filled(2, 4, 5, 8, dtype=">f4"), ArgumentTypeError),
        ("v", np.ma.masked_array(filled(2, 2, 7, 6)), ArgumentTypeError),
    ],
)
def test_arrays(function, argument, value, error):
    refused(function, *qkv(**{argument: value}), argument=argument, error=error)


def test_the_head_dimension_limit_is_named():
    message = refused(flash_attention, *qkv(q=filled(2, 4, 5, 257), k=filled(2, 2, 7, 257)), argument="q")
    assert "1 to 256" in message


def test_mixed_dtypes_name_both_arguments():
    message = refused(flash_attention, *qkv(k=filled(2, 2, 7, 8, dtype=F16)), argument="k", error=ArgumentTypeError)
    assert "float16" in message and "float32, the dtype of q" in message


@pytest.mark.parametrize("function", [flash_attention, decode_attention])
@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("window", (-1, 0), ArgumentError),
        ("window", (0, -1), ArgumentError),
        ("window", (1.5, 0), ArgumentError),
        ("window", (True, 0), ArgumentError),
        ("window", (1, 2, 3), ArgumentError),
        ("window", 4, ArgumentError),
        ("window", "ab", ArgumentError),
        ("scale", float("nan"), ArgumentError),
        ("scale", 1e-50, ArgumentError),
        ("scale", -(10**400), ArgumentError),
        ("return_lse", 1, ArgumentTypeError),
        ("return_lse", "no", ArgumentTypeError),
        ("stream", object(), ArgumentTypeError),
        ("scale", float("inf"), ArgumentError),
        ("scale", 1e39, ArgumentError),
        ("scale", "1", ArgumentTypeError),
        ("scale", True, ArgumentTypeError),
        ("scale", filled(1), ArgumentTypeError),
        ("softcap", 0.0, ArgumentError),
        ("softcap", -1.0, ArgumentError),
        ("softcap", float("nan"), ArgumentError),
        ("causal", "topleft", ArgumentError),
        ("causal", None, ArgumentError),
        ("causal", 1, ArgumentError),
        ("layout", "sbhd", ArgumentError),
        ("layout", None, ArgumentError),
        ("stream", 0, ArgumentError),
        ("stream", -1, ArgumentError),
        ("stream", "default", ArgumentTypeError),
        ("bias", filled(2, 4, 5, 6), ArgumentError),
        ("bias", filled(1, 2, 4, 5, 7), ArgumentError),
        ("bias", filled(5, 7, dtype=np.float64), ArgumentTypeError),
        ("bias", filled(5, 7, dtype=bool), ArgumentTypeError),
        ("bias", [[0.0]], ArgumentTypeError),
        ("mask", filled(5, 6, dtype=bool), ArgumentError),
        ("mask", filled(5, 7), ArgumentTypeError),
        ("mask", filled(5, 7, dtype=np.uint8), ArgumentTypeError),
        ("sinks", filled(3), ArgumentError),
        ("sinks", filled(1, 4), ArgumentError),
        ("sinks", filled(4, dtype=I32), ArgumentTypeError),
        ("sinks", 0.0, ArgumentTypeError),
        ("alibi_slopes", filled(2), ArgumentError),
        ("alibi_slopes", filled(3, 4), ArgumentError),
        ("alibi_slopes", filled(4, dtype=np.float64), ArgumentTypeError),
    ],
)
def test_options(function, argument, value, error):
    refused(function, *qkv(), argument=argument, error=error, **{argument: value})


@pytest.mark.parametrize(("value", "error"), [(0, ArgumentError), (-2, ArgumentError), (1.5, ArgumentTypeError)])
def test_num_splits(value, error):
    refused(decode_attention, *qkv(), num_splits=value, argument="num_splits", error=error)


# Packed sequences.


def packed(**options):
    cu_q, cu_k = np.array([0, 2, 5], I32), np.array([0, 3, 7], I32)
    return {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, **options}


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("cu_seqlens_q", np.array([0, 3, 2, 5], I32), ArgumentError),
        ("cu_seqlens_q", np.array([0, 6, 5], I32), ArgumentError),
        ("cu_seqlens_k", np.array([0, 5, 3], I32), ArgumentError),
        ("cu_seqlens_k", np.array([0, 3, 8], I32), ArgumentError),
        ("cu_seqlens_k", np.array([0, 3, 6], I32), ArgumentError),
        ("cu_seqlens_q", np.array([1, 2, 5], I32), ArgumentError),
        ("cu_seqlens_q", np.array([-1, 2, 5], I32), ArgumentError),
        ("cu_seqlens_q", np.array([0, 2, 5], np.int64), ArgumentTypeError),
        ("cu_seqlens_q", np.array([0.0, 2.0, 5.0], F32), ArgumentTypeError),
        ("cu_seqlens_q", [0, 2, 5], ArgumentTypeError),
        ("cu_seqlens_q", np.array([[0, 2, 5]], I32), ArgumentError),
        ("cu_seqlens_q", np.array([], I32), ArgumentError),
        ("cu_seqlens_k", np.array([0, 3, 5, 7], I32), ArgumentError),
        ("cu_seqlens_k", None, ArgumentError),
        ("cu_seqlens_q", None, ArgumentError),
        ("max_seqlen_q", 2, ArgumentError),
        ("max_seqlen_q", 3.0, ArgumentTypeError),
        ("max_seqlen_k", 3, ArgumentError),
        ("bias", filled(5, 7), ArgumentError),
        ("mask", filled(5, 7, dtype=bool), ArgumentError),
        ("alibi_slopes", filled(3, 4), ArgumentError),
    ],
)
def test_packed_options(argument, value, error):
    arrays = filled(5, 4, 8), filled(7, 2, 8), filled(7, 2, 6)
    refused(flash_attention, *arrays, argument=argument, error=error, **packed(**{argument: value}))


@pytest.mark.parametrize(
    ("argument", "value"), [("q", filled(1, 5, 4, 8)), ("k", filled(7, 3, 8)), ("v", filled(6, 2, 6))]
)
def test_packed_arrays(argument, value):
    arrays = {"q": filled(5, 4, 8), "k": filled(7, 2, 8), "v": filled(7, 2, 6), argument: value}
    refused(flash_attention, *arrays.values(), argument=argument, **packed())


@pytest.mark.parametrize("argument", ["max_seqlen_q", "max_seqlen_k"])
def test_max_seqlen_is_for_packed_sequences(argument):
    refused(flash_attention, *qkv(), argument=argument, **{argument: 7})


# Outputs.


def read_only(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("function", [flash_attention, decode_attention])
@pytest.mark.parametrize(
    ("out", "error"),
    [
        (filled(2, 4, 5, 8), ArgumentError),
        (filled(4, 5, 6), ArgumentError),
        (filled(2, 4, 5, 6, dtype=F16), ArgumentTypeError),
        (filled(2, 4, 5, 6).tolist(), ArgumentTypeError),
        (read_only(filled(2, 4, 5, 6)), ArgumentError),
        (np.lib.stride_tricks.as_strided(filled(6), (2, 4, 5, 6), (0, 0, 0, 4)), ArgumentError),
        (np.lib.stride_tricks.as_strided(filled(300), (2, 4, 5, 6), (480, 120, 20, 4)), ArgumentError),
        ((filled(2, 4, 5, 6), filled(2, 4, 5)), ArgumentError),
    ],
)
def test_out(function, out, error):
    refused(function, *qkv(), out=out, argument="out", error=error)


@pytest.mark.parametrize(
    ("lse", "error"),
    [
        (filled(2, 5, 4), ArgumentError),
        (filled(2, 4, 5, dtype=F16), ArgumentTypeError),
        (None, ArgumentTypeError),
    ],
)
def test_lse_out(lse, error):
    out = (filled(2, 4, 5, 6), lse)
    refused(flash_attention, *qkv(), return_lse=True, out=out, argument="out[1]", error=error)


def test_lse_out_apart_from_out():
    memory = filled(240)
    out = (memory.reshape(2, 4, 5, 6), memory[200:].reshape(2, 4, 5))
    refused(flash_attention, *qkv(), return_lse=True, out=out, argument="out[1]")
    assert (memory == 3).all()


def test_misaligned_out():
    record = np.zeros((2, 4, 5, 6), [("tag", np.uint8), ("value", F32)])
    refused(flash_attention, *qkv(), out=record["value"], argument="out")


@pytest.mark.parametrize("shift", [0, 1, 100])
def test_out_overlapping_an_input(shift):
    memory = filled(400)
    q, out = memory[:280].reshape(1, 5, 7, 8), memory[shift : shift + 280].reshape(1, 5, 7, 8)
    good = filled(1, 5, 7, 8)
    for arrays, name in (((q, good, good), "q"), ((good, q, good), "k"), ((good, good, q), "v")):
        assert f"overlaps with {name}" in refused(flash_attention, *arrays, out=out, argument="out")
    bias = memory[:7]
    assert "overlaps with bias" in refused(
        flash_attention, good, good, good, bias=bias, out=memory[:280].reshape(1, 5, 7, 8), argument="out"
    )
    assert (memory == 3).all()


@pytest.mark.parametrize(
    "call", [lambda x, out: steps.scale(x, 2.0, out=out), lambda x, out: steps.softmax(x, out=out)]
)
def test_out_partly_overlapping(call):
    memory = filled(12)
    refused(lambda: call(memory[:10], memory[1:11]), argument="out")
    refused(lambda: call(memory[:10], memory[9::-1]), argument="out")
    assert (memory == 3).all()


def test_only_elementwise_operations_work_in_place():
    x = filled(3, 4)
    refused(steps.softmax, x, out=x, argument="out")
    refused(steps.apply_mask, x, np.broadcast_to(x[:1], (3, 4)), out=x, argument="out")
    refused(steps.apply_mask, x, x[0], out=x, argument="out")
    o, lse = filled(1, 2, 3, 4), filled(1, 2, 3)
    refused(merge_attention, o, lse, o.copy(), lse.copy(), out=(o, lse), argument="out[1]")
    refused(merge_attention, o, lse, o, lse, out=o[:, ::-1], argument="out")


# The other operations.


@pytest.mark.parametrize(
    ("arguments", "argument", "error"),
    [
        ((filled(2, 8), filled(2), filled(2, 8), filled(2)), "o1", ArgumentError),
        ((filled(1, 2, 3, 300), filled(1, 2, 3), filled(1, 2, 3, 300), filled(1, 2, 3)), "o1", ArgumentError),
        ((filled(1, 2, 3, 4), filled(1, 3, 2), filled(1, 2, 3, 4), filled(1, 2, 3)), "lse1", ArgumentError),
        (
            (filled(1, 2, 3, 4), filled(1, 2, 3, dtype=F16), filled(1, 2, 3, 4), filled(1, 2, 3)),
            "lse1",
            ArgumentTypeError,
        ),
        ((filled(1, 2, 3, 4), filled(1, 2, 3), filled(1, 2, 3, 5), filled(1, 2, 3)), "o2", ArgumentError),
        (
            (filled(1, 2, 3, 4), filled(1, 2, 3), filled(1, 2, 3, 4, dtype=F16), filled(1, 2, 3)),
            "o2",
            ArgumentTypeError,
        ),
        ((filled(1, 2, 3, 4), filled(1, 2, 3), filled(1, 2, 3, 4), filled(1, 2)), "lse2", ArgumentError),
    ],
)
def test_merge_attention(arguments, argument, error):
    refused(merge_attention, *arguments, argument=argument, error=error)


@pytest.mark.parametrize(
    ("call", "argument", "error"),
    [
        (lambda: steps.qk_scores(filled(5, 8), filled(2, 2, 7, 8)), "q", ArgumentError),
        (lambda: steps.qk_scores(filled(2, 4, 5, 8), filled(2, 3, 7, 8)), "k", ArgumentError),
        (lambda: steps.qk_scores(filled(2, 4, 5, 8), filled(2, 2, 7, 8), scale=float("nan")), "scale", ArgumentError),
        (lambda: steps.qk_scores(filled(2, 4, 5, 8), filled(2, 2, 7, 8, dtype=F16)), "k", ArgumentTypeError),
        (lambda: steps.causal_mask(-1, 3), "sq", ArgumentError),
        (lambda: steps.causal_mask(3, 2.0), "sk", ArgumentTypeError),
        (lambda: steps.causal_mask(3, 3, causal="diagonal"), "causal", ArgumentError),
        (lambda: steps.causal_mask(3, 3, dtype=np.float64), "dtype", ArgumentTypeError),
        (lambda: steps.causal_mask(3, 3, dtype="no such type"), "dtype", ArgumentTypeError),
        (lambda: steps.causal_mask(3, 3, out=filled(3, 4)), "out", ArgumentError),
        (lambda: steps.apply_mask(filled(3, 4), filled(3, 5)), "mask", ArgumentError),
        (lambda: steps.apply_mask(filled(3, 4), filled(3, 4, dtype=I32)), "mask", ArgumentTypeError),
        (lambda: steps.apply_mask(np.array(1, F32), filled(1)), "scores", ArgumentError),
        (lambda: steps.softmax(np.array(1, F32)), "x", ArgumentError),
        (lambda: steps.softmax([1.0]), "x", ArgumentTypeError),
        (lambda: steps.weighted_values(filled(1, 4, 3, 5), filled(1, 2, 6, 4)), "v", ArgumentError),
        (lambda: steps.weighted_values(filled(1, 4, 3, 5), filled(1, 3, 5, 4)), "v", ArgumentError),
        (lambda: steps.weighted_values(filled(3, 5), filled(1, 3, 5, 4)), "p", ArgumentError),
        (lambda: steps.scale(filled(3), float("inf")), "factor", ArgumentError),
        (lambda: steps.scale(filled(3), None), "factor", ArgumentTypeError),
        (lambda: steps.scale(filled(3, dtype=I32), 2.0), "x", ArgumentTypeError),
        (lambda: steps.repeat_kv(filled(3, 4, 5), 2), "x", ArgumentError),
        (lambda: steps.repeat_kv(filled(1, 3, 4, 5), 0), "n_rep", ArgumentError),
        (lambda: steps.repeat_kv(filled(1, 3, 4, 5), 2.0), "n_rep", ArgumentTypeError),
    ],
)
def test_steps(call, argument, error):
    refused(call, argument=argument, error=error)


# Other kinds of arrays.


def test_a_tensor_that_requires_a_gradient():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    plain, trained = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4, requires_grad=True)
    for arrays, argument in (
        ((trained, plain, plain), "q"),
        ((plain, trained, plain), "k"),
        ((plain, plain, trained), "v"),
    ):
        assert "detach" in refused(flash_attention, *arrays, out=torch.zeros(1, 2, 3, 4), argument=argument)
    refused(flash_attention, plain, plain, plain, out=trained, argument="out")
    refused(steps.softmax, trained, out=torch.zeros(1, 2, 3, 4), argument="x")


class OnDevice:
    """What a GPU library's array looks like."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


INTERFACE = {"shape": (3,), "typestr": "<f4", "data": (256, False), "version": 3}


class WithDlpack(OnDevice):
    def __dlpack__(self, **options):
        raise AssertionError("the memory was asked for")

    def __dlpack_device__(self):
        return self.device_type, 0


@pytest.mark.parametrize(
    "array",
    [OnDevice(__cuda_array_interface__=INTERFACE), WithDlpack(device_type=2), WithDlpack(device_type=10)],
    ids=["array interface", "cuda", "rocm"],
)
def test_device_memory_needs_a_gpu(array, monkeypatch):
    def no_driver(kind):
        raise DeviceUnavailableError(f"{kind}: there is none")

    monkeypatch.setattr(devices, "gpu_devices", no_driver)
    with pytest.raises(TargetError, match=r"^x: .*cannot be reached here: copy it to host memory.*there is none"):
        steps.softmax(array)


def test_host_arrays_and_device_tensors_are_not_mixed():
    from rocmkern.runtime.manager import ResourceManager

    array = filled(1, 2, 3, 4)
    with ResourceManager("host") as manager:
        tensor = manager.from_numpy(array)
        message = refused(flash_attention, tensor, tensor, array, argument="v")
        assert "host memory" in message and "as q" in message
        refused(flash_attention, array, tensor, array, argument="k")
        refused(flash_attention, array, array, array, out=manager.from_numpy(array), argument="out")
        refused(steps.apply_mask, tensor, array, argument="mask")
        refused(merge_attention, tensor, filled(1, 2, 3), tensor, filled(1, 2, 3), argument="lse1")


def test_a_closed_tensor():
    from rocmkern.runtime.errors import ClosedError
    from rocmkern.runtime.manager import ResourceManager

    with ResourceManager("host") as manager:
        tensor = manager.from_numpy(filled(3))
        tensor.close()
        with pytest.raises(ClosedError):
            steps.softmax(tensor)


@pytest.mark.parametrize(
    ("arguments", "options", "argument", "error"),
    [
        ((filled(3, 5), filled(4, 5)), {}, "b", ArgumentError),
        ((filled(3, 5), filled(5, 4)), {"transpose_b": True}, "b", ArgumentError),
        ((filled(3, 5), filled(4)), {}, "b", ArgumentError),
        ((filled(2, 3, 5), filled(3, 5, 4)), {}, "b", ArgumentError),
        ((np.array(1, F32), filled(5, 4)), {}, "a", ArgumentError),
        ((filled(3, 5), np.array(1, F32)), {}, "b", ArgumentError),
        ((filled(3, 5), filled(5, 4, dtype=F16)), {}, "b", ArgumentTypeError),
        ((filled(3, 5, dtype=I32), filled(5, 4)), {}, "a", ArgumentTypeError),
        ((filled(3, 5).tolist(), filled(5, 4)), {}, "a", ArgumentTypeError),
        ((filled(3, 5), filled(5, 4)), {"transpose_b": 1}, "transpose_b", ArgumentTypeError),
        ((filled(3, 5), filled(5, 4)), {"bias": filled(3)}, "bias", ArgumentError),
        ((filled(3, 5), filled(5, 4)), {"bias": filled(1, 4)}, "bias", ArgumentError),
        ((filled(3, 5), filled(5, 4)), {"bias": filled(4, dtype=np.float64)}, "bias", ArgumentTypeError),
        ((filled(3, 5), filled(5, 4)), {"activation": "swish"}, "activation", ArgumentError),
        ((filled(3, 5), filled(5, 4)), {"activation": 1}, "activation", ArgumentTypeError),
        ((filled(3, 5), filled(5, 4)), {"out": filled(4, 3)}, "out", ArgumentError),
        ((filled(3, 5), filled(5, 4)), {"out": filled(3, 4, dtype=F16)}, "out", ArgumentTypeError),
        ((filled(3, 5), filled(5, 4)), {"stream": 0}, "stream", ArgumentError),
    ],
)
def test_products(arguments, options, argument, error):
    refused(matmul, *arguments, argument=argument, error=error, **options)


@pytest.mark.parametrize(
    ("arguments", "options", "argument", "error"),
    [
        ((filled(3, 5), filled(5, 4)), {}, "weight", ArgumentError),
        ((filled(3, 5), filled(2, 4, 5)), {}, "weight", ArgumentError),
        ((filled(3, 5), filled(4, 5), filled(5)), {}, "bias", ArgumentError),
        ((filled(3, 5), filled(4, 5), None, "tanh"), {}, "activation", ArgumentError),
        ((filled(3, 5), filled(4, 5, dtype=F16)), {}, "weight", ArgumentTypeError),
        ((np.array(1, F32), filled(4, 5)), {}, "x", ArgumentError),
    ],
)
def test_linear_layers(arguments, options, argument, error):
    refused(linear, *arguments, argument=argument, error=error, **options)


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"w_gate": filled(7, 5)}, "w_gate", ArgumentError),
        ({"w_gate": filled(6, 4)}, "w_gate", ArgumentError),
        ({"w_up": filled(6, 4)}, "w_up", ArgumentError),
        ({"w_up": None}, "w_up", ArgumentTypeError),
        ({"w_down": filled(3, 7)}, "w_down", ArgumentError),
        ({"w_down": filled(3, 6, dtype=F16)}, "w_down", ArgumentTypeError),
        ({"b_gate": filled(5)}, "b_gate", ArgumentError),
        ({"b_gate": filled(6), "w_gate": None}, "b_gate", ArgumentError),
        ({"b_up": filled(5)}, "b_up", ArgumentError),
        ({"b_down": filled(6)}, "b_down", ArgumentError),
        ({"activation": "swiglu"}, "activation", ArgumentError),
        ({"out": filled(2, 5)}, "out", ArgumentError),
    ],
)
def test_mlps(changes, argument, error):
    good = {"x": filled(2, 5), "w_gate": filled(6, 5), "w_up": filled(6, 5), "w_down": filled(3, 6)}
    refused(mlp, argument=argument, error=error, **{**good, **changes})
