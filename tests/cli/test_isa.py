"""``rocmkern isa``: what is read from assembly, which kernels are compiled, and what is an error."""

import functools
import importlib
import json
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rocmkern.cli import _assembly, _budgets, isa, main
from rocmkern.cli._variants import ShapeDraw, Variant, sample, variants
from rocmkern.matrix import expand, load, loads
from rocmkern.matrix.schema import KernelBudget
from rocmkern.ops.places import kernel_modules
from rocmkern.ops.steps.kernels import qk_scores
from rocmkern.runtime.errors import TargetError


@functools.cache
def committed():
    """The matrix, and what its rows launch, found once."""
    matrix = load("matrix.yaml")
    return matrix, variants(isa.ARCHITECTURES, matrix)


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


def test_what_fills_the_place_before_an_aligned_block_is_no_way_into_the_loop():
    """Else the head of the loop would not dominate its end, and the loop would not be one."""
    text = LOOPS.replace(".LBB0_3: ", "\ts_branch .LBB0_3\n\ts_nop 0\n\ts_nop 0\n.LBB0_3: ")
    assert _assembly.mix(_assembly.main_loop(text, matrix=2))["matrix"] == 2


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
def test_occupancy_is_bounded_by_registers_and_by_shared_memory(arch, waves, vgpr, lds, expected):
    assert _assembly.occupancy(arch, waves, vgpr, lds) == expected


GOOD = dict.fromkeys(("vgpr", "agpr", "sgpr", "scratch", "vgpr_spills", "sgpr_spills", "flat"), 0) | {"lds": 65536}
LOOP = {"matrix": 10, "vector": 60, "transcendental": 10, "fma": 45, "vector_operations": 60}


def test_what_no_kernel_may_need_is_named():
    assert _budgets.exceeded("gfx1100", GOOD, 4, LOOP) == ()
    assert _budgets.exceeded("gfx1100", GOOD | {"scratch": 8, "sgpr_spills": 2, "flat": 1}, 4, LOOP) == (
        "8 bytes of scratch", "0 vector and 2 scalar registers spilled", "1 flat instructions",
    )  # fmt: skip
    assert _budgets.exceeded("gfx1100", GOOD | {"lds": 65537}, 4, LOOP) == ("65537 bytes of shared memory of 65536",)
    assert _budgets.exceeded("gfx950", GOOD | {"lds": 65537}, 4, LOOP) == ()


@pytest.mark.parametrize(
    ("kept", "broken", "words"),
    [
        ({"vgpr": 100}, {"vgpr": 99}, "100 vector registers, at most 99"),
        ({"lds": 65536}, {"lds": 65535}, "65536 bytes of shared memory, at most 65535"),
        ({"occupancy": 3.5}, {"occupancy": 4}, "3.5 waves for each SIMD, at least 4"),
        ({"vector_per_matrix": 7}, {"vector_per_matrix": 6.9},
         "7.00 vector instructions for each matrix instruction, at most 6.9"),
        ({"fma_share": 0.75}, {"fma_share": 0.76}, "75.0% FMAs in the main loop, at least 76%"),
    ],
)  # fmt: skip
def test_a_limit_holds_up_to_its_number(kept, broken, words):
    numbers = ("gfx1100", GOOD | {"vgpr": 100}, 3.5, LOOP)
    assert _budgets.exceeded(*numbers, {"mine": KernelBudget(kernel="any", **kept)}) == ()
    assert _budgets.exceeded(*numbers, {"mine": KernelBudget(kernel="any", **broken)}) == (f"{words} (budget mine)",)


def test_a_main_loop_without_the_instructions_of_a_limit_breaks_it():
    limits = {"mine": KernelBudget(kernel="any", vector_per_matrix=8, fma_share=0.5)}
    assert _budgets.exceeded("gfx1100", GOOD, 4, {}, limits) == (
        "no matrix instruction in the main loop (budget mine)",
        "0.0% FMAs in the main loop, at least 50% (budget mine)",
    )


