"""Operators of PyTorch on a card: compiled, in graphs of the device, under autocast, and what a call costs.

On a machine with a card that PyTorch and this library reach::

    pytest tests/gate/test_torch_operators.py
"""

from __future__ import annotations

import time

import pytest

import rocmkern

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

import rocmkern.torch  # noqa: E402

HALF = torch.float16


def layer(x, norm, weight, gate, up, down):
    """A layer without its residuals."""
    h = rocmkern.linear(rocmkern.rms_norm(x, norm), weight)
    q = h.view(x.shape[0], x.shape[1], 4, 64)
    h = rocmkern.flash_attention(q, q, q, layout="bshd", causal=True)
    return rocmkern.mlp(h.reshape(x.shape), gate, up, down)


def arguments(batch, dtype=HALF):
    generator = torch.Generator("cuda").manual_seed(batch)

    def normal(*shape):
        return torch.randn(shape, device="cuda", dtype=dtype, generator=generator) / 16

    return normal(batch, 128, 256), normal(256), *(normal(*s) for s in ((256, 256), (512, 256), (512, 256), (256, 512)))


@torch.no_grad()
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor(mode):
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(3):  # with "reduce-overhead" the second call is recorded, the third replayed
        given = arguments(2)
        torch.testing.assert_close(compiled(*given).clone(), layer(*given))


@torch.no_grad()
def test_a_graph_of_the_device():
    given = arguments(2)
    wanted = layer(*given)
    torch.ops.rocmkern.softmax(given[0])
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            layer(*given)
    with torch.cuda.graph(graph, stream=stream):
        out = torch.ops.rocmkern.mlp(given[0], given[3], given[4], given[5])
    graph.replay()
    torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(out, rocmkern.mlp(given[0], given[3], given[4], given[5]))
    torch.testing.assert_close(layer(*given), wanted)


@torch.no_grad()
def test_autocast_as_pytorch():
    x, norm, weight, *_ = arguments(2, torch.float32)
    functional = torch.nn.functional
    with torch.autocast("cuda", HALF):
        pairs = [
            (rocmkern.linear(x, weight), functional.linear(x, weight)),
            (rocmkern.rms_norm(x.half(), norm), functional.rms_norm(x.half(), (256,), norm)),
            (rocmkern.layer_norm(x.half(), norm), functional.layer_norm(x.half(), (256,), norm)),
            (rocmkern.softmax(x.half()), torch.softmax(x.half(), -1)),
        ]
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_attention_as_pytorch():
    q, k, v = torch.randn(3, 2, 8, 200, 64, device="cuda", dtype=HALF)
    mask = torch.rand(2, 1, 1, 200, device="cuda") > 0.3
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
        ours = rocmkern.torch.scaled_dot_product_attention(q, k, v, **options)
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_what_a_call_through_the_operator_costs(capsys):
    """Prints host times; what they may be is for the reader."""
    x = arguments(1)[0]
    ways = {"function": rocmkern.softmax, "operator": torch.ops.rocmkern.softmax.default}
    for name, way in ways.items():
        for _ in range(100):
            way(x)
        torch.cuda.current_stream().synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            way(x)
        took = (time.perf_counter() - begin) / 200
        torch.cuda.current_stream().synchronize()
        with capsys.disabled():
            print(f"\nsoftmax, {name}: {took * 1e6:.1f} us a call")
