"""The operators of PyTorch against the public functions that they are, and against what PyTorch asks of an operator."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from operator_calls import CALLS, IDS, overload_of, results_of  # noqa: E402

import rocmkern  # noqa: E402
from rocmkern import targets  # noqa: E402
from rocmkern.calls.routing import OPERATIONS  # noqa: E402
from rocmkern.torch.operators import OPERATORS  # noqa: E402


@pytest.fixture(autouse=True)
def interpreted():
    """The kernels run as plain Python: nothing of this is about how they compute."""
    with targets.using("python"):
        yield


def with_out(name, given):
    """The call of an operation that writes to results which are there already."""
    results = results_of(getattr(rocmkern, name)(**given))
    overload, values = overload_of(name, {**given, "out": results[0]})
    empty = list(map(torch.empty_like, results))
    if OPERATORS[name].results.many:
        return overload, values | {"out": empty}
    return overload, values | dict(zip(overload.outs, empty, strict=True))


def test_every_public_operation_has_an_operator_and_is_called_here():
    public = set(OPERATIONS) & set(rocmkern.__all__)
    assert public == set(OPERATORS), "an entry of rocmkern/torch/results.py"
    assert public == {name for name, _ in CALLS}, "a call in tests/pytorch/operator_calls.py"
    called = {overload_of(name, given)[0].name for name, given in CALLS}
    assert called >= {o.name for op in OPERATORS.values() for (_, into), o in op.overloads.items() if not into}


@pytest.mark.parametrize(("name", "given"), CALLS, ids=IDS)
def test_an_operator_gives_what_the_function_gives(name, given):
    wanted = results_of(getattr(rocmkern, name)(**copy.deepcopy(given)))
    overload, values = overload_of(name, copy.deepcopy(given))
    got = overload.op(**values)
    if got is None:  # of `rope_append_kv` and `causal_mask`
        got = tuple(values[n] for n in ("key_cache", "value_cache", "out") if n in values)
    for one, other in zip(results_of(got), wanted, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize(("name", "given"), CALLS, ids=IDS)
def test_opcheck(name, given):
    overload, values = overload_of(name, given)
    torch.library.opcheck(overload.op, (), values)


@pytest.mark.parametrize(
    ("name", "given"), [call for call in CALLS if call[0] not in ("causal_mask", "rope_append_kv")],
    ids=[i for i in IDS if i.split("-")[1] not in ("causal_mask", "rope_append_kv")],
)  # fmt: skip
def test_opcheck_of_what_is_written_to_out(name, given):
    overload, values = with_out(name, given)
    torch.library.opcheck(overload.op, (), values)
    wanted = results_of(getattr(rocmkern, name)(**given))
    assert overload.op(**values) is None
    outs = values["out"] if OPERATORS[name].results.many else [values[out] for out in overload.outs]
    for out, result in zip(outs, wanted, strict=True):
        assert torch.equal(out, result)


@pytest.mark.parametrize(("name", "given"), CALLS, ids=IDS)
def test_fake_tensors_have_the_shapes_and_no_numbers(name, given):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    real = results_of(getattr(rocmkern, name)(**copy.deepcopy(given)))
    mode = FakeTensorMode()
    fake_given = {n: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    with mode:
        fake = results_of(getattr(rocmkern, name)(**fake_given))
    for one, other in zip(fake, real, strict=True):
        assert isinstance(one, FakeTensor)
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
