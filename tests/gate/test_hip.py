"""The first gate on AMD: the attention kernel, unchanged, against float64; products; resources without a card."""

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
import streaming
from attention_launches import DTYPES, FOREVER, NO_JOIN, NO_PAGES, TOLERANCE, attention_config

import rocmkern
from rocmkern import targets
from rocmkern import tile as T
from rocmkern.architectures import architecture
from rocmkern.cli._assembly import main_loop, mix
from rocmkern.ops.attention import reference, tuning
from rocmkern.ops.attention.kernels.flash_attention import flash_attention
from rocmkern.runtime.errors import TargetError, TileError
from rocmkern.runtime.manager import default_manager
from rocmkern.targets import source
from rocmkern.tile import entry

try:
    from numba import hip

    from rocmkern.targets.hip import LoadedKernel, compile_kernel
except Exception as e:  # without ROCm's libraries it is not always an ImportError
    pytest.skip(f"numba.hip cannot be imported ({type(e).__name__}: {e})", allow_module_level=True)


@pytest.fixture(params=list(DTYPES))
def dtype(request):
    return request.param


@functools.cache
def device_arch(wave_rows: int = 16) -> str:
    arch = hip.get_current_device().amdgpu_arch.split(":")[0]
    if not architecture(arch).matrix:
        pytest.skip(f"the device is {arch}, which has no matrix instructions")
    if wave_rows != 16 and architecture(arch).wave != 32:
        pytest.skip(f"the device is {arch}, whose waves have 64 lanes")
    return arch


@functools.cache
def loaded(kernel, cfg, dtypes):
    return LoadedKernel(compile_kernel(kernel, cfg, dtypes).executable)


def run(kernel, cfg, grid, arguments) -> None:
    """Launch a kernel on copies of its arguments, and bring all of them back."""
    manager = default_manager("hip")
    copies, words = [], []
    for (_, parameter), value in zip(kernel.parameters, arguments, strict=True):
        if parameter.kind == "tensor":
            owner = value
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            copy = manager.from_numpy(np.frombuffer(owner.tobytes() or b"\0", np.uint8))
            copies.append((owner, copy))
            offset = value.__array_interface__["data"][0] - owner.__array_interface__["data"][0] if value.size else 0
            address = copy.data_ptr + offset
            words += [address, *value.shape, *value.strides]
        else:
            words.append(entry.float32_bits(value) if parameter.kind == "float" else value)
    with manager.device.current():
        loaded(kernel, cfg, source.dtypes_of(kernel, arguments)).launch(grid, words, manager.stream)
    for owner, copy in copies:
        if owner.flags.writeable and owner.size:
            owner[...] = np.frombuffer(copy.to_numpy().tobytes(), owner.dtype).reshape(owner.shape)


def fenced(shape, dtype) -> np.ndarray:
    """A view of NaN in a larger array of 77s: a write past its ends or between its rows shows."""
    whole = np.full([*shape[:-1], shape[-1] + 5], 77, dtype)
    view = whole[..., 1:-4]
    view[...] = np.nan
    return view


def assert_fence(view: np.ndarray) -> None:
    assert (view.base[..., :1] == 77).all() and (view.base[..., -4:] == 77).all(), "written outside the output"


@dataclass(frozen=True)
class Case:
    """An attention problem, by its shapes and by what differs from the plain one."""

    sq: int
    sk: int
    head_dim: int = 64
    value_dim: int = 64
    causal: object = False
    window: tuple | None = None
    pack: int = 1
    splits: int = 1
    mods: bool = False
    sinks: bool = False
    lengths: tuple = ()
    sparse: bool = False
    poison: str = ""
    waves: int = 4
    wave_rows: int = 16


CASES = {
    "full": Case(70, 70),
    "causal bottom right": Case(19, 67, 40, 24, causal="bottom_right"),
    "causal top left": Case(67, 19, causal="top_left"),
    "rows that see nothing": Case(67, 19, causal="bottom_right"),
    "head dim 128": Case(40, 70, 128, 128, causal=True),
    "window": Case(70, 70, window=(17, 3)),
    "packed heads, split keys": Case(3, 70, pack=3, splits=2, causal=True),
    "ragged sequences": Case(70, 70, causal=True, lengths=((19, 1, 0, 50), (40, 5, 0, 25))),
    "all score modifications": Case(40, 70, mods=True, causal=True, sinks=True),
    "element stride": Case(30, 50, 41, 33, sparse=True, causal=True),
    "nan where nobody looks": Case(40, 70, causal="top_left", poison="hidden"),
    "nan and infinity in sight": Case(40, 70, causal="top_left", poison="visible"),
    "two row blocks a wave": Case(70, 70, waves=2, causal=True),
    "head dim 256": Case(40, 70, 250, 200, causal=True),
    "one wave": Case(3, 70, 128, 128, causal=True, pack=3, waves=1),
    "eight rows a wave": Case(70, 70, 250, 200, causal=True, waves=8, wave_rows=8),
    "eight rows a wave, score modifications": Case(40, 70, mods=True, causal=True, sinks=True, waves=4, wave_rows=8),
    "eight rows a wave, nan in sight": Case(40, 70, causal="top_left", poison="visible", waves=8, wave_rows=8),
}