def test_scratch_and_spills_can_be_allowed_up_to_a_number():
    allowed = {"mine": KernelBudget(kernel="any", scratch=16, spills=3, reason="a test")}
    spilled = GOOD | {"vgpr_spills": 1, "sgpr_spills": 2}
    assert _budgets.exceeded("gfx1100", spilled | {"scratch": 16}, 4, LOOP, allowed) == ()
    assert len(_budgets.exceeded("gfx1100", spilled | {"scratch": 17, "sgpr_spills": 3}, 4, LOOP, allowed)) == 2


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"kernel": "flash_*"}, True),
        ({"kernel": "scale"}, False),
        ({"kernel": "flash_*", "arch": "gfx11*"}, True),
        ({"kernel": "flash_*", "arch": "gfx9*"}, False),
        ({"kernel": "flash_*", "dtypes": ["f16", "f32"]}, True),
        ({"kernel": "flash_*", "dtypes": ["bf16"]}, False),
        ({"kernel": "flash_*", "config": {"waves": 4, "score_mods": False}}, True),
        ({"kernel": "flash_*", "config": {"waves": 8}}, False),
        ({"kernel": "flash_*", "config": {"columns": 8}}, False),
    ],
)
def test_a_budget_says_which_kernels_it_is_for(budget, expected):
    settings = {"waves": 4, "score_mods": False}
    found = _budgets.matches(
        KernelBudget(vgpr=1, **budget), "flash_attention", "gfx1100", ("float16", "float32"), settings
    )
    assert found == expected


def recorded(name):
    """Labels, instructions and resources of a kernel that numba-hip compiled."""
    with lzma.open(Path(__file__).parent / "recorded" / f"{name}.s.xz", "rt") as file:
        return file.read()


def scores(arch, dtype):
    """The variant of recorded assembly."""
    cfg = qk_scores.Config(arch=arch, waves=1, block_m=16, block_n=32 if dtype == "float16" else 16, head_dim=64)
    return Variant(qk_scores.qk_scores, cfg, (dtype,) * 3)


@pytest.mark.parametrize(
    ("arch", "dtype", "resources", "loop", "waves"),
    [
        ("gfx1100", "float16", {"vgpr": 124, "sgpr": 59, "lds": 4608}, {"matrix": 8, "lds": 24}, (10, 7.0)),
        ("gfx1030", "float32", {"vgpr": 115, "sgpr": 52, "lds": 4352}, {"fma": 512, "vector": 546}, (8, 7.5)),
    ],
)
def test_recorded_assembly_becomes_a_row(arch, dtype, resources, loop, waves):
    name = f"qk_scores_{'f16' if dtype == 'float16' else 'f32'}_{arch}"
    row = isa.row_of(scores(arch, dtype), recorded(name))
    assert row.resources | resources == row.resources and row.loop | loop == row.loop
    assert (row.waves_by_registers, row.waves_by_lds) == waves
    assert not any(row.resources[key] for key in ("scratch", "vgpr_spills", "sgpr_spills", "flat"))


def test_the_budgets_that_match_a_row_are_checked():
    variant = scores("gfx1030", "float32")
    row = isa.row_of(variant, recorded("qk_scores_f32_gfx1030"))
    budgets = {
        "kept": KernelBudget(kernel="qk_*", arch="gfx103?", fma_share=0.9),
        "broken": KernelBudget(kernel="qk_*", config={"head_dim": 64}, vgpr=114),
        "not_mine": KernelBudget(kernel="qk_*", config={"head_dim": 128}, vgpr=1),
    }
    assert isa.problems(row, variant.settings, budgets) == ("115 vector registers, at most 114 (budget broken)",)


def test_every_budget_of_the_matrix_is_for_a_kernel():
    matrix, found = committed()
    assert len(matrix.matrix.budgets) > 5
    assert _budgets.without_kernel(matrix, found) is None


def test_a_budget_for_no_kernel_is_an_error_with_its_place():
    text = SMALL + "budgets:\n  lost: {kernel: gemm, vgpr: 128}\n"
    matrix = loads(text)
    error = _budgets.without_kernel(matrix, variants(["gfx1100"], matrix))
    assert str(error).startswith("<matrix>:") and "budgets.lost: matches no kernel" in str(error)


SMALL = """\
version: 1
registry: rocmkern.ops.catalog
groups:
  some:
    why: a test
    operation: softmax
    rows:
      - {shape: {size: [4, 4]}, dtypes: [f32, f16]}
      - {category: benchmark, shape: {size: [65536, 16384]}, dtypes: [bf16]}
      - {name: bad, shape: {size: [4, 4]}, spoil: {x: as_list}, expect_error: {type: ArgumentTypeError, argument: x}}
"""


def test_variants_are_those_of_the_rows_and_large_rows_take_no_memory():
    found = variants(["gfx1100", "gfx942"], loads(SMALL))
    assert [(v.cfg.arch, v.name, v.dtypes[0]) for v in found] == [
        (arch, "softmax", dtype) for arch in ("gfx1100", "gfx942") for dtype in ("float32", "float16", "bfloat16")
    ]


