"""The records of architectures: what is in them, what is looked up by them, and what a card gets that has none."""

import ast
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from rocmkern import architectures
from rocmkern.architectures import architecture, compiled_as, known, tuned
from rocmkern.ops.attention import tuning
from rocmkern.ops.steps.kernels import softmax
from rocmkern.runtime.errors import TargetError
from rocmkern.targets import source
from rocmkern.tile._lowering.shared.atoms import ATOMS

CARDS = [
    *("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035"),
    *("gfx1036", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1200"),
    *("gfx1201", "gfx9-4-generic", "gfx10-3-generic", "gfx11-generic", "gfx12-generic"),
]


@pytest.mark.parametrize("name", CARDS)
def test_everything_that_is_asked_of_an_architecture_is_there(name):
    hardware = architecture(name)
    assert ATOMS[hardware.matrix or "fma"].wave == hardware.wave == (64 if name.startswith("gfx9") else 32)
    assert hardware.target == "hip" and hardware.processor == name and hardware.elf_machine
    unit = hardware.compute_unit
    assert (unit.simds, unit.simd_lanes, unit.matrix_unit) == ((4, 16, True) if hardware.wave == 64 else (2, 32, False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled_as(f"{name}:xnack-") == name


@pytest.mark.parametrize("name", CARDS)
def test_cards_without_matrix_instructions_have_blocks_for_that(name):
    without = tuning.blocks_of("gfx1030")
    assert (tuning.blocks_of(name) is without) == (not architecture(name).matrix)


@pytest.mark.parametrize(
    ("card", "expected"),
    [("gfx1154", "gfx11-generic"), ("gfx1104", "gfx11-generic"), ("gfx1037", "gfx10-3-generic"),
     ("gfx1202:xnack-", "gfx12-generic"), ("gfx952", "gfx9-4-generic")],
)  # fmt: skip
def test_an_unknown_card_of_a_known_family_gets_its_generic_target_with_one_warning(card, expected):
    compiled_as.cache_clear()
    with pytest.warns(RuntimeWarning, match=f"{card.split(':')[0]} is not known .* compiled for {expected}") as caught:
        assert compiled_as(card) == compiled_as(card) == expected
    assert len(caught) == 1


@pytest.mark.parametrize("card", ["gfx906", "gfx1010", "gfx1250", "gfx1310", "gfx11", "gfx11000"])
def test_a_card_of_no_known_family_is_refused_by_name(card):
    with pytest.raises(TargetError, match=f"'{card}' is not known; known: .*gfx1100"):
        compiled_as(card)


def test_the_records_are_all_that_there_are():
    assert set(CARDS) == set(known("hip"))
    assert known("python") == ["python"] and known("cpu") == ["cpu-avx2", "cpu-avx512", "cpu-portable"]
    assert known("cuda") == ["sm_100", "sm_103", "sm_120", "sm_121", "sm_80", "sm_86", "sm_89", "sm_90"]
    assert known() == sorted(n for target in ("python", "cpu", "hip", "cuda") for n in known(target))


@pytest.mark.parametrize("name", known("cuda"))
def test_nvidia_cards_have_blocks_and_a_name_that_the_compiler_knows(name):
    hardware = architecture(name)
    assert hardware.wave == 32 and hardware.matrix in ("mma.sync", "wgmma") and not hardware.compute_unit
    assert hardware.processor == (name + "a" if hardware.matrix == "wgmma" else name)
    assert hardware.overlaps == (name not in ("sm_80", "sm_86", "sm_89"))
    assert tuning.attention(name, 64, 128, 128, 2, False).waves == 4


def test_the_reduced_axis_of_a_matrix_instruction_is_as_long_as_its_name_says():
    for atom in ATOMS.values():
        for dtype, name in atom.intrinsics.items():
            assert atom.instruction_k(dtype) == int(re.search(r"16x16x(\d+)", name)[1])


def test_no_architecture_is_named_where_something_depends_on_it():
    root = Path(architectures.__file__).parents[1]
    # What `rocmkern isa` compiles unless told; a card that is only pretended; some name, for a linker that wants one.
    kept = {"cli/isa.py", "matrix/faults/simulated.py", "targets/linkers.py"}
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            text = text.decode() if isinstance(text, bytes) and text.isascii() else text
            if isinstance(text, str) and re.fullmatch(r"gfx[\w.-]*|sm_\d*|cpu-\w*", text):
                found.add(path.relative_to(root).as_posix())
    assert {name for name in found if not name.startswith("architectures/")} == kept


def test_no_two_processors_have_the_same_flag_in_a_code_object():
    flags = [architecture(name).elf_machine for name in known("hip")]
    assert len(set(flags)) == len(flags)


def test_the_virtual_gpu_which_has_a_table_of_its_own_says_the_same():
    """It reads flags and refuses cards by itself, so that it does not take from a program what it checks."""
    tree = ast.parse((Path(__file__).parents[1] / "tools" / "virtual_gpu" / "vgpu.py").read_text(encoding="utf-8"))
    tables = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    flags, generic = (eval(ast.unparse(tables[name])) for name in ("MACH", "GENERIC"))
    both = set(flags.values()) & set(CARDS)
    assert len(both) >= 25
    assert {name: flag for flag, name in flags.items() if name in both} == {
        n: architecture(n).elf_machine for n in both
    }
    for target, pattern in generic.items():
        runs = {card for card in CARDS if re.fullmatch(pattern, card)}
        assert runs == {card for card in CARDS if re.fullmatch(architecture(target).runs_on, card)}


def test_a_generic_target_runs_on_the_cards_of_its_generation_and_on_no_others():
    of_a_card = {name: architecture(name) for name in CARDS if not architecture(name).runs_on}
    generic = [architecture(name) for name in CARDS if architecture(name).runs_on]
    assert len(generic) == 4
    for target in generic:
        cards = [record for name, record in of_a_card.items() if re.fullmatch(target.runs_on, name)]
        assert cards and all(record.wave == target.wave and record.matrix == target.matrix for record in cards)
        # What runs on all of them is what the least of them has.
        assert target.shared_bytes == min(record.shared_bytes for record in cards)
        assert target.compute_unit.registers == min(record.compute_unit.registers for record in cards)


TABLE = {"gpu": 1, "amd": 2, "rdna": 3, "rdna3": 4, "gfx1103": 5, "sm_90": 6, "python": 7}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gfx1103", 5), ("gfx1103:xnack-", 5), ("gfx1102", 4), ("gfx1201", 3), ("gfx942", 2), ("sm_90", 6), ("sm_80", 1),
     ("python", 7)],
)  # fmt: skip
def test_the_closest_relative_that_has_sizes_gives_them(name, expected):
    assert tuned(TABLE, name) == expected == tuned(TABLE, name, None)
    assert tuned(dict(reversed(TABLE.items())), name) == expected


def test_where_there_are_no_sizes_the_default_is_taken_or_it_is_an_error():
    assert tuned(TABLE, "cpu-avx2", None) is None and tuned({}, "sm_90", ()) == ()
    with pytest.raises(TargetError, match=r"no sizes for cpu-avx2: .* one of cpu-avx2, cpu; got gpu, amd"):
        tuned(TABLE, "cpu-avx2")
    with pytest.raises(TargetError, match="'gfx1104' is not known"):
        tuned(TABLE, "gfx1104", None)


def test_a_record_is_all_that_an_architecture_needs(monkeypatch):
    made = replace(architecture("gfx1100"), name="gfx1199", elf_machine=0xFF)
    monkeypatch.setitem(architectures._RECORDS, "gfx1199", made)
    assert compiled_as.__wrapped__("gfx1199:xnack-") == "gfx1199" in known("hip")
    assert tuning.attention("gfx1199", 64, 128, 128, 2, False).block_m == 64


def test_kernels_are_compiled_anew_when_the_record_of_their_architecture_changes(monkeypatch):
    def key(arch):
        return source.variant_key("hip", softmax.softmax, softmax.Config(arch=arch), ("float16",) * 2).digest

    before = key("gfx1100"), key("gfx942")
    monkeypatch.setitem(architectures._RECORDS, "gfx1100", replace(architecture("gfx1100"), banks=64))
    assert key("gfx1100") != before[0] and key("gfx942") == before[1]