def attention(case: Case, dtype: str):
    """(out, lse, reference out, reference lse) of a case, all in float64."""
    rng = np.random.default_rng(0)
    batch, heads, kv_heads, ty = (1 if case.lengths else 2), 6, 2, DTYPES[dtype]

    def normal(*shape):
        values = rng.standard_normal(shape).astype(ty)
        return np.repeat(values, 2, axis=-1)[..., ::2] if case.sparse else values

    q = normal(batch, heads, case.sq, case.head_dim)
    k, v = (normal(batch, kv_heads, case.sk, n) for n in (case.head_dim, case.value_dim))
    if case.poison == "hidden":
        k[:, :, case.sq :], v[:, :, case.sq :] = np.nan, np.inf
    elif case.poison == "visible":
        v[0, 0, 20, 3], v[0, 1, 25, 5], v[1, 0, 30, 7], k[1, 1, 35, 0] = np.nan, np.inf, -np.inf, np.nan
        v[1, 1, 5, 2], v[1, 1, 9, 2] = np.inf, -np.inf
    sequences = len(case.lengths[0]) if case.lengths else batch
    none = np.zeros(0, np.int32)
    cu_q, cu_k = (np.cumsum([0, *n], dtype=np.int32) for n in case.lengths) if case.lengths else (none, none)
    sinks = rng.standard_normal(heads).astype(np.float32) if case.sinks else np.zeros(0, np.float32)
    slopes, softcap = np.zeros((sequences, 0), np.float32), 0.0
    bias, mask = np.zeros((batch, 0, 0, 0), ty), np.zeros((batch, 0, 0, 0), np.bool_)
    options = dict(causal=case.causal, window=case.window, return_lse=True, sinks=sinks if case.sinks else None)
    if case.mods:
        softcap, slopes = 5.0, np.tile(2.0 ** -np.arange(1, 7, dtype=np.float32), (batch, 1))
        shape = batch, heads, case.sq, case.sk
        bias = np.broadcast_to(rng.standard_normal((batch, 1, case.sq, case.sk)).astype(ty), shape)
        mask = rng.random(shape) < 0.7
        options |= dict(softcap=softcap, alibi_slopes=slopes, bias=bias, mask=mask)
    with np.errstate(invalid="ignore"):
        if case.lengths:
            packed = (x[0].transpose(1, 0, 2) for x in (q, k, v))
            expected, expected_lse = reference.flash_attention(*packed, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **options)
            expected, expected_lse = expected.transpose(1, 0, 2)[None], expected_lse[None]
        else:
            expected, expected_lse = reference.flash_attention(q, k, v, **options)

    out = fenced((case.splits, batch, heads, case.sq, case.value_dim), np.float32 if case.splits > 1 else ty)
    lse = fenced((case.splits, batch, heads, case.sq), np.float32)
    width = next(width for width in (64, 128, 256) if case.head_dim <= width)
    block_m, block_n = 16 if case.waves == 1 else 64, 16 if width == 256 or case.waves == 1 else 32
    cfg = attention_config(
        arch=device_arch(case.wave_rows), waves=case.waves, wave_rows=case.wave_rows, block_m=block_m, block_n=block_n,
        head_dim=width, value_dim=width, score_mods=case.mods,
    )  # fmt: skip
    rows = max(case.lengths[0]) if case.lengths else case.sq
    left, right = (FOREVER if n is None else n for n in case.window or (None, None))
    run(flash_attention, cfg, (-(-rows * case.pack // block_m) * case.splits, heads // case.pack, sequences), [
        q, k, v, out, lse, cu_q, cu_k, sinks, slopes, bias, mask, *NO_PAGES, *NO_JOIN,
        case.head_dim**-0.5, softcap, left, 0 if case.causal else right, int(case.causal != "top_left"),
        case.pack, case.splits, rows, 0,
    ])  # fmt: skip
    assert_fence(out)
    assert_fence(lse)
    out, lse = out.astype(np.float64), lse.astype(np.float64)
    if case.splits == 1:
        return out[0], lse[0], expected, expected_lse
    total = np.logaddexp.reduce(lse, 0)
    return (np.exp(lse - total)[..., None] * out).sum(0), total, expected, expected_lse


@pytest.mark.parametrize("name", CASES)
def test_attention_equals_float64(name, dtype):
    out, lse, expected, expected_lse = attention(CASES[name], dtype)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.where(np.isinf(out), out, 0), np.where(np.isinf(expected), expected, 0))
    finite = np.isfinite(expected)
    size = np.max(np.where(finite, np.abs(expected), 0), axis=-1, keepdims=True)
    error = np.abs(np.where(finite, out, 0) - np.where(finite, expected, 0))
    assert np.max(error / np.maximum(size * TOLERANCE[dtype], 1e-30)) <= 1
    np.testing.assert_allclose(lse, expected_lse, rtol=4e-6, atol=4e-6)


