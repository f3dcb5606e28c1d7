"""Gradients of the operators on a card: PyTorch's checks of them, float64 beside them, and the same bits every time.

On a machine with a card that PyTorch and this library reach::

    pytest -n 8 tests/gate/test_torch_gradients.py

Most of the time is that of compiling.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import rocmkern  # noqa: E402
import rocmkern.torch  # noqa: E402

sys.path.append(str(Path(__file__).parents[1] / "pytorch"))
from operator_calls import DIFFERENTIABLE, OPERATORS, overload_of, with_gradients  # noqa: E402

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no card")

F = torch.nn.functional
HALF = torch.bfloat16
ROWS, WIDTH = 130, 192
Q, K = (2, 4, 130, 64), (2, 2, 150, 64)
KEEPS = torch.arange(150) % 7 > 0
INDICES = torch.arange(300).reshape(2, 150) * 7 % 11
LABELS = torch.where(torch.arange(ROWS) % 5 > 0, torch.arange(ROWS) * 13 % 500, -100)


def attention(q, k, v, visible=None, bias=None):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = scores if bias is None else scores + bias
    scores = scores if visible is None else scores.masked_fill(~visible.to(q.device), -torch.inf)
    return scores.softmax(-1) @ v


def turned(x):
    """By positions, halves of a head beside each other; base 10000."""
    frequencies = 1e4 ** -(torch.arange(0, 64, 2, dtype=torch.float64, device=x.device) / 64)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    cos, sin = (table.to(x.dtype) for table in (angles.cos(), angles.sin()))
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def merged(o1, lse1, o2, lse2):
    lse = torch.logaddexp(lse1, lse2)
    return sum((part - lse).exp()[..., None].to(o1.dtype) * o for o, part in ((o1, lse1), (o2, lse2))), lse


def loss(x, weight, bias):
    return F.cross_entropy((F.linear(x, weight, bias)).to(torch.promote_types(x.dtype, torch.float32)), labels(x))


def labels(x):
    return LABELS.to(x.device)


def causal(q, k):
    return torch.ones(q, k, dtype=torch.bool).tril(k - q)


def formulas():
    """By the name of an operator: a call of it, the same in PyTorch, and the shapes of its tensors."""
    ours, rows, weight = rocmkern, (ROWS, WIDTH), (96, WIDTH)
    scores = (*Q[:3], K[2])
    steps = {"layout": "bhsd"}
    return {
        "add_residual": (ours.add_residual, torch.add, [rows, rows]),
        "apply_mask": (
            lambda s, m: ours.apply_mask(s, m).clamp(min=-9),
            lambda s, m: (s + m).clamp(min=-9),
            [scores, scores[2:]],
        ),
        "clamp": (lambda x: ours.clamp(x, -0.5, 0.7), lambda x: x.clamp(-0.5, 0.7), [rows]),
        "decode_attention": (
            lambda q, k, v: ours.decode_attention(q, k, v, causal=True, num_splits=3),
            lambda q, k, v: attention(q, k, v, causal(2, 150)),
            [(2, 4, 2, 64), K, K],
        ),
        "embedding": (
            lambda t: ours.embedding(t, INDICES.to(t.device)),
            lambda t: F.embedding(INDICES.to(t.device), t),
            [(11, WIDTH)],
        ),
        "flash_attention": (
            lambda q, k, v: ours.flash_attention(q, k, v, causal=True, window=(70, None)),
            lambda q, k, v: attention(q, k, v, causal(130, 150) & causal(130, 150).triu(20 - 70)),
            [Q, K, K],
        ),
        "flash_attention of biases": (
            lambda q, k, v, b: ours.flash_attention(q, k, v, bias=b, mask=KEEPS.to(q.device)),
            lambda q, k, v, b: attention(q, k, v, KEEPS, b),
            [Q, K, K, (4, 1, 150)],
        ),
        "geglu": (ours.geglu, lambda a, b: F.gelu(a) * b, [rows, rows]),
        "layer_norm": (ours.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), [rows, rows[1:], rows[1:]]),
        "linear": (
            lambda x, w, b: ours.linear(x, w, b, activation="silu"),
            lambda x, w, b: F.silu(F.linear(x, w, b)),
            [rows, weight, weight[:1]],
        ),
        "linear_cross_entropy": (
            lambda x, w, b: ours.linear_cross_entropy(x, w, labels(x), bias=b)[0],
            loss,
            [rows, (500, WIDTH), (500,)],
        ),
        "matmul": (ours.matmul, torch.matmul, [(3, 70, 96), (3, 96, 80)]),
        "merge_attention": (
            lambda o1, lse1, o2, lse2: ours.merge_attention(o1, lse1.float(), o2, lse2.float()),
            merged,
            [Q, Q[:3], Q, Q[:3]],
        ),
        "mlp": (
            ours.mlp,
            lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d),
            [rows, weight, weight, (80, 96)],
        ),
        "qk_scores": (
            lambda q, k: ours.qk_scores(q, k, **steps),
            lambda q, k: q @ k.repeat_interleave(2, 1).mT * 64**-0.5,
            [Q, K],
        ),
        "repeat_kv": (lambda k: ours.repeat_kv(k, 2), lambda k: k.repeat_interleave(2, 1), [K]),
        "rms_norm": (ours.rms_norm, lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), [rows, rows[1:]]),
        "rms_norm of a sum": (
            lambda x, w, r: ours.rms_norm(x, w, residual=r),
            lambda x, w, r: (F.rms_norm(x + r, w.shape, w, 1e-6), x + r),
            [rows, rows[1:], rows],
        ),
        "rope": (
            lambda x: ours.rope(x, torch.arange(Q[2], device=x.device), layout="hsd"),
            turned,
            [Q],
        ),
        "scale": (lambda x: ours.scale(x, 0.3), lambda x: x * 0.3, [rows]),
        "softmax": (ours.softmax, lambda x: x.softmax(-1), [rows]),
        "swiglu": (ours.swiglu, lambda a, b: F.silu(a) * b, [rows, rows]),
        "transpose": (ours.transpose, lambda x: x.permute(2, 1, 0), [(3, 70, 96)]),
        "weighted_values": (
            lambda p, v: ours.weighted_values(p, v, **steps),
            lambda p, v: p @ v.repeat_interleave(2, 1),
            [scores, K],
        ),
    }


FORMULAS = formulas()
#: Weights that are blocks: the gradient of what comes in is that of `linear` with their numbers.
OTHERWISE = {"quantized_linear"}


def drawn(shapes, dtype, seed=0):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return [torch.randn(shape, device=DEVICE, generator=generator).to(dtype) for shape in shapes]


def gradients(call, tensors, dtype):
    """Those of tensors in a dtype, for fixed gradients of the results."""
    leaves = [x.to(dtype).requires_grad_() for x in tensors]
    results = call(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    cotangents = [x.to(r.dtype) for x, r in zip(drawn([r.shape for r in results], HALF, 1), results, strict=True)]
    return torch.autograd.grad(results, leaves, cotangents)


def test_every_operator_with_a_gradient_is_here():
    called = {name for name, _ in DIFFERENTIABLE}
    assert {name.partition(" ")[0] for name in FORMULAS} | OTHERWISE == called
    assert called <= set(OPERATORS)


@pytest.mark.parametrize("name", sorted({name for name, _ in DIFFERENTIABLE}))
def test_opcheck_with_gradients(name):
    given = next(given for called, given in DIFFERENTIABLE if called == name)
    there = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    overload, values = overload_of(name, with_gradients(name, there)[0])
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(overload.op, (), values, test_utils=checks)


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_against_float64(name, dtype):
    """No more than twice the error of PyTorch's gradient in the same dtype, apart from some roundings of the largest.

    PyTorch adds up float32 in another order: its error alone is as small as luck has it.
    """
    ours, theirs, shapes = FORMULAS[name]
    tensors = drawn(shapes, HALF)  # they are numbers of float32 too
    wanted = gradients(theirs, tensors, torch.float64)
    plain = gradients(theirs, tensors, dtype)
    for found, exact, other in zip(gradients(ours, tensors, dtype), wanted, plain, strict=True):
        assert found.dtype == dtype
        errors = [(x.double() - exact).abs().max().item() for x in (found, other)]
        rounding = torch.finfo(dtype).eps * exact.abs().max().item()
        assert errors[0] <= 2 * errors[1] + (4 if dtype == torch.float32 else 1) * rounding


@pytest.mark.parametrize("format", ["q8_0", "q4_0"])
def test_weights_that_are_blocks(format):
    weight, x = drawn([(96, WIDTH), (ROWS, WIDTH)], torch.float32)
    blocks = rocmkern.quantize(weight.cpu(), format).to(DEVICE)
    weight = rocmkern.dequantize(blocks, format).double()
    found, wanted = (
        gradients(call, [x], dtype)[0].double()
        for call, dtype in (
            (lambda x: rocmkern.quantized_linear(x, blocks, format), torch.float32),
            (lambda x: F.linear(x, weight), torch.float64),
        )
    )
    assert (found - wanted).abs().max() <= 1e-3 * wanted.abs().max()


@pytest.mark.parametrize("name", ["flash_attention", "flash_attention of biases", "decode_attention"])
def test_attention_gives_the_same_bits_each_time(name):
    call, _, shapes = FORMULAS[name]
    tensors = drawn(shapes, HALF)
    first = gradients(call, tensors, HALF)
    for _ in range(30):
        assert all(map(torch.equal, gradients(call, tensors, HALF), first))