def test_arrays_that_a_declaration_computes_are_not_computed():
    draw = ShapeDraw(expand(loads(SMALL))[0])
    made = draw.made((2, 3), np.uint8, lambda: pytest.fail("was computed"))
    assert (made.shape, made.dtype) == ((2, 3), np.uint8)


def test_kernels_and_types_can_be_chosen():
    everything = variants(["gfx942"], loads(SMALL))
    assert [v.dtypes[0] for v in everything if v.name == "softmax"] == ["float32", "float16", "bfloat16"]
    chosen = variants(["gfx942"], loads(SMALL), kernels=["softmax", "scale"], dtypes=["float16"])
    assert [(v.name, v.dtypes[0]) for v in chosen] == [("softmax", "float16")]
    assert variants(["gfx942"], loads(SMALL), kernels=["scale"]) == []


def test_the_rows_of_the_matrix_reach_every_kernel():
    """A kernel that no row launches would never be compiled."""
    modules = [importlib.import_module(name) for name in kernel_modules()]
    written = {fn.__name__ for m in modules for fn in vars(m).values() if hasattr(fn, "parameters")}
    reached = {v.name for v in committed()[1] if v.cfg.arch == "gfx1100"}
    assert len(written) > 15 and written == reached


def test_a_sample_has_every_kernel_and_type_on_every_architecture():
    everything = committed()[1]
    one, two = sample(everything, 1), sample(everything, 2)
    kinds = Counter((v.cfg.arch, v.name, v.dtypes[0]) for v in everything)
    assert Counter((v.cfg.arch, v.name, v.dtypes[0]) for v in one) == dict.fromkeys(kinds, 1)
    assert Counter((v.cfg.arch, v.name, v.dtypes[0]) for v in two) == {kind: min(n, 2) for kind, n in kinds.items()}
    assert [v for v in everything if v in set(two)] == two and set(one) < set(two)
    # It is not a matter of the order of the rows.
    assert set(sample(everything[::-1], 1)) == set(one)


def test_other_makers_architectures_are_refused():
    with pytest.raises(TargetError, match="'sm_90' is not an AMD architecture"):
        variants(["sm_90"], loads(SMALL))


@pytest.fixture
def small_matrix(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(SMALL, encoding="utf-8")
    return str(file)


def test_the_list_needs_no_compiler(small_matrix, capsys):
    words = ["--matrix", small_matrix, "--arch", "gfx1201", "--kernel", "softmax", "--dtype", "float32", "--list"]
    assert main(["isa", *words]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split()[:3] == ["gfx1201", "softmax", "2f32"] and "waves=" in line and "block_m=" in line


def test_a_sample_is_of_what_was_chosen(small_matrix, capsys):
    words = ["isa", "--matrix", small_matrix, "--arch", "gfx1201,gfx942", "--dtype", "float16", "--list"]
    assert main([*words, "--sample", "1"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in listed] == [["gfx1201", "softmax", "2f16"], ["gfx942", "softmax", "2f16"]]
    assert main([*words, "--sample", "0"]) == 2
    assert capsys.readouterr().err.startswith("rocmkern: --sample: got 0; allowed: a number of variants, 1 or more")


def test_all_architectures_can_be_asked_for(small_matrix, capsys):
    words = ["--matrix", small_matrix, "--arch", "all", "--kernel", "softmax", "--dtype", "float32", "--list"]
    assert main(["isa", *words]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert len(listed) == 25 and {"gfx908", "gfx1036", "gfx1153", "gfx12-generic"} <= set(listed)


def test_words_that_choose_nothing_are_an_error(small_matrix, capsys):
    assert main(["isa", "--matrix", small_matrix, "--kernel", "gemm"]) == 2
    assert "gemm" in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["gfx9999", "sm_90", "cpu-avx2", "gfx1100,gfx"])
def test_an_architecture_that_is_none_of_amds_is_an_error(small_matrix, capsys, arch):
    assert main(["isa", "--matrix", small_matrix, "--arch", arch, "--list"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"rocmkern: --arch: got {arch.split(',')[-1]}; allowed: gfx10-3-generic, ")
    assert error.count("\n") == 1 and "sm_" not in error.partition("allowed")[2]


def numba_hip_is_there() -> bool:
    try:
        isa.require_compiler()
    except TargetError:
        return False
    return True


@pytest.mark.skipif(numba_hip_is_there(), reason="numba-hip is installed")
def test_without_numba_hip_the_line_that_installs_it_is_printed(small_matrix, capsys):
    assert main(["isa", "--matrix", small_matrix, "--arch", "gfx1100", "--kernel", "softmax"]) == 1
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