def test_attention_repeats_bitwise(dtype):
    first, second = (attention(CASES["causal bottom right"], dtype) for _ in range(2))
    assert first[0].tobytes() == second[0].tobytes() and first[1].tobytes() == second[1].tobytes()


# ------------------------------------------------------------------------------------------------------------ products


@dataclass(frozen=True)
class Shape(T.Config):
    m: int = 64
    n: int = 32


@T.kernel
def products(cfg, x: T.Tensor[2], y: T.Tensor[2], out: T.Tensor[3]):
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    left = T.acquire(T.fetch(T.stage(cfg, T.rows(x, 2, x.shape[0]), cfg.n, cfg.m), 0))
    right = T.acquire(T.fetch(T.stage(cfg, y, cfg.n, cfg.n), 16))
    a = T.load_operand(cfg, x, (row,), 4, cfg.n, valid)
    T.store_tile(out[0], (row,), 0, T.dot_nt(a, right), valid)
    T.store_tile(out[1], (row,), 0, T.dot_nn(a, right), valid)
    T.store_tile(out[2], (row,), 0, T.dot_tn(left, right), row < 64)
    sums = T.dot_tn(left, right, T.dot_nt(a, right, T.exp2(T.zeros(cfg, cfg.m, cfg.n))))
    right = T.acquire(T.fetch(T.release(right), 32))
    T.store_tile(out[3], (row,), 0, T.dot_nn_where(a, right, sums), valid)
    T.release(left)
    T.release(right)


@pytest.mark.parametrize(("waves", "wave_rows"), [(4, 16), (2, 16), (8, 8), (4, 8)])
def test_products_equal_numpy(dtype, waves, wave_rows):
    rng, ty = np.random.default_rng(2), DTYPES[dtype]
    # Small whole numbers: every sum is exact in every dtype.
    x, y = (rng.integers(-3, 4, shape).astype(ty) for shape in ((60, 70), (75, 29)))
    out = fenced((4, 64, 32), np.float32)
    run(products, Shape(arch=device_arch(wave_rows), waves=waves, wave_rows=wave_rows), (1, 1, 1), [x, y, out])
    assert_fence(out)

    def window(values, row0, col0, rows, columns):
        whole = np.zeros((rows, columns))
        part = values[row0 : row0 + rows, col0 : col0 + columns].astype(np.float64)
        whole[: part.shape[0], : part.shape[1]] = part
        return whole

    a, left, right = window(x, 0, 4, 64, 32), window(x[2:], 0, 0, 32, 64), window(y, 16, 0, 32, 32)
    np.testing.assert_array_equal(out[0][:60], (a @ right.T)[:60])
    np.testing.assert_array_equal(out[1][:60], (a @ right)[:60])
    np.testing.assert_array_equal(out[2], left.T @ right)
    expected = 1 + a @ right.T + left.T @ right + a @ window(y, 32, 0, 32, 32)
    np.testing.assert_array_equal(out[3][:60], expected[:60])


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000])
def test_a_score_that_is_any_nan_makes_its_row_nan(bits):
    device_arch()
    q, k, v = (np.ones((1, 1, n, 16), ml_dtypes.bfloat16) for n in (4, 40, 40))
    bias = np.zeros((1, 1, 4, 40), np.float32)
    bias.view(np.uint32)[0, 0, 2, 33] = bits
    with targets.using("hip"):
        out = rocmkern.flash_attention(q, k, v, bias=bias).astype(np.float32)
    assert np.isnan(out[0, 0, 2]).all() and (out[0, 0, [0, 1, 3]] == 1.0).all()


# ------------------------------------------------------------------------------------------------- without a device


def attention_dtypes(dtype: str) -> tuple:
    absent = [x.dtype.name for x in (*NO_PAGES, *NO_JOIN)]
    return (*[dtype] * 4, "float32", "int32", "int32", "float32", "float32", dtype, "bool", *absent)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("width", [128, 256])
