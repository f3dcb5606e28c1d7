"""``rocmkern isa``: what is read from assembly, which kernels are compiled, and what is an error."""

import json

import pytest

from rocmkern.cli import _assembly, isa, main
from rocmkern.cli._variants import Recorder, variants
from rocmkern.matrix import expand, load, make_call
from rocmkern.matrix.registry import resolve
from rocmkern.runtime.errors import TargetError
from rocmkern.targets import launching_on

METADATA = """\
    .agpr_count:     58
    .group_segment_fixed_size: 37120
    .private_segment_fixed_size: 12
    .sgpr_count:     96
    .sgpr_spill_count: 7
    .vgpr_count:     314
    .vgpr_spill_count: 3
"""

# An outer loop (.LBB0_1) around an inner one (.LBB0_2) with a rare way (.LBB0_5) that lies behind everything.
LOOPS = """\
kernel:
	s_load_b64 s[0:1], s[2:3], 0x0
	v_mov_b32_e32 v0, 0
.LBB0_1:                                ; %outer
	global_load_b128 v[0:3], v4, s[0:1]
	s_waitcnt vmcnt(0)
	ds_store_b128 v5, v[0:3]
.LBB0_2:                                ; %inner
	ds_load_b128 v[0:3], v5
	v_wmma_f32_16x16x16_f16 v[8:15], v[0:7], v[0:7], v[8:15]
	v_dual_fmac_f32 v1, v2, v3 :: v_dual_mul_f32 v4, v5, v6
	v_exp_f32_e32 v1, v1
	s_cbranch_vccnz .LBB0_5
.LBB0_3:                                ; %joined
	v_wmma_f32_16x16x16_f16 v[8:15], v[0:7], v[0:7], v[8:15]
	v_fma_f32 v1, v2, v3, v4
	s_add_i32 s4, s4, 1
	s_cbranch_scc1 .LBB0_2
	s_cbranch_vccnz .LBB0_1
	s_endpgm
.LBB0_5:                                ; %rare
	v_add_f32_e32 v1, v1, v1
	v_add_f32_e32 v1, v1, v1
	s_branch .LBB0_3
.Lfunc_end0:
	v_add_f32_e32 v1, v1, v1
"""


def test_resources_are_those_of_the_metadata():
    text = "\tflat_load_b32 v0, v[1:2]\n\tv_mov_b32 v0, v1 ; flat_load\n" + METADATA
    assert _assembly.resources(text) == {
        "vgpr": 314, "agpr": 58, "sgpr": 96, "lds": 37120, "scratch": 12, "vgpr_spills": 3, "sgpr_spills": 7, "flat": 1,
    }  # fmt: skip


def test_registers_without_accumulators_have_none():
    assert _assembly.resources(METADATA.replace("    .agpr_count:     58\n", ""))["agpr"] == 0


def test_a_text_without_metadata_is_refused():
    with pytest.raises(ValueError, match=r"without \.sgpr_count"):
        _assembly.resources(METADATA.replace(".sgpr_count", ".other"))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("v_wmma_f32_16x16x16_bf16", "matrix"),
        ("v_mfma_f32_16x16x16_f16", "matrix"),
        ("v_exp_f32_e32", "transcendental"),
        ("v_accvgpr_read_b32", "vector"),
        ("v_cmp_lt_f32_e32", "vector"),
        ("ds_load_b128", "lds"),
        ("global_load_b128", "global"),
        ("buffer_store_dword", "global"),
        ("flat_load_b32", "flat"),
        ("scratch_load_b32", "scratch"),
        ("s_mul_i32", "scalar"),
        ("s_load_b64", "scalar"),
        ("s_waitcnt", None),
        ("s_barrier", None),
        ("s_cbranch_vccz", None),
        ("s_delay_alu", None),
    ],
)
def test_operations_have_classes(operation, expected):
    assert _assembly.class_of(operation) == expected


def test_both_operations_of_a_pair_count_as_operations_and_the_pair_as_one_instruction():
    counts = _assembly.mix(
        [
            "v_dual_fmac_f32 v1, v2, v3 :: v_dual_mul_f32 v4, v5, v6",
            "v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]",
            "v_fmamk_f32 v1, v2, 0x3fb8aa3b, v3",
            "v_fma_mix_f32 v1, v2, v3, v4",
            "v_add_f32_e32 v1, v2, v3",
        ]
    )
    assert (counts["vector"], counts["vector_operations"], counts["fma"]) == (5, 6, 3)


def test_the_main_loop_is_the_short_way_that_computes_enough():
    loop = _assembly.main_loop(LOOPS, matrix=2)
    assert [line.split()[0] for line in loop] == [
        "ds_load_b128", "v_wmma_f32_16x16x16_f16", "v_dual_fmac_f32", "v_exp_f32_e32", "s_cbranch_vccnz",
        "v_wmma_f32_16x16x16_f16", "v_fma_f32", "s_add_i32", "s_cbranch_scc1",
    ]  # fmt: skip
    counts = _assembly.mix(loop)
    assert (counts["matrix"], counts["transcendental"], counts["vector"], counts["lds"], counts["scalar"]) == (
        2,
        1,
        2,
        1,
        1,
    )
    assert counts["global"] == 0


