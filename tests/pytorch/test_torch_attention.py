"""`rocmkern.torch.scaled_dot_product_attention` against PyTorch's: the same meaning, and errors against float64."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional as F  # noqa: E402

import rocmkern  # noqa: E402
from rocmkern import targets  # noqa: E402
from rocmkern.runtime.errors import ArgumentError  # noqa: E402
from rocmkern.torch import scaled_dot_product_attention as attention  # noqa: E402

DTYPES = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def interpreted():
    with targets.using("python"):
        yield


def drawn(seed):
    """Arguments, by position and by name."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    leading = rng.choice([(), (), (2,), (2,), (2, 3)])
    rank = 2 + len(leading) + 1
    kv_heads, group = rng.choice([(1, 1), (2, 1), (2, 3)])
    queries, keys = rng.choice([1, 3, 17]), rng.choice([1, 5, 17, 40])
    dim, value_dim = rng.choice([4, 16, 24]), rng.choice([4, 16, 24])
    dtype = rng.choice(list(DTYPES))

    def normal(*shape):
        shape = (*leading, *shape)
        if rng.random() < 0.3:  # not contiguous
            return torch.randn(*shape[:-2], shape[-1], shape[-2], generator=generator).mT.to(dtype)
        return torch.randn(shape, generator=generator).to(dtype)

    args = normal(kv_heads * group, queries, dim), normal(kv_heads, keys, dim), normal(kv_heads, keys, value_dim)
    options = {"enable_gqa": group > 1, "is_causal": rng.random() < 0.4}
    if rng.random() < 0.5:
        options["scale"] = rng.uniform(0.05, 0.5)
    kind = rng.choice([None, "bool", "bool", "float"])
    if kind is not None and not options["is_causal"]:
        shape = [*leading, kv_heads * group, queries, keys][rng.randrange(rank - 2 + 1) :]
        shape = [n if rng.random() < 0.7 else 1 for n in shape]
        numbers = torch.randn(shape, generator=generator)
        options["attn_mask"] = numbers > -0.5 if kind == "bool" else numbers.to(dtype)
    return args, options


def exact(args, options):
    """The definition, in float64."""
    q, k, v = (x.double() for x in args)
    if options["enable_gqa"]:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * options.get("scale", 1 / math.sqrt(q.shape[-1]))
    mask = options.get("attn_mask")
    if options["is_causal"]:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


@pytest.mark.parametrize("seed", range(40))
def test_as_the_definition_and_as_pytorch(seed):
    args, options = drawn(seed)
    wanted = exact(args, options)
    got, theirs = attention(*args, **options), F.scaled_dot_product_attention(*args, **options)
    assert (got.shape, got.dtype) == (theirs.shape, theirs.dtype)
    ours_off, theirs_off = ((x.double() - wanted).abs().max().item() for x in (got, theirs))
    unit = DTYPES[got.dtype] * max(1.0, wanted.abs().max().item())
    assert ours_off <= max(2 * theirs_off, unit), (ours_off, theirs_off)


@pytest.mark.parametrize("seed", range(40, 70))
def test_gradients_are_as_exact_as_pytorchs(seed):
    args, options = drawn(seed)
    mask = options.get("attn_mask")
    learned = mask is not None and mask.is_floating_point() and args[0].dtype == torch.float32
    tensors = [*args, mask] if learned else [*args]
    found = []
    for function, dtype in ((exact, torch.float64), (attention, None), (F.scaled_dot_product_attention, None)):
        given = [x.detach().to(dtype).requires_grad_() for x in tensors]
        asked = options | {"attn_mask": given[3]} if learned else options
        out = exact(given[:3], asked) if function is exact else function(*given[:3], **asked)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
        found.append(torch.autograd.grad(out, given, weights.to(args[0].dtype).to(out.dtype)))
    for wanted, ours, theirs, x in zip(*found, tensors, strict=True):
        assert (ours.shape, ours.dtype) == (x.shape, x.dtype)
        ours_off, theirs_off = ((g.double() - wanted).abs().max().item() for g in (ours, theirs))
        unit = 4 * DTYPES[x.dtype] * max(1.0, wanted.abs().max().item())
        assert ours_off <= max(2 * theirs_off, unit), (ours_off, theirs_off)


