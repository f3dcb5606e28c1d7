"""Public functions inside `torch.compile` and `torch.export`: one graph, for all batch sizes, with eager's results."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from operator_calls import CALLS, IDS, results_of  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

import rocmkern  # noqa: E402
from rocmkern import targets  # noqa: E402
from rocmkern.runtime.errors import ArgumentError  # noqa: E402


@pytest.fixture(autouse=True)
def interpreted():
    with targets.using("python"):
        yield


@pytest.fixture(autouse=True)
def forgotten():
    """PyTorch has compiled nothing yet."""
    torch._dynamo.reset()
    counters.clear()


class Layer(torch.nn.Module):
    """A layer of a decoder, from public functions."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        made = {"qkv": (3 * width, width), "o": (width, width), "gate": (48, width), "up": (48, width)}
        made |= {"down": (width, 48), "first": (width,), "second": (width,)}
        for name, shape in made.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5))

    def forward(self, x, positions):
        batch, length, width = x.shape
        h = rocmkern.linear(rocmkern.rms_norm(x, self.first), self.qkv)
        q, k, v = h.view(batch, length, 3, self.heads, width // self.heads).unbind(2)
        q, k = rocmkern.rope(q, positions), rocmkern.rope(k, positions)
        h = rocmkern.flash_attention(q, k, v, layout="bshd", causal=True)
        x = rocmkern.add_residual(x, rocmkern.linear(h.reshape(batch, length, width), self.o))
        return x + rocmkern.mlp(rocmkern.rms_norm(x, self.second), self.gate, self.up, self.down)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([Layer(32, 4), Layer(32, 4)])

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)
        for layer in self.layers:
            x = layer(x, positions)
        return x


