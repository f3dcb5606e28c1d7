"""flash-attn's functions over dense, stacked and packed arrays, against the formula in float64."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest
from attention_formula import attention

import rocmkern
from rocmkern import flash_attn
from rocmkern.flash_attn.options import unstacked
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

BOUNDS = {np.float32: 2e-5, np.float16: 4e-3, ml_dtypes.bfloat16: 3e-2}
PARAMETERS = [
    "dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic",
    "return_attn_probs",
]  # fmt: skip
DEFAULTS = [0.0, None, False, (-1, -1), 0.0, None, False, False]
VARLEN = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
SIGNATURES = {
    "flash_attn_func": ["q", "k", "v", *PARAMETERS],
    "flash_attn_kvpacked_func": ["q", "kv", *PARAMETERS],
    "flash_attn_qkvpacked_func": ["qkv", *PARAMETERS],
    "flash_attn_varlen_func": ["q", "k", "v", *VARLEN, *PARAMETERS, "block_table"],
    "flash_attn_varlen_kvpacked_func": ["q", "kv", *VARLEN, *PARAMETERS],
    "flash_attn_varlen_qkvpacked_func": ["qkv", "cu_seqlens", "max_seqlen", *PARAMETERS],
    "flash_attn_with_kvcache": [
        "q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx",
        "cache_leftpad", "block_table", "softmax_scale", "causal", "window_size", "softcap", "rotary_interleaved",
        "alibi_slopes", "num_splits", "return_softmax_lse",
    ],
}  # fmt: skip
DEFAULTS_OF_THE_CACHE = [None] * 9 + [False, (-1, -1), 0.0, True, None, 0, False]


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_have_flash_attns_names_order_and_defaults(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters
    assert list(parameters) == SIGNATURES[name] and name in flash_attn.__all__
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
    if "dropout_p" in parameters:
        assert [parameters[each].default for each in PARAMETERS] == DEFAULTS
    else:
        assert [p.default for p in parameters.values()][3:] == DEFAULTS_OF_THE_CACHE


def drawn(seed):
    """A function, lengths of each sequence, heads, element type and options."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(["", "kvpacked", "qkvpacked", "varlen", "varlen_kvpacked", "varlen_qkvpacked", "pages"]))
    kv_heads = int(rng.choice([1, 2]))
    heads = kv_heads if kind.endswith("qkvpacked") else kv_heads * int(rng.choice([1, 3]))
    count = int(rng.integers(1, 4))
    lens_q, lens_k = rng.integers(1, 40, (2, count))
    if "varlen" not in kind and kind != "pages":
        lens_q[:], lens_k[:] = lens_q[0], lens_k[0]
    if kind.endswith("qkvpacked"):
        lens_k = lens_q
    slopes = rng.choice([0, 1, 2])
    options = {
        "causal": bool(rng.integers(2)),
        "window_size": [(-1, -1), (-1, -1), (7, 3), (-1, 2), (5, -1), (0, 0)][int(rng.integers(6))],
        "softcap": float(rng.choice([0.0, 0.0, 4.0])),
        "softmax_scale": [None, 0.3][int(rng.integers(2))],
        "alibi_slopes": None
        if slopes == 0
        else rng.random((heads,) if slopes == 1 else (count, heads)).astype(np.float32),
        "deterministic": bool(rng.integers(2)),
    }
    dtype = [np.float32, np.float16, ml_dtypes.bfloat16][int(rng.integers(3))]
    return rng, kind, heads, kv_heads, lens_q, lens_k, int(rng.choice([8, 19, 64])), dtype, options


def in_pages(rng, k, v, ends):
    """The rows of sequences that end there in pages of a drawn size, NaN elsewhere, and their table."""
    size, lens = int(rng.choice([1, 6, 16, 300])), np.diff(ends)
    needed = -(-lens // size)
    table, order = np.full((len(lens), needed.max() + 1), -7, np.int32), rng.permutation(needed.sum() + 1)
    caches = np.full((2, needed.sum() + 1, size, *k.shape[1:]), np.nan).astype(k.dtype)
    for n, count in enumerate(needed):
        table[n, :count], order = order[:count], order[count:]
        for j in range(lens[n]):
            caches[:, table[n, j // size], j % size] = k[ends[n] + j], v[ends[n] + j]
    return caches[0], caches[1], table


def called(rng, kind, q, k, v, lens_q, lens_k, bring, options):
    """Result and lse of the function of that kind for packed rows."""
    options = {name: bring(x) for name, x in options.items()} | {"return_attn_probs": True}
    packed, count = "varlen" in kind or kind == "pages", len(lens_q)
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(x)]).astype(np.int32) for x in (lens_q, lens_k))
    lengths = (bring(cu_q), bring(cu_k), int(max(lens_q)), int(max(lens_k)))
    if kind == "pages":
        keys, values, table = in_pages(rng, k, v, cu_k)
        arrays = (bring(x) for x in (q, keys, values))
        return flash_attn.flash_attn_varlen_func(*arrays, *lengths, block_table=bring(table), **options)
    if not packed:
        q, k, v = (x.reshape(count, -1, *x.shape[1:]) for x in (q, k, v))
        lengths = ()
    axis = 1 if packed else 2
    arrays = [q, k, v]
    if kind.endswith("qkvpacked"):
        arrays, lengths = [np.stack(arrays, axis)], lengths[::2]
    elif kind.endswith("kvpacked"):
        arrays = [q, np.stack([k, v], axis)]
    function = getattr(flash_attn, f"flash_attn_{kind}_func" if kind else "flash_attn_func")
    return function(*map(bring, arrays), *lengths, **options)