@pytest.mark.parametrize("of", [torch.bool, torch.float32])
def test_rows_that_see_nothing(of):
    q, k, v = torch.randn(3, 2, 2, 4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    mask = mask if of == torch.bool else torch.zeros(4, 4).masked_fill(~mask, -math.inf)
    got, theirs = attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(got[..., 2, :], theirs[..., 2, :]) and (got[..., 2, :] == 0).all()
    torch.testing.assert_close(got, theirs)


@pytest.mark.parametrize(
    "shapes",
    [
        [(4, 8), (6, 8), (6, 5)],
        [(4, 8), (2, 6, 8), (6, 5)],
        [(2, 4, 8), (3, 1, 6, 8), (1, 1, 6, 5)],
        [(2, 3, 2, 4, 8), (1, 3, 1, 6, 8), (2, 1, 1, 6, 5)],
        [(3, 1, 4, 8), (1, 2, 6, 8), (3, 2, 6, 5)],
        [(0, 2, 4, 8), (0, 2, 6, 8), (0, 2, 6, 5)],
        [(1, 2, 0, 8), (1, 2, 6, 8), (1, 2, 6, 5)],
        [(1, 2, 4, 8), (1, 2, 0, 8), (1, 2, 0, 5)],
    ],
    ids=str,
)
def test_leading_axes_broadcast(shapes):
    q, k, v = map(torch.randn, shapes)
    if len(shapes[1]) == 3 and len(shapes[2]) == 2:
        v = v.expand(2, 6, 5)
    torch.testing.assert_close(attention(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_a_mask_and_causal_together():
    q, k, v = torch.randn(3, 2, 2, 5, 8)
    mask = torch.rand(5, 5) > 0.3
    both = F.scaled_dot_product_attention(q, k, v, mask & torch.ones(5, 5, dtype=torch.bool).tril())
    torch.testing.assert_close(attention(q, k, v, mask, is_causal=True), both)


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("dropout_p", {"dropout_p": 0.1}),
        ("query", {"query": torch.ones(3)}),
        ("query", {"query": torch.ones(1, 4, 3, 8, dtype=torch.float64)}),
        ("value", {"key": torch.ones(1, 2, 5, 8)}),
        ("key", {"key": torch.ones(1, 4, 5, 8).half()}),
        ("key", {"key": torch.ones(1, 3, 5, 8), "value": torch.ones(1, 3, 5, 8), "enable_gqa": True}),
        ("key", {"key": torch.ones(1, 2, 5, 8), "value": torch.ones(1, 2, 5, 8)}),
        ("value", {"value": torch.ones(1, 4, 6, 8)}),
        ("value", {"value": None}),
        ("query", {"query": torch.ones(2, 4, 3, 8), "key": torch.ones(3, 4, 5, 8)}),
        ("attn_mask", {"attn_mask": torch.ones(2, 5, dtype=torch.bool)}),
        ("attn_mask", {"attn_mask": torch.ones(3, 5, dtype=torch.int32)}),
        ("attn_mask", {"attn_mask": [True]}),
    ],
)
def test_what_is_refused(argument, change):
    given = {"query": torch.ones(1, 4, 3, 8), "key": torch.ones(1, 4, 5, 8), "value": torch.ones(1, 4, 5, 8)} | change
    with pytest.raises(ArgumentError) as caught:
        attention(**given)
    assert caught.value.argument == argument


def test_a_model_of_pytorchs_takes_it(monkeypatch):
    layer = torch.nn.TransformerDecoderLayer(16, 2, 32, batch_first=True).eval()
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 3, 16)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad():
        wanted = layer(x, memory, tgt_mask=mask)
        monkeypatch.setattr(F, "scaled_dot_product_attention", attention)
        torch.testing.assert_close(layer(x, memory, tgt_mask=mask), wanted)


def test_in_one_graph():
    def attend(q, k, mask):
        return attention(q, k, k, mask, enable_gqa=True) + attention(q, k, k, is_causal=True, enable_gqa=True)

    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch in (2, 3):
        q, k, mask = torch.randn(batch, 4, 5, 8), torch.randn(batch, 2, 7, 8), torch.rand(batch, 1, 1, 7) > 0.3
        torch.testing.assert_close(compiled(q, k, mask), attend(q, k, mask))


@pytest.mark.parametrize("lengths", [(6, 6), (4, 7)])
@pytest.mark.parametrize("kind", ["causal_upper_left", "causal_lower_right"])
def test_a_causal_bias_of_pytorch_says_how_queries_and_keys_are_aligned(kind, lengths):
    from torch.nn.attention import bias

    q, k, v = torch.randn(1, 2, lengths[0], 8), *torch.randn(2, 1, 2, lengths[1], 8)
    mask = getattr(bias, kind)(*lengths)
    assert torch.allclose(attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask), atol=2e-6)
    with pytest.raises(ArgumentError, match="CausalBias"):
        attention(q, k, v, getattr(bias, kind)(3, 9))
    with pytest.raises(ArgumentError, match="CausalBias"):
        attention(q, k, v, mask, is_causal=True)
    with pytest.raises(ArgumentError, match="CausalBias"):
        rocmkern.flash_attention(q, k, v, bias=mask)