def counting():
    """A backend that runs the graph as it is, and the graphs that it got."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return backend, graphs


def operators_in(graph):
    return [node.target.name() for node in graph.graph.nodes if str(node.target).startswith("rocmkern.")]


@torch.no_grad()
def test_a_model_is_one_graph_for_all_batch_sizes():
    model, (backend, graphs) = Model(), counting()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for batch in range(2, 9):
        x = torch.randn(batch, 3, 32)
        torch.testing.assert_close(compiled(x), model(x))
    (graph,) = graphs
    names = ["linear", "rope", "rope", "flash_attention", "linear", "add_residual", "rms_norm", "mlp"]
    assert operators_in(graph) == [f"rocmkern::{name}" for name in ["rms_norm", *names] * 2]


@torch.no_grad()
def test_a_model_compiles_once_for_the_backends_of_aot():
    model = Model().layers[0]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch in (2, 3, 8):
        x, positions = torch.randn(batch, 3, 32), torch.arange(3)
        torch.testing.assert_close(compiled(x, positions), model(x, positions))
    assert counters["stats"]["unique_graphs"] == 1


@torch.no_grad()
def test_inductor_keeps_operators():
    def layer(x, weight, norm):
        return torch.relu(rocmkern.linear(rocmkern.rms_norm(x * 2, norm), weight)) + 1

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    weight, norm = torch.randn(8, 4), torch.randn(4)
    for batch in (2, 5):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(compiled(x, weight, norm), layer(x, weight, norm))
    assert counters["stats"]["unique_graphs"] == 1


@torch.no_grad()
def test_without_a_word_on_dynamic_shapes_there_is_one_more_graph():
    model, (backend, graphs) = Model(), counting()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for batch in range(2, 9):
        compiled(torch.randn(batch, 3, 32))
    assert len(graphs) == 2


@torch.no_grad()
def test_an_exported_model_is_saved_and_runs():
    model, file = Model(), io.BytesIO()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (torch.randn(2, 5, 32),), dynamic_shapes=({0: batch},))
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for size in (2, 7):
        x = torch.randn(size, 5, 32)
        torch.testing.assert_close(loaded(x), model(x))


class Within(torch.nn.Module):
    def forward(self, q, k):
        with rocmkern.batch_invariant():
            return rocmkern.decode_attention(q, k, k)


def test_a_block_is_around_a_graph_and_not_in_it():
    q, k = torch.randn(1, 4, 1, 16), torch.randn(1, 4, 9, 16)
    with pytest.raises(ArgumentError, match="exported graph"):
        torch.export.export(Within(), (q, k), strict=False)
    assert torch.equal(torch.compile(Within(), backend="eager")(q, k), Within()(q, k))
    plain = torch.compile(lambda q: rocmkern.decode_attention(q, k, k, num_splits=4), fullgraph=True, backend="eager")
    plain(q)
    with rocmkern.batch_invariant(), pytest.raises(ArgumentError, match="num_splits"):
        plain(q)


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [None, True], ids=["", "dynamic"])
@pytest.mark.parametrize(("name", "given"), CALLS, ids=IDS)
def test_every_call_is_one_graph(name, given, dynamic):
    """With ``dynamic=True`` numbers are symbols, of floats too."""
    backend, graphs = counting()
    compiled = torch.compile(
        lambda given: getattr(rocmkern, name)(**given), backend=backend, fullgraph=True, dynamic=dynamic
    )
    wanted = results_of(getattr(rocmkern, name)(**copy.deepcopy(given)))
    got = results_of(compiled(copy.deepcopy(given)))
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)
    assert len(graphs) == 1 and len(operators_in(graphs[0])) == 1


def test_results_written_in_place():
    def change(x):
        y = x * 2
        assert rocmkern.softmax(x, out=y) is y
        rocmkern.scale(y, 3.0, out=y)
        pair = torch.empty_like(x), torch.empty_like(x)
        norm, added = rocmkern.rms_norm(y, x[0], residual=x, out=pair)
        q = x[None, None]
        attended, lse = rocmkern.flash_attention(q, q, q, out=torch.empty_like(q), return_lse=True)
        return y, norm, added, attended, lse

    x = torch.randn(3, 4)
    for got, wanted in zip(torch.compile(change, backend="aot_eager", fullgraph=True)(x), change(x), strict=True):
        torch.testing.assert_close(got, wanted)


def test_an_operation_itself_may_be_compiled():
    x = torch.randn(3, 4)
    compiled = torch.compile(rocmkern.softmax, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1))


def test_what_no_graph_can_hold_ends_it():
    def two(x):
        mask = rocmkern.causal_mask(3, 4)  # a NumPy array
        return x + 1, mask, rocmkern.softmax(np.ones((1, 2), np.float32))

    x = torch.randn(3, 4)
    y, mask, half = torch.compile(two, backend="eager")(x)
    torch.testing.assert_close(y, x + 1)
    assert mask[0, 3] == -np.inf and (half == 0.5).all()
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"NumPy arrays.*KVCache.*checkpoint"):
        torch.compile(two, backend="eager", fullgraph=True)(x)


def test_a_wrong_argument_is_the_error_that_it_is_outside():
    compiled = torch.compile(lambda x: rocmkern.softmax(x, dim=1), backend="eager")
    with pytest.raises(ArgumentError, match="softmax has no parameter of this name"):
        compiled(torch.randn(3, 4))
    compiled = torch.compile(lambda x, w: rocmkern.linear(x, w), backend="eager")
    with pytest.raises(ArgumentError, match="weight: got 3 in shape"):
        compiled(torch.randn(3, 4), torch.randn(5, 3))


# Gradients


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_gradient_is_an_error_that_names_the_argument(backend, fullgraph):
    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 4)

    def step(x):
        return rocmkern.linear(x * 2, layer.weight, out=torch.empty(2, 3)) + 1

    compiled = torch.compile(step, backend=backend, fullgraph=fullgraph)
    with pytest.raises(ArgumentError, match=r"weight: .*requires a gradient.*no_grad") as caught:
        compiled(x)
    assert caught.value.argument == "weight"
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), x * 2 @ layer.weight.T + 1)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), x * 2 @ layer.weight.T + 1)


def test_gradients_off_inside_a_graph():
    weight = torch.randn(3, 4, requires_grad=True)

    def mixed(x):
        with torch.no_grad():
            h = rocmkern.linear(x, weight)
        return h @ weight

    x = torch.randn(2, 4)
    got = torch.compile(mixed, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(got, x @ weight.T @ weight)
    got.sum().backward()
    torch.testing.assert_close(weight.grad, (x @ weight.T).detach().sum(0)[:, None].expand(3, 4))


@pytest.mark.parametrize("options", [
    {"dropout_p": 0.1}, {"attn_mask": torch.ones(4, 4, dtype=torch.int64)}, {"attn_mask": torch.ones(3, 4)},
], ids=["dropout", "dtype of the mask", "shape of the mask"])  # fmt: skip
def test_what_is_wrong_with_an_argument_of_attention_is_said_in_a_graph_too(options):
    from rocmkern.torch import scaled_dot_product_attention

    def attend(q):
        return scaled_dot_product_attention(q, q, q, **options)

    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ArgumentError) as plain:
        attend(q)
    with pytest.raises(ArgumentError) as traced:
        torch.compile(attend, backend="aot_eager", fullgraph=True)(q)
    assert (traced.value.argument, traced.value.allowed) == (plain.value.argument, plain.value.allowed)
