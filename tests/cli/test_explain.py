"""``rocmkern isa --explain`` and ``--lds``: a step by unit, which unit limits, and what the virtual GPU counted."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_isa import LOOPS, METADATA, numba_hip_is_there, recorded, scores

from rocmkern.architectures import architecture, known
from rocmkern.cli import _assembly, _explain, _rates, _variants, isa, main
from rocmkern.cli._lds_check import LdsCheck
from rocmkern.runtime.errors import ArgumentError

# The next step's data are fetched where there is one: by rows that lie well in 16 bytes, else element by element.
FETCHING = """\
kernel:
	s_load_b64 s[0:1], s[2:3], 0x0
.LBB0_1:
	s_barrier
	ds_store_b128 v5, v[0:3]
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_cbranch_scc0 .LBB0_5
	s_cbranch_vccz .LBB0_3
	global_load_b128 v[0:3], v4, s[0:1]
	global_load_b128 v[10:13], v4, s[0:1]
	s_branch .LBB0_4
.LBB0_3:
	global_load_d16_b16 v0, v4, s[0:1]
	global_load_d16_b16 v1, v4, s[0:1]
	global_load_b32 v1, v4, s[0:1]
	v_mov_b32 v2, v3
	v_mov_b32 v2, v3
.LBB0_4:
	s_cbranch_execz .LBB0_5
	global_load_b128 v[20:23], v4, s[0:1]
.LBB0_5:
	ds_load_b128 v[0:3], v5
	v_wmma_f32_16x16x16_f16 v[8:15], v[0:7], v[0:7], v[8:15]
	v_dual_fmac_f32 v1, v2, v3 :: v_dual_mul_f32 v4, v5, v6
	v_exp_f32_e32 v1, v1
	s_cbranch_scc1 .LBB0_1
	global_store_b32 v1, v2, s[0:1]
	s_endpgm
