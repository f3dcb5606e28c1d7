"""The first gate on an NVIDIA card: the attention kernel, unchanged, against float64; every operation against NumPy."""

import functools
import re
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest
import streaming
from attention_launches import DTYPES, FOREVER, NO_JOIN, NO_PAGES, TOLERANCE, attention_config

from rocmkern import tile as T
from rocmkern.ops.activations.kernels import activations
from rocmkern.ops.attention import reference, tuning
from rocmkern.ops.attention.kernels.flash_attention import flash_attention
from rocmkern.ops.linear.kernels import matmul, row_product
from rocmkern.ops.linear.tuning import one_row, row_product_of
from rocmkern.ops.quantized.tuning import quantized_row
from rocmkern.runtime.errors import TargetError, TileError
from rocmkern.runtime.manager import default_manager
from rocmkern.targets import source
from rocmkern.targets.cuda import LoadedKernel, compile_kernel
from rocmkern.tile import entry
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.language.block import running

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'rocmkern[cuda]'")

from numba import cuda

#: Where the float16 scales and minima of a ggml block lie.
HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q4_k": (0, 2), "q5_k": (0, 2),
    "q6_k": (208,),
}  # fmt: skip


def why_no_device() -> str:
    """Empty where numba.cuda has a usable device."""
    if cuda.is_available():
        return ""
    return f"numba.cuda has no usable device: {cuda.cuda_error() or 'no driver or no card'}"


needs_device = pytest.mark.skipif(bool(why_no_device()), reason=why_no_device())


@pytest.fixture(params=list(DTYPES))
def dtype(request):
    return request.param


@functools.cache
def device_arch() -> str:
    major, minor = cuda.get_current_device().compute_capability
    return f"sm_{major}{minor}"


@functools.cache
def loaded(kernel, cfg, dtypes) -> LoadedKernel:
    return LoadedKernel(compile_kernel(kernel, cfg, dtypes))