def test_a_loop_of_no_products_is_the_longest():
    assert _assembly.mix(_assembly.main_loop(LOOPS))["global"] == 1


def test_a_number_of_products_that_no_loop_has_gives_the_longest_as_well():
    assert _assembly.main_loop(LOOPS, matrix=100) == _assembly.main_loop(LOOPS)


def test_code_without_a_loop_has_no_main_loop():
    text = "kernel:\n\tv_mov_b32 v0, 0\n\ts_cbranch_vccz .LBB0_1\n\tv_mov_b32 v1, 0\n.LBB0_1:\n\ts_endpgm\n"
    assert _assembly.main_loop(text, matrix=1) == []


@pytest.mark.parametrize(
    ("arch", "waves", "vgpr", "lds", "expected"),
    [
        ("gfx1100", 4, 256, 18432, (5, 6.0)),
        ("gfx1100", 4, 96, 0, (16, 16)),
        ("gfx1100", 1, 193, 20000, (7, 1.5)),
        ("gfx1030", 4, 256, 32768, (4, 4.0)),
        ("gfx942", 4, 314, 37120, (1, 1.0)),
        ("gfx950", 4, 128, 37120, (4, 4.0)),
    ],
)
def test_occupancy_is_bounded_by_registers_and_by_local_memory(arch, waves, vgpr, lds, expected):
    assert _assembly.occupancy(arch, waves, vgpr, lds) == expected


def test_limits_that_are_exceeded_are_named():
    good = dict.fromkeys(("vgpr", "agpr", "sgpr", "scratch", "vgpr_spills", "sgpr_spills", "flat"), 0) | {"lds": 65536}
    assert isa.problems("gfx1100", good) == ()
    assert isa.problems("gfx1100", good | {"scratch": 8, "sgpr_spills": 2}) == (
        "8 bytes of scratch", "2 spilled scalar registers",
    )  # fmt: skip
    assert isa.problems("gfx1100", good | {"lds": 65537}) == ("65537 bytes of local memory of 65536",)
    assert isa.problems("gfx950", good | {"lds": 65537}) == ()


def test_the_variants_are_all_that_the_matrix_launches():
    known = set(variants("gfx1100"))
    recorder = Recorder("gfx1100")
    cases = [c for c in expand(load("matrix.yaml")) if c.category == "quick" and c.facts.expect_error is None]
    with launching_on(recorder):
        for case in cases:
            call = make_call(case)
            resolve(case.operation.function)(**call.arguments)
    assert len(cases) > 400
    assert set(recorder.found) - known == set()


def test_kernels_and_types_can_be_chosen():
    chosen = variants("gfx942", kernels=["softmax", "scale"], dtypes=["float16"])
    assert sorted((v.name, v.dtypes[0]) for v in chosen) == [("scale", "float16"), ("softmax", "float16")]


def test_other_makers_architectures_are_refused():
    with pytest.raises(TargetError, match="'sm_90' is not an AMD architecture"):
        variants("sm_90")


def test_the_list_needs_no_compiler(capsys):
    assert main(["isa", "--arch", "gfx1201", "--kernel", "softmax", "--dtype", "float32", "--list"]) == 0
    assert capsys.readouterr().out.split() == ["gfx1201", "softmax", "2f32", "waves=4", "block_m=64", "block_n=64"]


def test_words_that_choose_nothing_are_an_error(capsys):
    assert main(["isa", "--kernel", "gemm"]) == 1
    assert "gemm" in capsys.readouterr().err


def numba_hip_is_there() -> bool:
    try:
        isa.require_compiler()
    except TargetError:
        return False
    return True


@pytest.mark.skipif(numba_hip_is_there(), reason="numba-hip is installed")
def test_without_numba_hip_the_line_that_installs_it_is_printed(capsys):
    assert main(["isa", "--arch", "gfx1100", "--kernel", "softmax"]) == 1
    assert 'pip install "rocmkern[hip]"' in capsys.readouterr().err


@pytest.mark.skipif(not numba_hip_is_there(), reason="numba-hip cannot be imported")
def test_a_kernel_is_compiled_for_real(tmp_path, capsys):
    file = tmp_path / "table.json"
    arguments = ["--arch", "gfx1100,gfx942", "--kernel", "qk_scores,softmax", "--dtype", "float16", "--jobs", "1"]
    assert main(["isa", *arguments, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    scores = [row for row in rows if row["kernel"] == "qk_scores" and row["arch"] == "gfx1100"]
    assert {row["kernel"] for row in rows} == {"qk_scores", "softmax"} and len(scores) >= 3
    assert all(row["loop"]["matrix"] > 0 and row["resources"]["lds"] > 0 for row in scores)
    assert "gfx942" in capsys.readouterr().out