def test_attention_needs_no_scratch(arch, dtype, width):
    cfg = tuning.attention(arch, 64, width, width, np.dtype(dtype).itemsize, score_mods=True)
    kernel = compile_kernel(flash_attention, cfg, attention_dtypes(dtype))
    resources = kernel.resources()
    assert [resources[x] for x in ("scratch_bytes", "vgpr_spills", "sgpr_spills", "flat")] == [0, 0, 0, 0]
    assert resources["shared_bytes"] == kernel.shared_bytes <= 54 * 1024


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "gfx1201"])
def test_a_step_of_attention_meets_twice(arch):
    cfg = tuning.attention(arch, 64, 64, 64, 2, score_mods=False)
    products = cfg.block_m // cfg.waves * cfg.block_n * (cfg.head_dim + cfg.value_dim) // 16**3
    loop = main_loop(compile_kernel(flash_attention, cfg, attention_dtypes("bfloat16")).assembly, matrix=products)
    assert sum(x.split()[0] in ("s_barrier", "s_barrier_wait") for x in loop) == 2
    # As in float16: a NaN among the weights is a NaN in the sum of its row, so rounding need not keep it.
    assert mix(loop)["vector"] + mix(loop)["transcendental"] <= 7.5 * products


@T.kernel
def weights_and_others(cfg, x: T.Tensor[2], out: T.Out[2]):
    row = T.row_index(cfg, cfg.block_m)
    valid = row < x.shape[0]
    m, l = T.full_rows(cfg, cfg.block_m, T.NEG_INF), T.full_rows(cfg, cfg.block_m, 0.0)
    acc, p = T.zeros(cfg, cfg.block_m, 64), T.zeros(cfg, cfg.block_m, 64)
    for _ in range(x.shape[0]):
        s = T.load_tile(cfg, x, (row,), 0, 64, valid)
        w, m, l, acc = T.softmax_step(s, np.float32(1.0), m, l, acc)
        p = w
    T.store_tile(out, (row,), 0, p + acc, valid)


def test_weights_are_a_tile_wherever_one_is_wanted():
    cfg = attention_config(arch="gfx1100", waves=4, block_m=64)
    assert compile_kernel(weights_and_others, cfg, ("float32", "float32")).resources()["scratch_bytes"] == 0


def test_windows_beyond_shared_memory_are_refused():
    cfg = attention_config(arch="gfx1100", waves=4, block_m=64, block_n=128, head_dim=256, value_dim=256)
    with pytest.raises(TileError, match=r"(takes?|take) \d+ bytes.*gfx1100 has 65536"):
        compile_kernel(flash_attention, cfg, attention_dtypes("float16"))


def test_rows_that_products_need_are_not_folded():
    streaming.check_that_only_lines_are_folded(compile_kernel, "gfx1100")


def test_rows_that_do_not_fit_the_waves_are_refused():
    cfg = attention_config(arch="gfx1100", waves=4, block_m=16, block_n=32)
    with pytest.raises(TileError, match="multiples of 16 a wave, 64 a block; got 16"):
        compile_kernel(flash_attention, cfg, attention_dtypes("float16"))


def test_rows_of_a_wave_that_its_lanes_cannot_hold_are_refused():
    for arch, wave_rows, allowed in (("gfx942", 8, "16 rows"), ("gfx1100", 4, "16 or 8 rows")):
        cfg = attention_config(arch=arch, waves=4, wave_rows=wave_rows, block_m=64, block_n=32)
        with pytest.raises(TileError, match=f"{allowed} of a tile side by side, not {wave_rows}"):
            compile_kernel(flash_attention, cfg, attention_dtypes("float16"))


def test_other_makers_architectures_are_refused():
    with pytest.raises(TargetError, match="'sm_80' cannot be compiled by the HIP target; allowed: AMD's"):
        compile_kernel(
            flash_attention, attention_config(arch="sm_80", waves=4, block_m=64), attention_dtypes("float16")
        )


@pytest.mark.parametrize("waves", [0.25, 1, 2])
@pytest.mark.parametrize("col0", [0, 100, 600])
def test_operations_with_rows_along_lanes_equal_numpy(dtype, col0, waves):
    streaming.check_everything(run, device_arch(), DTYPES[dtype], col0, waves)


@pytest.mark.parametrize("waves", [0.25, 1, 2])
def test_rows_and_blocks_are_joined_as_by_numpy(waves):
    streaming.check_joins(run, device_arch(), waves)


@pytest.mark.parametrize(("columns", "waves"), [(512, 1), (520, 1), (1003, 1), (77, 1), (1003, 2), (77, 2), (77, 0.25)])
def test_kernels_with_rows_along_lanes_equal_float64(dtype, columns, waves):
    streaming.check_kernels(run, device_arch(), DTYPES[dtype], columns, waves=waves)


def test_kernels_with_rows_along_lanes_read_any_stride(dtype):
    streaming.check_kernels(run, device_arch(), DTYPES[dtype], 530, strided=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [32, 64, 128, 5, 40])
def test_rotations_of_rows_along_lanes_equal_float64(dtype, pairs, interleaved):
    streaming.check_rotations(run, device_arch(), DTYPES[dtype], pairs, interleaved)
