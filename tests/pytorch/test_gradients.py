"""Gradients of the operators, against the differences of the float64 references: they need no formula of their own."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from operator_calls import (  # noqa: E402
    DIFFERENTIABLE,
    DIFFERENTIABLE_IDS,
    formula_of,
    overload_of,
    results_of,
    with_gradients,
)

import rocmkern  # noqa: E402
import rocmkern.torch  # noqa: E402
from rocmkern import targets  # noqa: E402
from rocmkern.runtime.errors import ArgumentError  # noqa: E402
from rocmkern.torch.formulas import FORMULAS  # noqa: E402
from rocmkern.torch.operators import OPERATORS  # noqa: E402

#: Operations without a gradient, and why.
WITHOUT = {
    "causal_mask": "no argument is a tensor",
    "dequantize": "blocks are bytes",
    "dequantize_rms_norm": "blocks are bytes",
    "paged_attention": "caches of what was computed before",
    "quantize": "bytes are no floats",
    "rope_append_kv": "it writes to caches",
    "sample": "tokens are whole numbers",
}
GROUPS = 40
STEP = 1e-4


@pytest.fixture(autouse=True)
def interpreted():
    with targets.using("python"):
        yield


each_call = pytest.mark.parametrize(("name", "given"), DIFFERENTIABLE, ids=DIFFERENTIABLE_IDS)


def cotangents(results):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(r.shape, generator=generator).to(r.dtype) for r in results]


def gradients(results, asked):
    """Those of the tensors that ask, for the results that have some."""
    pairs = [(r, c) for r, c in zip(results, cotangents(results), strict=True) if r.requires_grad]
    return torch.autograd.grad([r for r, _ in pairs], list(asked.values()), [c for _, c in pairs])


def exactly(name, given):
    """The results of the reference, for tensors or arrays: in float64 all of them, so that nothing is rounded."""
    tensors = {n: x.detach() for n, x in given.items() if isinstance(x, torch.Tensor)}
    arrays = given | {n: (x.double() if x.is_floating_point() else x).numpy() for n, x in tensors.items()}
    return results_of(getattr(rocmkern.reference, name)(**arrays))


def change(cotangent, up, down):
    """Of the sum of a result, weighted; what is minus infinity stays that."""
    finite = np.isfinite(up)
    return (cotangent.double().numpy()[finite] * (up[finite] - down[finite])).sum()


def test_every_operation_has_a_gradient_or_a_reason():
    with_formula = {name.removeprefix("rocmkern::").partition(".")[0] for name in FORMULAS}
    forward = {name for name in OPERATORS if not name.endswith("_backward")}
    assert with_formula | set(WITHOUT) == forward
    assert not with_formula & set(WITHOUT)
    for name in with_formula:
        for (_, into), overload in OPERATORS[name].overloads.items():
            assert into != (overload.name in FORMULAS)


@each_call
def test_against_differences_of_the_reference(name, given):
    """Each element belongs to one of some groups, all elements of which are moved at once, by one or minus one."""
    full, asked = with_gradients(name, given)
    results = results_of(getattr(rocmkern, name)(**full))
    without = formula_of(name, given).without
    assert [r.requires_grad for r in results] == [place not in without for place in range(len(results))]
    of_results = [c if r.requires_grad else 0 * c for c, r in zip(cotangents(results), results, strict=True)]
    found = gradients(results, asked)
    rng = np.random.default_rng(3)
    for (argument, x), gradient in zip(asked.items(), found, strict=True):
        assert gradient.shape == x.shape and gradient.dtype == x.dtype
        at, exact_gradient = x.detach().double().numpy(), gradient.double().numpy()
        group, sign = rng.integers(0, GROUPS, at.shape), rng.choice([-1.0, 1.0], at.shape)
        for number in np.unique(group):
            along = sign * (group == number)
            moved = [exactly(name, {**full, argument: at + step * along}) for step in (STEP, -STEP)]
            wanted = sum(map(change, of_results, *moved)) / (2 * STEP)
            size = np.abs(exact_gradient[group == number]).sum() + np.abs(exact_gradient).mean()
            assert abs((exact_gradient * along).sum() - wanted) <= 2e-5 * size + 1e-6, (argument, number)


@each_call
def test_only_what_is_asked_for(name, given):
    """One argument at a time: the others get none, and the gradient is the same."""
    full, asked = with_gradients(name, given)
    results = results_of(getattr(rocmkern, name)(**full))
    together = gradients(results, asked)
    for (argument, x), wanted in zip(asked.items(), together, strict=True):
        alone = {**given, argument: x}
        results = results_of(getattr(rocmkern, name)(**alone))
        (found,) = gradients(results, {argument: x})
        assert torch.equal(found, wanted)


@each_call
def test_opcheck_with_gradients(name, given):
    full, _ = with_gradients(name, given)
    overload, values = overload_of(name, full)
    torch.library.opcheck(overload.op, (), values)


@each_call
def test_a_compiled_step_is_one_graph_and_gives_the_same(name, given):
    """Forward and backward of a program that is compiled as a whole: the operators are kept."""
    torch._dynamo.reset()
    full, asked = with_gradients(name, given)

    def step(full):
        results = results_of(getattr(rocmkern, name)(**full))
        return sum((c * r).sum() for c, r in zip(weights, results, strict=True))

    weights = cotangents(results_of(getattr(rocmkern, name)(**given)))
    wanted = torch.autograd.grad(step(full), list(asked.values()))
    got = torch.autograd.grad(torch.compile(step, backend="aot_eager", fullgraph=True)(full), list(asked.values()))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_operators_stay_in_the_graphs_of_both_ways():
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    graphs = {"forward": [], "backward": []}

    def keeping(way):
        def compiler(graph, inputs):
            graphs[way] += [str(node.target) for node in graph.graph.nodes if "rocmkern" in str(node.target)]
            return graph.forward

        return compiler

    backend = aot_autograd(fw_compiler=keeping("forward"), bw_compiler=keeping("backward"))
    gate, up = torch.randn(2, 3, 8).unbind(0)
    gate.requires_grad_()
    torch.compile(lambda x: rocmkern.swiglu(x * 2, up).sum(), backend=backend, fullgraph=True)(gate).backward()
    assert graphs == {"forward": ["rocmkern.swiglu.default"], "backward": ["rocmkern.swiglu_backward.default"]}


def test_inductor():
    gate, up = (torch.randn(3, 8, requires_grad=True) for _ in range(2))

    def step(gate, up):
        return (rocmkern.swiglu(gate * 2, up) + 1).sum()

    torch._dynamo.reset()
    wanted = torch.autograd.grad(step(gate, up), (gate, up))
    got = torch.autograd.grad(torch.compile(step, fullgraph=True)(gate, up), (gate, up))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


@each_call
def test_checkpointed(name, given):
    full, asked = with_gradients(name, given)
    names = list(asked)

    def call(*tensors):
        return getattr(rocmkern, name)(**{**full, **dict(zip(names, tensors, strict=True))})

    found = []
    for way in (call, lambda *tensors: torch.utils.checkpoint.checkpoint(call, *tensors, use_reentrant=False)):
        results = results_of(way(*asked.values()))
        found.append(gradients(results, asked))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_same_bits_each_time():
    for name, given in DIFFERENTIABLE:
        full, asked = with_gradients(name, given)
        found = []
        for _ in range(2):
            results = results_of(getattr(rocmkern, name)(**full))
            found.append(gradients(results, asked))
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other), name


def test_gradients_of_gradients_are_refused():
    gate, up = torch.randn(2, 3, 8, requires_grad=True).unbind(0)

    def twice(gate, up):
        (first,) = torch.autograd.grad(rocmkern.swiglu(gate, up).sum(), gate, create_graph=True)
        return first.sum()

    with pytest.raises(ArgumentError, match=r"gradients of gradients.*create_graph"):
        twice(gate, up)


def test_what_is_changed_in_between_is_an_error():
    x, residual = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    h = rocmkern.scale(x, 2.0)
    y = rocmkern.clamp(h, -1.0, 1.0)
    with torch.no_grad():
        rocmkern.add_residual(h, residual, out=h)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


KEPT = {
    "linear": (rocmkern.linear, (3, 8), (5, 8)),
    "matmul": (rocmkern.matmul, (2, 3, 8), (8, 5)),
    "qk_scores": (rocmkern.qk_scores, (1, 2, 3, 8), (1, 2, 5, 8)),
    "weighted_values": (rocmkern.weighted_values, (1, 2, 3, 8), (1, 2, 8, 5)),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_side_of_a_product_is_kept_for_the_gradient_of_the_other_alone(name):
    call, *shapes = KEPT[name]
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(shape, generator=generator) for shape in shapes]
    wanted = torch.autograd.grad(call(*[x.requires_grad_() for x in sides]).square().sum(), sides)
    for place in (0, 1):
        alone = [x.detach().requires_grad_(number == place) for number, x in enumerate(sides)]
        result, kept = what_is_kept(call, *alone)
        assert kept == {alone[1 - place].data_ptr()}
        assert torch.equal(torch.autograd.grad(result.square().sum(), alone[place])[0], wanted[place])


def test_with_an_activation_both_sides_of_a_product_are_kept():
    x, weight = torch.randn(3, 8), leaf(5, 8)
    _, kept = what_is_kept(rocmkern.linear, x.requires_grad_(), weight.detach(), activation="silu")
    assert kept == {x.data_ptr(), weight.data_ptr()}


def test_a_layer_of_quantized_weights_keeps_its_blocks_alone():
    x, bias = leaf(3, 64), leaf(5)
    blocks = rocmkern.quantize(torch.randn(5, 64), "q8_0")
    _, kept = what_is_kept(rocmkern.quantized_linear, x, blocks, "q8_0")
    assert kept == {blocks.data_ptr()}
    result, kept = what_is_kept(rocmkern.quantized_linear, x.detach(), blocks, "q8_0", bias)
    assert x.data_ptr() not in kept
    (found,) = torch.autograd.grad(result.sum(), bias)
    assert torch.equal(found, torch.full((5,), 3.0))


def what_is_kept(call, *args, **options):
    """The result of a call, and where what it keeps for its gradient lies, but for its own results."""
    kept = set()

    def keep(x):
        kept.add(x.data_ptr())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        result = call(*args, **options)
    return result, kept - {result.data_ptr()}


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


LABELS = np.array([1, 0, 4])
#: Calls with arrays and numbers of NumPy, and the same ones with PyTorch's and Python's.
OF_NUMPY = {
    "labels": (lambda x, n: rocmkern.linear_cross_entropy(x, torch.ones(5, 4), n)[0], LABELS, torch.from_numpy(LABELS)),
    "bias": (lambda x, n: rocmkern.linear(x, torch.ones(3, 4), n), np.ones(3, np.float32)[::-1], torch.ones(3)),
    "eps": (lambda x, n: rocmkern.rms_norm(x, torch.ones(4), n), np.float32(0.5), 0.5),
    "positions": (lambda x, n: rocmkern.rope(x[:, None], n), np.arange(3), torch.arange(3)),
    "window": (lambda x, n: rocmkern.flash_attention(x[None, None], x[None, None], x[None, None], window=n),
               (np.int64(1), 0), (1, 0)),
    "factor": (lambda x, n: rocmkern.rope(x[:, None], torch.arange(3), scaling=n),
               {"rope_type": "linear", "factor": np.float32(2)}, {"rope_type": "linear", "factor": 2.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NUMPY)
def test_constants_may_be_of_numpy(name):
    call, given, same = OF_NUMPY[name]
    x = leaf(3, 4)
    found = [torch.autograd.grad(call(x, value).sum(), x)[0] for value in (given, same)]
    assert torch.equal(*found)


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: rocmkern.rms_norm(x, torch.ones(4), torch.tensor(1e-6)), r"eps: got torch.Tensor; allowed: a finite"),
    (lambda x: rocmkern.linear_cross_entropy(x, torch.ones(5, 4), [1, 0, 4]), "target: got list; allowed: an array"),
    (lambda x: rocmkern.rope(x[:, None], torch.arange(3), scaling={"rope_type": "linear", "factor": float("inf")}),
     "scaling: got factor=inf"),
    (lambda x: rocmkern.rope(x[:, None], torch.arange(3), scaling={"rope_type": "linear", "factor": 2.0, 'a"b': 1}),
     "scaling: got 'a\"b'"),
    (lambda x: rocmkern.linear(np.ones((2, 4), np.float32), x), "x: got ndarray, beside weight, which requires a grad"),
    (lambda x: rocmkern.swiglu(x, x, out=torch.empty(3, 4)), "gate: got a tensor that requires.*no out="),
])  # fmt: skip
def test_what_is_wrong_is_named_as_without_gradients(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(leaf(3, 4))


def test_a_tensor_without_elements_beside_others_is_refused():
    weight = torch.nn.Parameter(torch.empty(5, 4, device="meta"))
    calls = {
        "weight": lambda: rocmkern.linear(torch.ones(3, 4), weight),
        "x": lambda: torch.ops.rocmkern.linear(torch.ones(3, 4, device="meta"), torch.ones(5, 4)),
        "indices": lambda: rocmkern.embedding(leaf(5, 4), torch.zeros(3, dtype=torch.long, device="meta")),
    }
    for name, call in calls.items():
        for mode in (torch.enable_grad(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16)):
            with mode, pytest.raises(ArgumentError, match=f"{name}: got a tensor on the meta device"):
                call()
    assert rocmkern.linear(torch.ones(3, 4, device="meta"), weight).is_meta


def test_incoming_gradients_may_be_lazy_negatives():
    x = leaf(3, 4)
    y = rocmkern.rms_norm(x, torch.ones(4))
    (found,) = torch.autograd.grad(torch.complex(torch.ones(3, 4), y).conj().imag.sum(), x, retain_graph=True)
    (exact,) = torch.autograd.grad(-y.sum(), x)
    torch.testing.assert_close(found, exact)


def test_batches_of_gradients_are_looped_over_or_refused():
    x, weight = leaf(3, 4), leaf(5, 4)
    (found,) = torch.autograd.grad(
        rocmkern.softmax(x), x, torch.eye(4).repeat(3, 1, 1).movedim(1, 0), is_grads_batched=True
    )
    exact = torch.stack([torch.autograd.grad(rocmkern.softmax(x), x, row.repeat(3, 1))[0] for row in torch.eye(4)])
    torch.testing.assert_close(found, exact)
    with pytest.raises(ArgumentError, match="dout: got a batch of gradients"):
        torch.autograd.grad(rocmkern.linear(x, weight), weight, torch.ones(2, 3, 5), is_grads_batched=True)


def test_forward_differentiation_of_a_parameter_is_refused_as_of_a_tensor():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.nn.Parameter(torch.ones(5, 4)), torch.ones(5, 4))
        with pytest.raises(ArgumentError, match="weight: got a dual tensor"):
            rocmkern.linear(torch.ones(3, 4), dual)


def test_what_is_written_to_out_has_none():
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(ArgumentError, match="requires a gradient"):
        rocmkern.scale(x, 2.0, out=torch.empty(3, 4))
    with pytest.raises(ArgumentError, match="requires a gradient"):
        rocmkern.scale(x, 2.0, out=x)
    with pytest.raises(ArgumentError, match="requires a gradient"):
        rocmkern.scale(torch.randn(3, 4), 2.0, out=x)


def test_transforms_of_functions_are_refused():
    with pytest.raises(ArgumentError, match=r"torch\.func"):
        torch.func.grad(lambda x: rocmkern.scale(x, 2.0).sum())(torch.randn(3))