def root(array: np.ndarray) -> np.ndarray:
    """The array that owns a view's memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def run(kernel, cfg, grid, arguments) -> None:
    """Launch a kernel on copies of its arguments, and bring back all that it wrote, the bytes around included."""
    manager = default_manager("cuda")
    copies, words = {}, []
    for (_, parameter), value in zip(kernel.parameters, arguments, strict=True):
        if parameter.kind == "tensor":
            owner = root(value)
            assert owner.flags.c_contiguous, "its bytes in order are what is copied"
            if id(owner) not in copies:
                copies[id(owner)] = owner, manager.from_numpy(np.frombuffer(owner.tobytes() or b"\0", np.uint8))
            address = copies[id(owner)][1].data_ptr
            offset = value.__array_interface__["data"][0] - owner.__array_interface__["data"][0] if owner.size else 0
            words += [address + offset, *value.shape, *value.strides]
        else:
            words.append(entry.float32_bits(value) if parameter.kind == "float" else value)
    with manager.device.current():
        loaded(kernel, cfg, source.dtypes_of(kernel, arguments)).launch(grid, words, manager.stream)
    for owner, copy in copies.values():
        if owner.flags.writeable and owner.size:
            owner[...] = np.frombuffer(copy.to_numpy().tobytes(), owner.dtype).reshape(owner.shape)


def fenced(shape, dtype, fill=np.nan) -> np.ndarray:
    """A view of a larger array of 77s: a write past its ends or between its rows shows."""
    whole = np.full([n + 2 for n in shape[:-1]] + [shape[-1] + 3], 77, dtype)
    view = whole[(*(slice(1, -1) for _ in shape[:-1]), slice(1, -2))]
    view[...] = fill
    return view


def assert_fence(view: np.ndarray) -> None:
    whole = root(view).copy()
    whole[(*(slice(1, -1) for _ in view.shape[:-1]), slice(1, -2))] = 77
    assert (whole == 77).all(), "something was written outside the output"


# ------------------------------------------------------------------------------------------------- one attention call


@dataclass(frozen=True)
class Case:
    """An attention problem, by its shapes and by what differs from the plain one."""

    sq: int
    sk: int
    head_dim: int = 64
    value_dim: int = 0
    causal: object = False
    window: tuple | None = None
    pack: int = 1
    splits: int = 1
    softcap: float = 0.0
    alibi: bool = False
    bias: bool = False
    mask: bool = False
    sinks: bool = False
    lengths: tuple = ()
    strides: str = "bhsd"
    poison: str = ""
    waves: int = 4
    block_m: int = 64
    split_kv: bool = False
    num_stages: int = 1
    block_n: int = 0

    @property
    def mods(self) -> bool:
        return bool(self.softcap or self.alibi or self.bias or self.mask)


CASES = {
    "full": Case(300, 300),
    "one tile and a bit": Case(19, 65, 40, 24),
    "causal bottom right": Case(37, 153, 40, 24, causal="bottom_right"),
    "causal top left": Case(153, 37, causal="top_left"),
    "rows that see nothing": Case(153, 19, causal="bottom_right"),
    "window": Case(300, 300, window=(17, 3)),
    "window and causal": Case(200, 230, causal=True, window=(40, None)),
    "head dim 128": Case(150, 170, 128, causal=True),
    "head dim 80": Case(70, 90, 80, 48, causal=True),
    "head dim 256": Case(70, 90, 256, causal=True),
    "decode, packed heads": Case(1, 300, pack=3),
    "few queries, packed heads": Case(5, 100, pack=3, causal=True, window=(60, None)),
    "split keys": Case(3, 290, pack=3, splits=3, causal=True),
    "more splits than keys": Case(2, 70, splits=5, sinks=True),
    "ragged sequences": Case(150, 190, causal=True, lengths=((19, 1, 0, 130), (40, 60, 20, 70))),
    "softcap": Case(100, 130, softcap=7.0, causal=True),
    "softcap far from its bend": Case(40, 60, softcap=1000.0),
    "alibi": Case(100, 130, alibi=True, causal=True),
    "bias": Case(70, 90, bias=True),
    "mask": Case(70, 90, mask=True),
    "all score modifications": Case(150, 170, softcap=5.0, alibi=True, bias=True, mask=True, causal=True, sinks=True),
    "sinks": Case(100, 130, sinks=True, causal=True),
    "bshd": Case(100, 130, strides="bshd", causal=True),
    "rows not aligned": Case(40, 90, 41, 33, causal=True),
    "every second element": Case(40, 90, 40, 40, strides="sparse"),
    "two row tiles a wave": Case(150, 170, causal=True, block_m=128),
    "two row tiles a wave, head dim 128": Case(150, 330, 128, causal=True, block_m=128),
    "eight waves": Case(150, 170, 128, causal=True, waves=8, block_m=128),
    "one wave": Case(30, 50, causal=True, waves=1, block_m=16),
    "scores far apart": Case(70, 90, bias=True, poison="steep"),
    "nan where nobody looks": Case(70, 90, causal="top_left", poison="hidden"),
    "nan where the mask hides": Case(70, 90, mask=True, poison="masked"),
    "nan and infinity in sight": Case(70, 90, causal=True, poison="visible"),
    "lowest bias on a whole row": Case(70, 90, bias=True, poison="bias"),
}
#: All waves have all rows (2-byte elements only).
SHARED = {
    "one query": Case(1, 700, 128, pack=3),
    "less than one wave's keys": Case(1, 9, 128, pack=3),
    "queries of two blocks": Case(23, 300, 128, 72, causal=True),
    "window": Case(5, 300, pack=3, causal=True, window=(100, None)),
    "split keys": Case(3, 690, 128, pack=3, splits=3, causal=True),
    "rows that see nothing": Case(16, 7, 128, causal=True),
    "head dim 256": Case(5, 290, 256, pack=3, causal=True, waves=2),
    "all score modifications": Case(15, 170, softcap=5.0, alibi=True, bias=True, mask=True, causal=True),
    "rows not aligned": Case(4, 190, 41, 33, causal=True),
    "ragged sequences": Case(26, 190, causal=True, lengths=((9, 1, 0, 16), (40, 60, 20, 70))),
    "scores far apart": Case(10, 190, bias=True, poison="steep"),
    "nan where nobody looks": Case(30, 190, causal="top_left", poison="hidden"),
    "nan and infinity in sight": Case(70, 90, causal=True, poison="visible"),
    "lowest bias on a whole row": Case(10, 190, bias=True, poison="bias"),
    "one query, windows ahead": Case(1, 1400, 128, pack=3, num_stages=2, waves=8, block_n=128),
    "less than one wave's keys, windows ahead": Case(1, 9, 128, pack=3, num_stages=3),
    "split keys, windows ahead": Case(3, 1390, 128, pack=3, splits=3, causal=True, num_stages=3),
    "rows not aligned, windows ahead": Case(4, 390, 41, 33, causal=True, num_stages=2),
    "nan and infinity in sight, windows ahead": Case(70, 90, causal=True, poison="visible", num_stages=3),
}
CASES |= {f"shared, {name}": replace(case, split_kv=True, block_m=16) for name, case in SHARED.items()}


def arrange(values: np.ndarray, strides: str) -> np.ndarray:
    """Equal values in another layout of memory."""
    if strides == "bshd":
        return np.ascontiguousarray(values.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    if strides == "sparse":
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    return values


def bucket(n: int) -> int:
    return next(b for b in (64, 128, 256) if n <= b)


def attention(case: Case, dtype: str, seed: int = 0):
    """(out, lse, reference out, reference lse) of a case; out and lse are float64 where splits were joined."""
    rng = np.random.default_rng(seed)
    batch, heads, kv_heads = (1, 6, 2) if case.lengths else (2, 6, 2)
    value_dim = case.value_dim or case.head_dim
    ty = DTYPES[dtype]

    def normal(*shape):
        return arrange(rng.standard_normal(shape).astype(ty), case.strides)

    q = normal(batch, heads, case.sq, case.head_dim)
    k = normal(batch, kv_heads, case.sk, case.head_dim)
    v = normal(batch, kv_heads, case.sk, value_dim)
    sequences = len(case.lengths[0]) if case.lengths else batch
    none = np.zeros(0, np.int32)
    cu_q, cu_k = (np.cumsum([0, *n], dtype=np.int32) for n in case.lengths) if case.lengths else (none, none)
    sinks = rng.standard_normal(heads).astype(np.float32) if case.sinks else np.zeros(0, np.float32)
    slopes = 2.0 ** -np.arange(1, 1 + heads * sequences, dtype=np.float32).reshape(sequences, heads)
    bias = rng.standard_normal((batch, 1, case.sq, case.sk)).astype(ty)
    mask = rng.random((batch, heads, case.sq, case.sk)) < 0.7
    mask[:, :, 3:4] = False
    if case.poison == "hidden":  # top left: keys past the last query
        k[:, :, case.sq :], v[:, :, case.sq :] = np.nan, np.inf
    elif case.poison == "masked":
        mask[:, :, :, 11] = False
        k[:, :, 11], v[:, :, 11] = np.inf, np.nan
    elif case.poison == "visible":
        v[0, 0, 50, 3], v[0, 1, 55, 5], v[1, 0, 60, 7] = np.nan, np.inf, -np.inf
        v[1, 1, 61, 2], v[1, 1, 66, 2] = np.inf, -np.inf
        k[1, 0, 85, 0] = np.nan
    elif case.poison == "bias":
        bias = bias.astype(np.float32)
        bias[:, :, 5] = np.finfo(np.float32).min
    elif case.poison == "steep":
        steps = rng.permuted(np.broadcast_to(np.arange(case.sk), bias.shape), axis=-1)
        bias = np.ascontiguousarray(1e6 + 1e4 * steps, np.float32)
    shape = (batch, heads, case.sq, case.sk)
    bias, mask = np.broadcast_to(bias, shape), np.broadcast_to(mask, shape)

    left, right = case.window or (None, None)
    arguments = dict(causal=case.causal, window=case.window, return_lse=True, softcap=case.softcap or None)
    arguments |= dict(alibi_slopes=slopes if case.alibi else None, sinks=sinks if case.sinks else None)
    arguments |= dict(bias=bias if case.bias else None, mask=mask if case.mask else None)
    with np.errstate(invalid="ignore", over="ignore"):
        if case.lengths:
            packed = (x[0].transpose(1, 0, 2) for x in (q, k, v))
            del arguments["bias"], arguments["mask"]
            expected, expected_lse = reference.flash_attention(
                *packed, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **arguments
            )
            expected, expected_lse = expected.transpose(1, 0, 2)[None], expected_lse[None]
        else:
            expected, expected_lse = reference.flash_attention(q, k, v, **arguments)

    out = fenced((case.splits, batch, heads, case.sq, value_dim), np.float32 if case.splits > 1 else ty)
    lse = fenced((case.splits, batch, heads, case.sq), np.float32)
    width = bucket(max(case.head_dim, value_dim))
    cfg = attention_config(
        arch=device_arch(),
        waves=case.waves,
        split_kv=case.split_kv,
        num_stages=case.num_stages,
        block_m=case.block_m,
        block_n=case.block_n or {"float32": {64: 32, 128: 32, 256: 16}}.get(dtype, {64: 64, 128: 64, 256: 32})[width],
        head_dim=width,
        value_dim=width,
        score_mods=case.mods,
    )
    rows = max(case.lengths[0]) if case.lengths else case.sq
    grid = -(-rows * case.pack // cfg.block_m) * case.splits, heads // case.pack, sequences
    run(flash_attention, cfg, grid, [
        q, k, v, out, lse, cu_q, cu_k, sinks,
        slopes if case.alibi else np.zeros((sequences, 0), np.float32),
        bias if case.bias else np.zeros((batch, 0, 0, 0), ty),
        mask if case.mask else np.zeros((batch, 0, 0, 0), np.bool_), *NO_PAGES, *NO_JOIN,
        case.head_dim**-0.5, case.softcap,
        FOREVER if left is None else left, 0 if case.causal else FOREVER if right is None else right,
        int(case.causal != "top_left"), case.pack, case.splits, rows, 0,
    ])  # fmt: skip
    assert_fence(out)
    assert_fence(lse)
    return *join(out, lse), expected, expected_lse


def join(out, lse):
    """Partial results over disjoint keys, joined in float64."""
    if len(out) == 1:
        return out[0], lse[0]
    wide = lse.astype(np.float64)
    highest = wide.max(0)
    base = np.where(np.isinf(highest), 0, highest)
    weights = np.exp(wide - base)
    total = weights.sum(0)
    joined = (weights[..., None] * out).sum(0) / np.where(total == 0, 1, total)[..., None]
    with np.errstate(divide="ignore"):
        return joined, base + np.log(total)


@needs_device
@pytest.mark.parametrize("name", CASES)
def test_attention_equals_float64(name, dtype):
    if CASES[name].split_kv and dtype == "float32":
        pytest.skip("waves share rows in products of 2-byte elements")
    out, lse, expected, expected_lse = attention(CASES[name], dtype)
    out, lse = out.astype(np.float64), lse.astype(np.float64)

    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.where(np.isinf(out), out, 0), np.where(np.isinf(expected), expected, 0))
    finite = np.isfinite(expected)
    size = np.max(np.where(finite, np.abs(expected), 0), axis=-1, keepdims=True)
    error = np.where(finite, np.abs(np.where(finite, out, 0) - np.where(finite, expected, 0)), 0)
    share = np.max(error / np.maximum(size * TOLERANCE[dtype], 1e-30))

    np.testing.assert_array_equal(np.isfinite(lse), np.isfinite(expected_lse))
    known = np.isfinite(expected_lse)
    lse_error = np.max(np.abs(lse[known] - expected_lse[known]) / np.maximum(1, np.abs(expected_lse[known])), initial=0)
    print(f"GATE {dtype:9}{name:28} error {np.max(error):.1e} share of bound {share:.2f} lse {lse_error:.1e}")
    assert share <= 1
    assert lse_error <= 4e-6


@needs_device
def test_attention_repeats_bitwise(dtype):
    first, second = (attention(CASES["causal bottom right"], dtype) for _ in range(2))
    assert first[0].tobytes() == second[0].tobytes()
    assert first[1].tobytes() == second[1].tobytes()


def with_running_maximum(q, k, v, keys: int = 64) -> np.ndarray:
    """Attention in float64 but for what 16 bits round: the weights, relative to the maximum so far, and the result."""
    groups = q.shape[1] // k.shape[1]
    wide = [x.astype(np.float64) for x in (q, np.repeat(k, groups, 1), np.repeat(v, groups, 1))]
    scores = np.einsum("bhid,bhjd->bhij", *wide[:2]) * q.shape[-1] ** -0.5
    highest = np.full((*scores.shape[:-1], 1), -np.inf)
    total, out = 0.0, 0.0
    for first in range(0, scores.shape[-1], keys):
        part, values = scores[..., first : first + keys], wide[2][:, :, first : first + keys]
        before, highest = highest, np.maximum(highest, part.max(-1, keepdims=True))
        weights, shrink = np.exp(part - highest), np.exp(before - highest)
        total = total * shrink + weights.sum(-1, keepdims=True)
        out = out * shrink + weights.astype(q.dtype).astype(np.float64) @ values
    return (out / total).astype(q.dtype)


@needs_device
def test_weights_are_rounded_no_worse_than_with_a_running_maximum():
    case, seed = Case(64, 2048), 3
    out, _, expected, _ = attention(case, "float16", seed)
    rng = np.random.default_rng(seed)
    shapes = (2, 6, case.sq, 64), (2, 2, case.sk, 64), (2, 2, case.sk, 64)
    model = with_running_maximum(*(rng.standard_normal(shape).astype(np.float16) for shape in shapes))
    errors = [np.sqrt(np.mean((x.astype(np.float64) - expected) ** 2)) for x in (out, model)]
    assert np.abs(model.astype(np.float64) - expected).max() < 1e-3, "they are of the same inputs"
    assert errors[0] < errors[1]


# ------------------------------------------------------------------------------------ every operation, against NumPy


@dataclass(frozen=True)
class Shape(T.Config):
    m: int = 64
    n: int = 32


@T.kernel
def elementwise(
    cfg,
    x: T.Tensor[2],
    y: T.Tensor[2],
    flags: T.Tensor[2],
    counts: T.Tensor[1],
    numbers: T.Tensor[2],
    out: T.Tensor[3],
    per_row: T.Tensor[2],
    col0: T.Int,
    factor: T.Float,
):
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    a = T.load_tile(cfg, x, (row,), col0, cfg.n, valid)
    r = T.load_rows(y, (row, 1), valid)
    T.store_rows(per_row[0], (row,), T.rowmax(a), valid)
    T.store_rows(per_row[1], (row,), T.rowsum(a), valid)
    T.store_rows(per_row[2], (row,), T.exp2(r), valid)
    T.store_rows(per_row[3], (row,), T.log2(T.maximum(r, 0.0)), valid)
    T.store_rows(per_row[4], (row,), T.reciprocal_or_zero(T.maximum(r, 0.0)), valid)
    T.store_rows(per_row[5], (row,), T.minimum(r * 2.0 - r, T.full_rows(cfg, cfg.m, 0.25)), valid)
    shifted = row * 3 - 40
    quotient, rest = shifted // 7, shifted % 7
    T.store_rows(per_row[6], (row,), T.where(T.minimum(quotient, rest) > T.maximum(shifted, -5), 1.0, r), valid)
    chosen = (quotient >= 0) & (rest != 3)
    T.store_rows(per_row[7], (row,), T.where(chosen, r + 1.0, T.where(rest == 1, 2.0, 3.0)), valid)
    T.store_rows(per_row[8], (row,), T.where((r <= 0.5) & (quotient < 5), factor, r - factor), valid)
    whole = T.where(row > 9, 1, 2) + 3
    T.store_rows(per_row[9], (row,), T.where(whole == 4, T.load_rows(numbers, (row, 2), valid), 5.0), valid)

    T.store_tile(out[0], (row,), 0, a, valid)
    T.store_tile(out[1], (row,), 0, T.exp2(T.load_tile(cfg, x, (row,), col0, cfg.n, valid)), valid)
    T.store_tile(out[2], (row,), 0, T.tanh(T.load_tile(cfg, x, (row,), col0, cfg.n, valid)), valid)
    T.store_tile(out[3], (row,), 0, T.absolute(T.load_tile(cfg, y, (row,), 0, cfg.n, valid)) * r + 1.0, valid)
    T.store_tile(out[4], (row,), 0, T.distance(cfg, shifted, col0, cfg.n), valid)
    b = T.load_tile(cfg, y, (row,), col0, cfg.n, valid) - r
    T.store_tile(out[5], (row,), 0, T.mask_outside(b * factor, col0, quotient, shifted), valid)
    seen = T.load_tile(cfg, flags, (row,), 0, cfg.n, valid)
    T.store_tile(out[6], (row,), 0, T.mask_where(T.load_tile(cfg, y, (row,), 0, cfg.n, valid), seen), valid)
    c = T.load_tile(cfg, x, (row,), 0, cfg.n, valid) * T.load_tile(cfg, y, (row,), 0, cfg.n, valid)
    c = c + T.load_tile(cfg, numbers, (row,), 0, cfg.n, valid) - T.load_tile(cfg, y, (row,), 1, cfg.n, valid)
    T.store_tile(out[7], (row,), int(counts[1]), c, row < counts[0])


@needs_device
@pytest.mark.parametrize("waves", [4, 2])
def test_elementwise_operations_equal_numpy(dtype, waves):
    rng = np.random.default_rng(1)
    ty, rows, columns = DTYPES[dtype], 53, 37
    x, y = (rng.standard_normal((rows, columns)).astype(ty) for _ in range(2))
    x[0, 5:13] = [1e-3, -1e-3, 1e-7, 0, 20, -20, np.inf, -np.inf]
    y[:2, 1] = 0, -1
    flags = rng.random((rows, columns)) < 0.5
    counts = np.array([41, 3], np.int32)
    numbers = rng.integers(-9, 9, (rows, columns)).astype(np.int32)

    def outputs():
        return fenced((8, rows, columns), np.float32), fenced((10, rows), np.float32)

    ours, numpys = outputs(), outputs()
    arguments = [x, y, flags, counts, numbers, *ours, 5, 0.75]
    run(elementwise, Shape(arch=device_arch(), waves=waves), (1, 1, 1), arguments)
    with running((0, 0, 0)):
        elementwise(Shape(), x, y, flags, counts, numbers, *numpys, 5, 0.75)
    (tiles, per_row), (expected_tiles, expected_per_row) = ours, numpys
    assert_fence(tiles)
    assert_fence(per_row)
    # Sums and fused multiply-adds may lose a few bits where terms cancel; functions of one number may not.
    np.testing.assert_allclose(per_row, expected_per_row, rtol=1e-6, atol=4e-6)
    np.testing.assert_allclose(tiles, expected_tiles, rtol=1e-6, atol=5e-7)
    np.testing.assert_allclose(tiles[:3], expected_tiles[:3], rtol=1e-6, atol=0)


@needs_device
def test_stores_round_to_nearest_even(dtype):
    ty = DTYPES[dtype]
    one = np.float32(1)
    step = np.float32(ml_dtypes.finfo(ty).eps)
    x = np.zeros((64, 32), np.float32)
    x[:, :6] = [one + step / 2, one + 3 * step / 2, -one - step / 2, np.inf, np.nan, 1e-30]
    out = fenced((1, 64, 32), ty)
    run(copy, Shape(arch=device_arch(), waves=4), (1, 1, 1), [x, out])
    np.testing.assert_array_equal(out[0].astype(np.float32), x.astype(ty).astype(np.float32))


@T.kernel
def copy(cfg, x: T.Tensor[2], out: T.Tensor[3]):
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    T.store_tile(out[0], (row,), 0, T.load_tile(cfg, x, (row,), 0, cfg.n, valid), valid)


@T.kernel
def products(cfg, x: T.Tensor[2], y: T.Tensor[2], z: T.Tensor[2], out: T.Tensor[3]):
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    left = T.stage(cfg, T.rows(x, 2, x.shape[0]), cfg.n, cfg.m)
    right = T.stage(cfg, y, cfg.n, cfg.n)
    wide = T.stage(cfg, z, cfg.n, cfg.m)
    left = T.acquire(T.fetch(left, 0))
    right = T.acquire(T.fetch(right, 16))
    wide = T.acquire(T.fetch(wide, 0))
    a = T.load_operand(cfg, x, (row,), 4, cfg.n, valid)
    T.store_tile(out[0], (row,), 0, T.dot_nt(a, right), valid)
    T.store_tile(out[1], (row,), 0, T.dot_nn(a, right), valid)
    T.store_tile(out[2], (row,), 0, T.dot_tn(left, right), row < 64)
    ones = T.exp2(T.zeros(cfg, cfg.m, cfg.n))
    sums = T.dot_tn(left, right, T.dot_nt(a, right, ones))
    right = T.acquire(T.fetch(T.release(right), 32))
    sums = T.dot_nn_where(a, right, T.dot_nn(a, right, sums))
    T.store_tile(out[3], (row,), 0, sums, valid)
    T.store_tile(out[4], (row,), 0, T.dot_nn(a, wide), valid)
    T.release(left)
    T.release(right)
    T.release(wide)


@needs_device
@pytest.mark.parametrize("waves", [4, 2])
def test_products_equal_numpy(dtype, waves):
    rng = np.random.default_rng(2)
    ty = DTYPES[dtype]
    # Small whole numbers: every sum is exact in every dtype.
    x, y, z = (rng.integers(-3, 4, shape).astype(ty) for shape in ((60, 70), (75, 29), (40, 50)))

    def output():
        return fenced((5, 64, 64), np.float32, 0)

    ours, numpys = output(), output()
    run(products, Shape(arch=device_arch(), waves=waves), (1, 1, 1), [x, y, z, ours])
    with running((0, 0, 0)):
        products(Shape(), *(t.astype(np.float32) for t in (x, y, z)), numpys)
    assert_fence(ours)
    np.testing.assert_array_equal(ours, numpys)


@T.kernel
def paged_windows(
    cfg, eye: T.Tensor[2], x: T.Tensor[4], y: T.Tensor[4], of_x: T.Tensor[1], of_y: T.Tensor[1], starts: T.Tensor[1],
    out: T.Out[4], stop_x: T.Int, stop_y: T.Int, shift: T.Int,
):  # fmt: skip
    """Windows of the second head of two caches beside each other, turned; those of y begin so many rows further on."""
    row = T.row_index(cfg, cfg.m)
    valid = row < cfg.n
    one = T.load_operand(cfg, eye, (row,), 0, cfg.n, valid)
    xs = T.stage(cfg, x[0, 0], cfg.n, cfg.n, x, True)
    ys = T.stage(cfg, y[0, 0], cfg.n, cfg.n, y, True)
    xs, ys = T.paged(xs, x, 1, of_x, stop_x), T.paged(ys, y, 1, of_y, stop_y)
    xs, ys = T.fetch(xs, int(starts[0])), T.fetch(ys, int(starts[0]) + shift)
    for i in range(starts.shape[0] - 1):
        xs, ys = T.acquire(xs), T.acquire(ys)
        xs, ys = T.fetch(xs, int(starts[i + 1])), T.fetch(ys, int(starts[i + 1]) + shift)
        T.store_tile(out[0, i], (row,), 0, T.dot_nt(one, xs), valid)
        T.store_tile(out[1, i], (row,), 0, T.dot_nt(one, ys), valid)
        xs, ys = T.release(xs), T.release(ys)
    T.finish(xs)
    T.finish(ys)


def rows_in_pages(cache, table, stop, rows) -> np.ndarray:
    """These rows of the second head; what does not exist is 0."""
    found = np.zeros((len(rows), cache.shape[3]), np.float32)
    for i, row in enumerate(rows):
        number, line = divmod(row, cache.shape[2])
        if row < stop and number < len(table) and 0 <= table[number] < len(cache):
            found[i] = cache[table[number], 1, line]
    return found


@pytest.mark.parametrize("dims", [(96, 64), (64, 96)])
def test_a_source_whose_rows_every_thread_looks_up_lies_beside_one_of_another_kind(dims):
    cfg = tuning.attention("sm_90", 4, 64, 64, 2, False, paged=True)
    cfg = replace(cfg, head_dim=dims[0], value_dim=dims[1], block_n=64, num_stages=2)
    assert "cp.async" in compile_kernel(flash_attention, cfg, ATTENTION_DTYPES).ptx


@needs_device
@pytest.mark.parametrize("waves", [1, 4])
@pytest.mark.parametrize(
    ("rows_x", "rows_y", "two_tables", "less", "shift"),
    [
        (1, 1, False, 0, 0), (7, 7, False, 0, 0), (16, 16, False, 0, 0), (256, 256, False, 0, 0),
        (16, 8, False, 0, 0), (16, 16, True, 0, 0), (16, 16, False, 9, 0), (16, 16, False, 0, 5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("view", ["whole", "pages_backwards", "rows_backwards", "slices"])
def test_windows_in_pages_beside_each_other_equal_numpy(dtype, waves, rows_x, rows_y, two_tables, less, shift, view):
    """Those with the same table and not, one after the other and not, with pages that are not there."""
    rng, n, ty = np.random.default_rng(5), 32, DTYPES[dtype]

    def cache(rows):
        whole = rng.integers(-9, 10, (280, 3, rows, 64)).astype(ty)
        views = {
            "whole": whole[..., :n],
            "pages_backwards": whole[::-1, ..., :n],
            "rows_backwards": whole[:, :, ::-1, :n],
            "slices": whole[..., 1::2],
        }
        return views[view]

    def table():
        entries = rng.permutation(280)[:150]
        entries[[2, 60]] = -1, 280
        return entries.astype(np.int32)

    x, y, of_x = cache(rows_x), cache(rows_y), table()
    of_y, stop = table() if two_tables else of_x, 140
    starts = np.array([0, 32, 64, 96, 32, 33, 65, 128, 160, 300], np.int32)
    out = fenced((2, len(starts) - 1, n, n), np.float32)
    cfg = Shape(arch=device_arch(), waves=waves, n=n)
    run(paged_windows, cfg, (1, 1, 1), [np.eye(n, dtype=ty), x, y, of_x, of_y, starts, out, stop, stop - less, shift])
    assert_fence(out)
    for i, start in enumerate(starts[:-1]):
        at = np.arange(start, start + n)
        np.testing.assert_array_equal(out[0, i].T, rows_in_pages(x, of_x, stop, at))
        np.testing.assert_array_equal(out[1, i].T, rows_in_pages(y, of_y, stop - less, at + shift))


def ring(**settings) -> matmul.Config:
    """A configuration of products whose windows the copy engine brings in."""
    return matmul.Config(arch="sm_90", waves=8, block_m=128, block_n=128, block_k=64, num_stages=2, **settings)


@needs_device
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("left_transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_windows_from_the_copy_engine_are_exact(dtype, left_transposed, transposed):
    if device_arch() != "sm_90":
        pytest.skip(f"{device_arch()} is not the architecture with wgmma")
    rng, (outer, inner, rows, columns, depth) = np.random.default_rng(4), (2, 3, 200, 264, 328)
    # Small whole numbers: every sum is exact.
    a = rng.integers(-3, 4, (outer, inner, *((depth, rows) if left_transposed else (rows, depth)))).astype(
        DTYPES[dtype]
    )
    b = rng.integers(-3, 4, (inner, *((columns, depth) if transposed else (depth, columns)))).astype(DTYPES[dtype])
    left, right = (x.astype(np.float64) for x in (a, b))
    exact = (left.swapaxes(2, 3) if left_transposed else left) @ (right.swapaxes(1, 2) if transposed else right)
    bias, broadcast = np.zeros((0, 0), DTYPES[dtype]), np.broadcast_to(b, (outer, *b.shape))
    for splits in (1, 2):
        out = fenced((splits, outer, inner, rows, columns), np.float32)
        cfg = ring(transposed=transposed, left_transposed=left_transposed, group_m=splits)
        run(matmul.matmul, cfg, (2 * 3, inner, outer * splits), [a, broadcast, bias, out, 0, splits])
        np.testing.assert_array_equal(out.sum(axis=0), exact)
        assert_fence(out)


def test_a_ring_of_windows_takes_tensor_maps_and_its_products_are_only_started():
    kernel = compile_kernel(matmul.matmul, ring(), ("float16",) * 4)
    assert [(each.at, each.ndim, each.rows, each.dtype) for each in kernel.maps] == [
        (0, 4, 128, "float16"),
        (9, 4, 128, "float16"),
    ]
    assert all(f".param .align 64 .b8 {each.symbol}[128]" in kernel.ptx for each in kernel.maps)
    assert "wgmma.wait_group.sync.aligned 1;" in kernel.ptx
    assert kernel.shared_bytes >= 4 * 2 * (128 * 64 * 2)


# --------------------------------------------------------------------------------- mistakes, found without any device


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [({}, "float32"), ({"arch": "sm_80"}, "float16"), ({"waves": 2}, "float16"), ({"block_k": 32}, "float16")],
)
def test_several_windows_on_their_way_are_refused_where_there_is_no_ring(changes, dtype):
    cfg = replace(ring(), **changes)
    with pytest.raises(TileError, match="stage: num_stages=2 is for tensors of 16 bits as they are given"):
        compile_kernel(matmul.matmul, cfg, (dtype,) * 4)


def test_windows_beyond_shared_memory_are_refused():
    cfg = attention_config(arch="sm_86", waves=4, block_m=64, block_n=64, head_dim=256, value_dim=256)
    with pytest.raises(TileError, match=r"take \d+ bytes of shared memory .* sm_86 has 101376"):
        compile_kernel(flash_attention, cfg, ATTENTION_DTYPES)


def test_rows_that_products_need_are_not_folded():
    streaming.check_that_only_lines_are_folded(compile_kernel, "sm_90")


def test_rows_that_do_not_fit_the_waves_are_refused():
    cfg = attention_config(arch="sm_90", waves=4, block_m=16, block_n=64)
    with pytest.raises(TileError, match="multiples of 16 a wave, 64 a block; got 16"):
        compile_kernel(flash_attention, cfg, ATTENTION_DTYPES)


def test_architectures_without_mma_are_refused():
    with pytest.raises(TargetError, match=r"'gfx1100' cannot be compiled by the CUDA target; allowed: sm_80 and later"):
        compile_kernel(flash_attention, attention_config(arch="gfx1100", waves=4, block_m=64), ATTENTION_DTYPES)


@T.device
def sum_of_window(cfg, x, a):
    window = T.acquire(T.fetch(T.stage(cfg, x, cfg.n, cfg.n), 0))
    out = T.dot_nn(a, window)
    T.release(window)
    return out


@T.kernel
def stage_in_a_device_function(cfg, x: T.Tensor[2], out: T.Tensor[3]):
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    T.store_tile(out[0], (row,), 0, sum_of_window(cfg, x, T.load_operand(cfg, x, (row,), 0, cfg.n, valid)), valid)


def test_stages_of_device_functions_are_refused():
    with pytest.raises(TileError, match=r"device function sum_of_window, .*: stage: made in a device function"):
        compile_kernel(stage_in_a_device_function, Shape(arch="sm_90", waves=4), ("float16", "float32"))


def test_compiles_for_an_architecture_without_a_device():
    kernel = compile_kernel(copy, Shape(arch="sm_80", waves=2), ("float16", "bfloat16"))
    assert ".target sm_80" in kernel.ptx
    assert (kernel.threads, kernel.shared_bytes, kernel.words) == (64, 0, 12)


def test_every_asynchronous_copy_belongs_to_a_group_that_can_be_waited_for():
    cfg = matmul.Config(arch="sm_90", waves=1, block_n=32, block_k=32)
    ptx = compile_kernel(matmul.matmul, cfg, ("float32",) * 4).ptx
    copying = [body for body in re.findall(r"^\{$(.*?)^\}$", ptx, re.MULTILINE | re.DOTALL) if "cp.async.cg" in body]
    assert len(copying) == 3  # the kernel, and what copies each side's windows that end within 16 bytes
    assert all(body.rindex("cp.async.commit_group") > body.rindex("cp.async.cg") for body in copying)


@needs_device
@pytest.mark.parametrize("alignment", [1, 8, 16])
@pytest.mark.parametrize("name", list(FORMATS))
def test_products_of_one_row_decode_weights_exactly(name, dtype, alignment):
    """One number of a row is 1 and the others are 0: the result is a column of the weights, rounded once."""
    rng, kind = np.random.default_rng(3), FORMATS[name]
    count = 4096 // kind.elements
    blocks = rng.integers(0, 256, (19, count, kind.nbytes), dtype=np.uint8)
    if name.startswith("mx"):
        blocks[..., 0] = rng.integers(117, 130, (19, count))
        # Rows of which some or all weights would leave float16 without their scale.
        blocks[5, ::3, 0] = blocks[11, :, 0] = 127 + 7
        blocks[..., 1:] &= 0xFB if "8" in name else 0xFF  # neither NaN nor infinity
    for place in HALVES.get(name, ()):
        halves = rng.standard_normal((19, count)).astype(np.float16)
        blocks[..., place : place + 2] = halves[..., None].view(np.uint8)
    expected = kind.decode(blocks).reshape(19, 4096).astype(DTYPES[dtype])
    cfg = quantized_row(device_arch(), 4096, name, alignment, dtype)
    # The last step is a part of one; rows of both lengths start at multiples of 16 bytes.
    for columns in (2048 if name == "q6_k" else 3072 + 512, 4096):
        w = np.ascontiguousarray(blocks.reshape(19, -1)[:, : columns // kind.elements * kind.nbytes])
        for k in (*rng.integers(0, columns, 24), columns - 1):
            x, out = np.zeros((1, 1, 1, columns), DTYPES[dtype]), np.full((1, 1, 1, 19), np.nan, DTYPES[dtype])
            x[..., k] = 1
            no_bias = np.zeros((0, 0), DTYPES[dtype])
            run(row_product.row_product, cfg, (-(-19 // cfg.block_n), 1, 1), [x, w[None, None], no_bias, out, 0])
            # Scales and minima of Q4_K and Q5_K have too many digits for float16.
            rounded = name in ("q4_k", "q5_k") and dtype == "float16"
            atol = 2.0**-9 * np.abs(expected).max() if rounded else 0
            np.testing.assert_allclose(
                out[0, 0, 0].astype(np.float32), expected[:, k].astype(np.float32), rtol=0, atol=atol
            )


@needs_device
@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "mxfp4", "q6_k"])
def test_bfloat16_vectors_of_any_size_multiply_packed_weights(name):
    rng, kind, dtype = np.random.default_rng(4), FORMATS[name], DTYPES["bfloat16"]
    blocks = rng.integers(0, 256, (16, 4096 // kind.elements, kind.nbytes), dtype=np.uint8)
    if name == "mxfp4":
        blocks[..., 0] = 127
    for place in HALVES.get(name, ()):
        blocks[..., place : place + 2] = np.float16(rng.uniform(0.5, 1, blocks.shape[:2]))[..., None].view(np.uint8)
    weights = kind.decode(blocks).reshape(16, 4096).astype(np.float64)
    cfg = quantized_row(device_arch(), 4096, name, 16, "bfloat16")
    assert cfg.split_kv

    def product(x):
        out, no_bias = np.full((1, 1, 1, 16), np.nan, dtype), np.zeros((0, 0), dtype)
        run(
            row_product.row_product,
            cfg,
            (1, 1, 1),
            [x[None, None, None], blocks.reshape(1, 1, 16, -1), no_bias, out, 0],
        )
        return out[0, 0, 0].astype(np.float64)

    # Blocks of very different sizes, one at a time and together; subnormal ones too.
    for power in (-126, -120, -60, 0, 60, 110):
        x = np.zeros(4096, dtype)
        x[320:352] = rng.standard_normal(32) * 2.0**power
        exact = weights @ x.astype(np.float64)
        np.testing.assert_allclose(product(x), exact, rtol=2.0**-7, atol=2.0**-8 * np.abs(exact).max())
    x = (rng.standard_normal(4096) * 2.0 ** np.repeat(rng.integers(-60, 60, 128), 32)).astype(dtype)
    exact = weights @ x.astype(np.float64)
    np.testing.assert_allclose(product(x), exact, rtol=2.0**-7, atol=2.0**-8 * np.abs(exact).max())
    for special in (np.nan, np.inf):
        x[1000] = special
        assert np.isnan(product(x)[weights[:, 1000] == 0]).all()
        found, seen = product(x)[weights[:, 1000] != 0], weights[:, 1000][weights[:, 1000] != 0]
        # Minima are subtracted from sums: infinity less infinity.
        if len(HALVES.get(name, ())) < 2 or np.isnan(special):
            np.testing.assert_array_equal(found, special * np.sign(seen))


@needs_device
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("waves", "row_waves"), [(2, 2), (4, 4), (8, 8), (4, 1)])
@pytest.mark.parametrize(("rows", "pieces"), [(1, 8), (2, 16)])
def test_products_of_one_row_with_rows_of_several_waves(dtype, waves, row_waves, rows, pieces):
    rng = np.random.default_rng(6)
    sizes = replace(
        one_row(device_arch(), 1, 4096, 4096), waves=waves, waves_per_row=row_waves, rows=rows, pieces=pieces
    )
    cfg = row_product_of(device_arch(), sizes)
    for columns, step in ((1, 1), (700, 1), (4096, 1), (5000, -1)):
        x, w, bias = (rng.standard_normal(n).astype(DTYPES[dtype]) for n in ((columns,), (19, columns), (19,)))
        out = fenced((1, 1, 1, 19), DTYPES[dtype])
        run(
            row_product.row_product,
            cfg,
            (-(-19 // cfg.block_n), 1, 1),
            [x[None, None, None, ::step], w[None, None, :, ::step], bias[None], out, activations.RELU],
        )
        x, w, bias = (each.astype(np.float64) for each in (x, w, bias))
        exact, size = np.maximum(w @ x + bias, 0), np.abs(w) @ np.abs(x) + np.abs(bias)
        rounding = 2.0 ** {"float32": -23, "float16": -10, "bfloat16": -7}[dtype]
        error = np.abs(out[0, 0, 0].astype(np.float64) - exact)
        np.testing.assert_array_less(error, 2.0**-18 * size + rounding * exact)
        assert_fence(out)


def test_a_product_of_one_row_may_start_early():
    sizes, dtypes = one_row("sm_90", 1, 4096, 4096), ["float16"] * 4
    early = row_product_of("sm_90", sizes)
    late, before = (replace(early, overlaps=False), replace(early, arch="sm_80"))
    kernels = [compile_kernel(row_product.row_product, cfg, dtypes) for cfg in (early, late, before)]
    assert [kernel.overlaps for kernel in kernels] == [True, False, False]
    assert ["griddepcontrol.wait" in kernel.ptx for kernel in kernels] == [True, False, False]


def test_rows_of_aligned_weights_go_through_shared_memory():
    dtypes = ("float16", "uint8", "float16", "float16")
    kernels = [
        compile_kernel(row_product.row_product, quantized_row("sm_90", 4096, "q4_0", n, "float16"), dtypes)
        for n in (1, 16)
    ]
    assert [kernel.shared_bytes > 0 for kernel in kernels] == [False, True]
    assert ["cp.async.cg" in kernel.ptx for kernel in kernels] == [False, True]


ATTENTION_DTYPES = (
    *("float16",) * 4, "float32", "int32", "int32", "float32", "float32", "float16", "bool",
    *[x.dtype.name for x in (*NO_PAGES, *NO_JOIN)],
)  # fmt: skip


@needs_device
@pytest.mark.parametrize("waves", [0.25, 1, 2])
@pytest.mark.parametrize("col0", [0, 100, 600])
def test_operations_with_rows_along_lanes_equal_numpy(dtype, col0, waves):
    streaming.check_everything(run, device_arch(), DTYPES[dtype], col0, waves)


@needs_device
@pytest.mark.parametrize("waves", [0.25, 1, 2])
def test_rows_and_blocks_are_joined_as_by_numpy(waves):
    streaming.check_joins(run, device_arch(), waves)


@needs_device
@pytest.mark.parametrize(("columns", "waves"), [(512, 1), (520, 1), (1003, 1), (77, 1), (1003, 2), (77, 2), (77, 0.25)])
def test_kernels_with_rows_along_lanes_equal_float64(dtype, columns, waves):
    streaming.check_kernels(run, device_arch(), DTYPES[dtype], columns, waves=waves)


@needs_device
def test_kernels_with_rows_along_lanes_read_any_stride(dtype):
    streaming.check_kernels(run, device_arch(), DTYPES[dtype], 530, strided=True)


@needs_device
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [32, 64, 128, 5, 40])
def test_rotations_of_rows_along_lanes_equal_float64(dtype, pairs, interleaved):
    streaming.check_rotations(run, device_arch(), DTYPES[dtype], pairs, interleaved)