.Lfunc_end0:
"""


def test_a_step_that_fetches_has_as_many_wide_loads_as_any_way():
    plain, fetching = _assembly.main_loop(FETCHING, matrix=1), _assembly.fetching_loop(FETCHING, matrix=1)
    assert _assembly.mix(plain)["global"] == 0
    assert [i.split()[0] for i in fetching if "load_" in i and i.startswith("global")] == ["global_load_b128"] * 3
    assert _assembly.mix(fetching)["matrix"] == 1


def test_a_number_of_bytes_is_fetched_by_the_shortest_way():
    for nbytes, loads in ((48, 3), (33, 3), (32, 2), (1, 2), (1000, 3)):
        way = _assembly.fetching_loop(FETCHING, 1, 0, nbytes)
        assert _assembly.mix(way)["global"] == loads, nbytes


def test_a_loop_that_fetches_nothing_and_code_without_a_loop():
    text = LOOPS.replace("global_load_b128 v[0:3], v4, s[0:1]", "s_nop 0")
    assert _assembly.fetching_loop(text, matrix=2) == _assembly.main_loop(text, matrix=2)
    assert _assembly.fetching_loop("kernel:\n\tv_mov_b32 v0, 0\n\ts_endpgm\n", matrix=1) == []


@pytest.mark.parametrize(
    ("operation", "nbytes"),
    [
        ("ds_read_b128", 16), ("ds_read2_b64", 16), ("ds_read2st64_b32", 8), ("ds_load_2addr_b64", 16),
        ("ds_load_2addr_stride64_b32", 8), ("ds_store_b64", 8), ("ds_write_b8", 1), ("ds_load_u16_d16_hi", 2),
        ("ds_bpermute_b32", 4), ("ds_swizzle_b32", 4), ("ds_read_u16_d16", 2), ("ds_read_i8", 1), ("ds_write_b96", 12),
        ("global_load_dwordx4", 16), ("global_load_dwordx3", 12), ("global_load_dwordx2", 8), ("global_load_dword", 4),
        ("global_load_b96", 12), ("global_load_d16_b16", 2), ("global_load_d16_hi_u8", 1), ("global_load_ushort", 2),
        ("global_load_ubyte_d16", 1), ("global_store_short", 2), ("global_store_byte", 1), ("buffer_store_b32", 4),
        ("global_atomic_add_f32", 4), ("global_atomic_cmpswap_b32", 4), ("buffer_gl0_inv", 0), ("global_inv", 0),
        ("buffer_wbl2", 0), ("global_load_lds_dwordx4", 16),
    ],
)  # fmt: skip
def test_the_bytes_of_memory_instructions(operation, nbytes):
    assert _assembly.width(operation) == nbytes


@pytest.mark.parametrize(
    ("arch", "operation", "clocks"),
    [
        # AMD's own numbers of passes (of 4 clocks): 8 on MI100 and MI200, 4 on MI300.
        ("gfx908", "v_mfma_f32_16x16x16f16", 32),
        ("gfx908", "v_mfma_f32_16x16x8bf16", 32),
        ("gfx90a", "v_mfma_f32_16x16x16f16", 32),
        ("gfx90a", "v_mfma_f32_16x16x16bf16_1k", 32),
        ("gfx90a", "v_mfma_f32_16x16x4f32", 32),
        ("gfx942", "v_mfma_f32_16x16x16_f16", 16),
        ("gfx942", "v_mfma_f32_16x16x4_f32", 32),
        ("gfx942", "v_mfma_f32_32x32x8_bf16", 32),
        ("gfx942", "v_mfma_f32_16x16x32_fp8_bf8", 16),
        ("gfx950", "v_mfma_f32_16x16x16_f16", 16),
        ("gfx950", "v_mfma_f32_16x16x32_bf16", 16),
        ("gfx1100", "v_wmma_f32_16x16x16_f16", 32),
        ("gfx1151", "v_wmma_f32_16x16x16_bf16", 32),
        ("gfx1201", "v_wmma_f32_16x16x16_bf16", 16),
        ("gfx1201", "v_wmma_f32_16x16x16_fp8_fp8", 8),
        ("gfx1100", "v_wmma_i32_16x16x16_iu4", None),
        ("gfx1030", "v_wmma_f32_16x16x16_f16", None),
    ],
)
def test_the_clocks_of_matrix_instructions(arch, operation, clocks):
    assert _rates.matrix_clocks(arch, operation) == clocks


def test_every_architecture_has_rates_for_the_matrix_instructions_that_it_has():
    for arch in known("hip"):
        hardware = architecture(arch)
        assert ("bf16" in hardware.compute_unit.matrix_flops) == bool(hardware.matrix), arch


@pytest.mark.parametrize(
    ("arch", "operation", "clocks"),
    [
        ("gfx1100", "ds_load_b128", 4), ("gfx1100", "ds_store_b32", 1), ("gfx1100", "ds_store_b8", 1),
        ("gfx942", "ds_read_b128", 8), ("gfx942", "ds_read2_b64", 8), ("gfx942", "ds_write_b64", 4),
        ("gfx950", "ds_read_b128", 4), ("gfx950", "ds_write_b128", 8),
    ],
)  # fmt: skip
def test_the_clocks_of_accesses_to_shared_memory(arch, operation, clocks):
    assert _rates.lds_clocks(arch, operation) == clocks


def test_global_memory_limits_where_a_card_has_less_than_is_wanted():
    assert _explain._memory("gfx942", 8.2) == "8.2 bytes a clock meanwhile, MI300X has 8.3 for each compute unit"
    assert _explain._memory("gfx942", 8.4).endswith("it limits instead, unless caches give the rest")
    assert _explain._memory("gfx1151", 8.4) == "8.4 bytes a clock meanwhile"


def test_a_step_is_counted_by_unit():
    step = _rates.step_of("gfx1100", _assembly.fetching_loop(FETCHING, matrix=1))
    assert {name: count for name, count in step.counts.items() if name != "control"} == {
        "barriers": 2, "waits": 1, "lds": 2, "global": 3, "matrix": 1, "vector": 1, "transcendental": 1,
    }  # fmt: skip
    assert step.clocks == {"matrix": 32, "vector": 1, "transcendental": 4, "lds": 8}
    assert (step.loaded, step.stored, step.unknown) == (3 * 16 * 32, 0, ())
    # Four waves share two SIMDs and one shared memory.
    assert _rates.units("gfx1100", 4, step) == {"vector unit": 74, "shared memory": 32}


def test_matrix_instructions_of_cdna_are_a_unit_of_their_own_and_its_waves_take_four_clocks():
    lines = [
        "v_mfma_f32_16x16x16_f16 a, b",
        "v_add_f32 v0, v1",
        "v_exp_f32 v0, v1",
        "s_barrier_signal -1",
        "s_barrier_wait",
    ]
    step = _rates.step_of(
        "gfx942", [*lines, "s_wait_dscnt 0x0", "s_wait_alu 0xfffe", "global_store_dwordx2 v1, v[2:3]"]
    )
    assert step.clocks == {"matrix": 16, "vector": 4, "transcendental": 16, "lds": 0}
    assert (step.counts["barriers"], step.counts["waits"], step.stored) == (1, 1, 8 * 64)
    assert _rates.units("gfx942", 8, step, lds=3.0) == {"matrix unit": 32, "vector unit": 40, "shared memory": 24}


def explained(**changes):
    cfg = SimpleNamespace(arch="gfx1100", waves=4)
    return "\n".join(_explain.explain(SimpleNamespace(cfg=cfg, dtypes=("float16",)), FETCHING, (1, 0), **changes))


def test_what_limits_is_said_with_how_busy_the_others_are():
    text = explained()
    assert "bound: vector unit, 74 clocks a step for a block of 4 waves" in text
    assert "(matrix instructions 86% of the vector unit)" in text
    assert "meanwhile: shared memory 43%\n" in text
    memory = "83.0 bytes a clock meanwhile, RX 7900 XTX has 4.0 for each compute unit; it limits instead, unless caches"
    assert f"global memory: {memory}" in text
    assert "1 v_wmma_f32_16x16x16_f16" in text and "1536 bytes loaded, 0 stored" in text
    assert "clocks by width, without conflicts" in text
    cdna = SimpleNamespace(cfg=SimpleNamespace(arch="gfx1030", waves=1), dtypes=("float16",))
    assert "no rate is known of v_wmma_f32_16x16x16_f16" in "\n".join(_explain.explain(cdna, FETCHING, (1, 0)))


def test_what_attention_fetches_is_a_block_of_keys_and_of_values():
    cfg = SimpleNamespace(arch="gfx942", waves=4, block_n=32, head_dim=128, value_dim=64)
    variant = SimpleNamespace(cfg=cfg, dtypes=("float16", "int8", "float16", "float16"))
    assert _explain.staged_bytes(variant) == 32 * (128 + 64 * 2) // 256
    assert _explain.staged_bytes(SimpleNamespace(cfg=SimpleNamespace(arch="gfx942", waves=4), dtypes=("float16",))) == 0


def test_recorded_code_is_explained():
    """Loads of the recorded kernel: 16 rows of 64 halves for each step of 32 columns, in one wave."""
    text = "\n".join(_explain.explain(scores("gfx1100", "float16"), recorded("qk_scores_f16_gfx1100"), (8, 0)))
    assert "8 v_wmma_f32_16x16x16_f16" in text and "     256 clocks" in text and "bound: vector unit" in text


# What the virtual GPU counted


def _counted(best, worst, documented):
    return {"executed": 10, "cycles": [best, worst], "ideal": 40, "documented": documented}


LDS = {
    "lds_check": 1,
    "code": {
        "aa": {
            "kernel": "kernel", "arch": "gfx1100", "matrix": 100,
            "instructions": {
                "16": {"text": "ds_store_b128 v5,  v[0:3]", **_counted(80, 80, True)},
                "64": {"text": "ds_load_b128 v[0:3], v5", **_counted(40, 60, False)},
            },
        }
    },
}  # fmt: skip


@pytest.fixture
def lds_file(tmp_path):
    path = tmp_path / "lds.json"
    path.write_text(json.dumps(LDS))
    return path


def test_conflicts_stand_beside_a_row_of_the_same_code(lds_file):
    check = LdsCheck.read(lds_file)
    words = (
        "1.50 to 1.75 of the least cycles in 20 executed, 1.20 to 1.40 cycles a matrix instruction; "
        "best to worst grouping where no rule is known"
    )
    assert str(check.of("aa")) == words and check.of("bb") is None
    row = isa.row_of(scores("gfx1100", "float16"), recorded("qk_scores_f16_gfx1100"))
    assert f"    shared memory: {words}" in isa.describe(replace(row, conflicts=words))
    assert not any("shared memory" in line for line in isa.describe(row))


def test_the_clocks_of_a_step_are_those_of_the_addresses_where_it_was_executed(lds_file):
    check = LdsCheck.read(lds_file)
    text = explained(code_sha256="aa", check=check)
    assert (
        "12 to 14 clocks by addresses (1.50 to 1.75 of the least, best to worst grouping; 2 of 2 were executed)" in text
    )
    assert "meanwhile: shared memory 65%" in text
    assert "did not run under the check" in explained(code_sha256="bb", check=check)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"lds_check": 2, "code": {}}', '{"lds_check": 1, "code": {"aa": {"matrix": 1}}}',
             '{"lds_check": 1, "code": {"aa": {"matrix": 1, "instructions": {"0": {"cycles": 3}}}}}']
)  # fmt: skip
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "lds.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"--lds: got .*lds\.json.*allowed: a file of `make amd-test"):
        LdsCheck.read(path)


def test_what_several_processes_counted_is_one_file(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools/virtual_gpu")
    rows = importlib.import_module("rows")
    other = {"bb": LDS["code"]["aa"]}
    merged = rows.merged_lds([{"lds": LDS["code"]}, {"problem": "x"}, {"lds": {**LDS["code"], **other}}])
    assert merged["bb"] == LDS["code"]["aa"]
    twice = merged["aa"]["instructions"]["16"]
    assert (twice["executed"], twice["cycles"], twice["ideal"], merged["aa"]["matrix"]) == (20, [160, 160], 80, 200)


# The command line


def listed(capsys, *words):
    assert main(["isa", "--arch", "gfx1100", "--list", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture(scope="module")
def launched():
    """What the rows of the matrix launch, by architecture: found once."""
    return {}


@pytest.fixture
def found_once(monkeypatch, launched):
    record = _variants.record

    def once(recorders, matrix):
        for recorder in recorders:
            if recorder.arch not in launched:
                record([recorder], matrix)
                launched[recorder.arch] = recorder.found
            recorder.found = launched[recorder.arch]

    monkeypatch.setattr(_variants, "record", once)


@pytest.mark.usefixtures("found_once")
def test_kernels_to_explain_and_configurations_are_chosen(capsys):
    softmax = listed(capsys, "--explain", "softmax", "qk_scores", "--config", "waves=4")
    assert {line.split()[1] for line in softmax} == {"softmax", "qk_scores"}
    assert all(" waves=4 " in f"{line} " for line in softmax)
    single = listed(capsys, "--kernel", "softmax", "--config", "single=1")
    assert single == listed(capsys, "--kernel", "softmax", "--config", "single=True")
    assert 0 < len(single) < len(listed(capsys, "--kernel", "softmax"))


@pytest.mark.usefixtures("found_once")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--config", "waves"], "--config: got waves; allowed: NAME=VALUE"),
        (["--explain", "softmax", "--config", "waves=77"], "softmax waves=77"),
        (["--lds", "missing.json"], "--lds: got missing.json"),
    ],
)
def test_words_that_choose_nothing_or_make_no_sense_are_errors(capsys, words, expected):
    assert main(["isa", "--arch", "gfx1100", "--list", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.skipif(not numba_hip_is_there(), reason="numba-hip cannot be imported")
def test_a_kernel_is_explained_for_real(capsys):
    words = ["--explain", "qk_scores", "--dtype", "float16", "--config", "head_dim=64", "--jobs", "1"]
    assert main(["isa", "--arch", "gfx942", *words]) == 0
    text = capsys.readouterr().out
    assert "v_mfma_f32_16x16x16_f16" in text and "bound: " in text and "16 clocks of a SIMD" in text


def test_the_metadata_of_a_text_is_no_instruction():
    assert _assembly.fetching_loop(FETCHING + METADATA, matrix=1) == _assembly.fetching_loop(FETCHING, matrix=1)