@pytest.mark.parametrize("seed", range(45))
def test_every_function_is_the_formula(library, seed):
    rng, kind, heads, kv_heads, lens_q, lens_k, dim, dtype, options = drawn(seed)
    q = rng.standard_normal((lens_q.sum(), heads, dim)).astype(dtype)
    k, v = rng.standard_normal((2, lens_k.sum(), kv_heads, dim)).astype(dtype)
    with rocmkern.using("cpu" if seed % 9 == 0 else "python"):  # most of them: variants take seconds to compile
        out, lse, mask = called(rng, kind, q, k, v, lens_q, lens_k, library.bring, options)
    out, lse = library.numbers(out), library.numbers(lse)
    if out.ndim == 4:
        out, lse = out.reshape(-1, *out.shape[2:]), np.concatenate(list(lse), axis=1)
    assert mask is None
    slopes, rows_q, rows_k = options["alibi_slopes"], 0, 0
    for n, (sq, sk) in enumerate(zip(lens_q, lens_k, strict=True)):
        own, of_k = slice(rows_q, rows_q + sq), slice(rows_k, rows_k + sk)
        rows_q, rows_k = rows_q + sq, rows_k + sk
        expected, expected_lse = attention(
            q[own], k[of_k], v[of_k],
            causal=options["causal"], window=options["window_size"], scale=options["softmax_scale"],
            softcap=options["softcap"], slopes=slopes if slopes is None or slopes.ndim == 1 else slopes[n],
        )  # fmt: skip
        np.testing.assert_allclose(out[own], expected, atol=BOUNDS[dtype], rtol=BOUNDS[dtype])
        np.testing.assert_allclose(lse[:, own], expected_lse, atol=2e-4, rtol=1e-5)


def test_only_the_result_comes_back_by_default(normal):
    q = normal(2, 5, 2, 8)
    out, lse, mask = flash_attn.flash_attn_func(q, q, q, return_attn_probs=True)
    np.testing.assert_array_equal(flash_attn.flash_attn_func(q, q, q), out)
    assert lse.shape == (2, 2, 5) and lse.dtype == np.float32 and mask is None


def test_stacked_arrays_are_read_where_they_lie(normal):
    qkv = normal(2, 5, 3, 2, 8)
    parts = unstacked("qkv", qkv, "batch seqlen 3 nheads headdim")
    assert [part.shape for part in parts] == [(2, 5, 2, 8)] * 3
    for i, part in enumerate(parts):
        assert np.shares_memory(part, qkv) and (part == qkv[:, :, i]).all()


@pytest.mark.parametrize(("argument", "value", "error", "words"), [
    ("dropout_p", 0.1, ArgumentError, r"0\.1; allowed: 0\.0: there is no dropout here"),
    ("dropout_p", "no", ArgumentTypeError, "a finite number"),
    ("softmax_scale", np.inf, ArgumentError, "finite"),
    ("causal", 1, ArgumentTypeError, "True or False"),
    ("window_size", 3, ArgumentTypeError, "a pair of integers"),
    ("window_size", (1, 2, 3), ArgumentTypeError, "a pair of integers"),
    ("window_size", (1.5, 2), ArgumentTypeError, "a pair of integers"),
    ("softcap", None, ArgumentTypeError, "a finite number"),
    ("alibi_slopes", np.ones(3, np.float32), ArgumentError, r"shape \(3,\)"),
    ("deterministic", None, ArgumentTypeError, "True or False"),
    ("return_attn_probs", 2, ArgumentTypeError, "True or False"),
])  # fmt: skip
def test_wrong_options_are_refused_by_their_names(normal, argument, value, error, words):
    q = normal(1, 5, 2, 8)
    with pytest.raises(error, match=words) as refusal:
        flash_attn.flash_attn_func(q, q, q, **{argument: value})
    assert refusal.value.argument == argument


@pytest.mark.parametrize(("name", "shape"), [
    ("qkvpacked", (1, 5, 2, 2, 8)), ("qkvpacked", (1, 3, 2, 8)), ("varlen_qkvpacked", (5, 2, 2, 8)),
])  # fmt: skip
def test_stacks_of_another_shape_are_refused(normal, name, shape):
    lengths = (np.array([0, 5], np.int32), 5) if "varlen" in name else ()
    with pytest.raises(ArgumentError, match=r"axes .*3, nheads, headdim") as refusal:
        getattr(flash_attn, f"flash_attn_{name}_func")(normal(*shape), *lengths)
    assert refusal.value.argument == "qkv"


@pytest.mark.parametrize(("lengths", "pages", "argument"), [
    ([0, 4, 5], [[1, 2]], "cu_seqlens_k"),
    ([1, 5], [[1, 2]], "cu_seqlens_k"),
    ([0, 9], [[1, 2]], "block_table"),
    ([0, 5], [[3, 4]], "block_table"),
    ([0, 5], [[1, 2], [1, 2]], "block_table"),
])  # fmt: skip
def test_pages_and_lengths_fit_each_other(normal, lengths, pages, argument):
    q, cache, cu_q = normal(5, 2, 8), normal(4, 4, 2, 8), np.array([0, 5], np.int32)
    cu_k, table = np.array(lengths, np.int32), np.array(pages, np.int32)
    with pytest.raises(ArgumentError) as refusal:
        flash_attn.flash_attn_varlen_func(q, cache, cache, cu_q, cu_k, 5, 9, block_table=table)
    assert refusal.value.argument == argument


def test_a_program_in_a_graph_of_pytorch():
    torch = pytest.importorskip("torch", reason="traces")

    def layer(qkv):
        return flash_attn.flash_attn_qkvpacked_func(qkv * 2, causal=True, window_size=(4, -1)) + 1

    qkv = torch.randn(2, 9, 3, 2, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(qkv), layer(qkv))
