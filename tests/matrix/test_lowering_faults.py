"""Every seeded fault of the CPU's emitted code makes a quick row of the committed matrix fail, and says why where not.

Those of the GPUs run where there is one: ``rocmkern matrix mutate --target hip`` (or cuda). Here their anchors are
looked up as far as the compilers are installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocmkern.matrix.faults.anchors import FaultError, changed, find, within
from rocmkern.matrix.faults.lowering import TARGETS
from rocmkern.matrix.faults.lowerings import LOWERING_FAULTS

ROOT = Path(__file__).parents[2]
NEEDS = {"cpu": "numba", "hip": "numba.hip", "cuda": "numba_cuda"}


def in_fresh_process(text: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, **options)


def importable(name: str) -> bool:
    """Whether a compiler is installed and works here."""
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def test_every_target_has_its_twenty_faults():
    for target in TARGETS:
        assert sum(target in fault.targets for fault in LOWERING_FAULTS.values()) >= 20, target
    for name, fault in LOWERING_FAULTS.items():
        assert fault.name == name and fault.description and fault.rows and fault.changes


@pytest.mark.timeout(500)
def test_every_fault_of_the_cpu_is_caught():
    mutate = "import sys; from rocmkern.cli import main; sys.exit(main(sys.argv[1:]))"
    done = in_fresh_process(mutate, "matrix", "mutate", "--target", "cpu", "--jobs", "2", "--json")
    records = json.loads(done.stdout)["faults"]
    assert [record["name"] for record in records] == [f.name for f in LOWERING_FAULTS.values() if "cpu" in f.targets]
    missed = {record["name"]: record["error"] for record in records if not record["caught"]}
    assert not missed and done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("target", TARGETS)
def test_anchors_stand_for_something(target):
    if not importable(NEEDS[target]):
        pytest.skip(f"{NEEDS[target]} is not installed")
    anchors = {anchor for fault in LOWERING_FAULTS.values() if target in fault.targets for anchor in fault.changes}
    text = (
        "import sys; from rocmkern.matrix.faults.anchors import find\n"
        "for anchor in sys.argv[2:]: find(sys.argv[1], anchor)"
    )
    done = in_fresh_process(text, target, *sorted(anchors))
    if target != "cpu" and "ImportError" in done.stderr:
        pytest.skip(f"{NEEDS[target]} does not work here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


JUDGED = """
from rocmkern.matrix import load_cases
from rocmkern.matrix.faults.anchors import argument, plus, within
from rocmkern.matrix.faults.lowering import LoweringFault, judge

def broken(right):
    def faulty(*given):
        raise KeyError("no such register")
    return faulty

def killer(right):
    def faulty(*given):
        import os
        os.abort()
    return faulty

ROWS = ("causal_mask-masks_made-s33k17-f32-causal",)
FAULTS = [
    LoweringFault("sound", "nothing is wrong", ROWS, {"mask_outside": lambda right: right}),
    LoweringFault("wrong", "a key less", ROWS, {"mask_outside": argument(3, plus(-1))}),
    LoweringFault("broken", "nothing compiles", ROWS, {"mask_outside": broken}),
    LoweringFault("killer", "the process ends", ROWS, {"mask_outside": killer}),
    LoweringFault("gone", "names nothing", ROWS, {"mask_inside": broken}),
]
cases = [case for case in load_cases("matrix.yaml")[1] if case.category == "quick"]
for verdict in judge("cpu", FAULTS, cases):
    print(verdict.fault, "caught" if verdict.caught else "missed", verdict.how, sep="|")
"""


def test_a_fault_counts_as_caught_where_a_check_fails_or_the_process_ends():
    done = in_fresh_process(JUDGED)
    found = {line.split("|")[0]: line.split("|")[1:] for line in done.stdout.splitlines()}
    assert found["sound"] == ["missed", "1 rows pass"], done.stderr
    assert found["wrong"] == ["caught", "check parity"]
    assert found["broken"][0] == "missed" and "it does not run" in found["broken"][1]
    assert found["killer"] == ["caught", "the process was ended by SIGABRT"]
    assert found["gone"][0] == "missed" and "nothing in the lowering of cpu has this name" in found["gone"][1]


def test_a_process_that_has_compiled_is_refused():
    text = (
        "from rocmkern.tile._lowering.cpu.install import install; install()\n"
        "from rocmkern.matrix.faults.lowering import judge\n"
        "list(judge('cpu', [], []))"
    )
    done = in_fresh_process(text)
    assert "TargetError: cpu: this process has compiled kernels; faults of the lowering need a fresh one" in done.stderr


BESIDE_RIGHT_CODE = """
import sys
from pathlib import Path
from rocmkern.matrix import load_cases
from rocmkern.matrix.faults.anchors import argument, plus
from rocmkern.matrix.faults.lowering import LoweringFault, judge
from rocmkern.matrix.runner import run_case
from rocmkern.targets import cache, cpu, entries

ROWS = ("causal_mask-masks_made-s33k17-f32-causal",)
FAULTS = [LoweringFault("wrong", "a key less", ROWS, {"mask_outside": argument(3, plus(-1))})]
cases = [case for case in load_cases("matrix.yaml")[1] if case.category == "quick"]
(case,) = [case for case in cases if case.id == ROWS[0]]
cache.SHIPPED = Path(sys.argv[1])
if not any(cache.SHIPPED.iterdir()):
    run_case(case, "cpu")
    for path in cache.own_directory().glob("*.entry"):
        path.rename(cache.SHIPPED / cache.shipped_name(cache.Key.of(entries.decode(path.read_bytes()))))
else:
    (verdict,) = judge("cpu", FAULTS, cases)
    print(verdict.caught, verdict.how, sep="|")
    run_case(case, "cpu")
    assert not cpu.compiled()
    (verdict,) = judge("cpu", FAULTS, cases)
    print(verdict.caught, verdict.how, sep="|")
"""


def test_right_code_that_a_wheel_brought_hides_no_fault(tmp_path):
    """On disk it is passed over; what this process has loaded of it is said."""
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    environment = {**os.environ, "ROCMKERN_CACHE_DIR": str(tmp_path / "cache"), "ROCMKERN_TARGET": "cpu"}
    made = in_fresh_process(BESIDE_RIGHT_CODE, str(shipped), env=environment)
    assert made.returncode == 0 and any(shipped.iterdir()), made.stderr
    judged = in_fresh_process(BESIDE_RIGHT_CODE, str(shipped), env=environment)
    before, after = judged.stdout.splitlines()
    assert before == "causal_mask-masks_made-s33k17-f32-causal|check parity", judged.stderr
    assert after.startswith("None|it does not run: TargetError: cpu: this process has loaded kernels")


def test_changes_are_undone_and_reach_whoever_imported_the_name():
    from rocmkern.tile._lowering.cpu import memory
    from rocmkern.tile._lowering.shared import tensors

    right = tensors.from_byte
    assert memory.from_byte is right
    with pytest.raises(ZeroDivisionError), changed("cpu", {"from_byte": lambda found: (found, "wrong")}):
        assert memory.from_byte is tensors.from_byte and memory.from_byte == (right, "wrong")
        raise ZeroDivisionError
    assert memory.from_byte is tensors.from_byte is right


def test_a_static_method_stays_one():
    with changed("cpu", {"window_is_finite": lambda right: lambda *given: given}):
        from rocmkern.tile._lowering.cpu.products import CpuLowering

        assert CpuLowering.window_is_finite(1, 2) == (1, 2)
    assert isinstance(vars(CpuLowering)["window_is_finite"], staticmethod)


def test_a_name_that_two_things_have_is_refused(monkeypatch):
    from rocmkern.tile._lowering.shared import squares, tensors

    assert squares.joined is not tensors.joined
    (owner, *_), name, thing = find("cpu", "squares:joined")
    assert owner is squares and name == "joined" and thing is squares.joined
    for owner in (squares, tensors):
        monkeypatch.setattr(owner, "of_both", object(), raising=False)
    with pytest.raises(FaultError, match=r"several things have this name, in .*squares.*tensors"):
        find("cpu", "of_both")
    with pytest.raises(FaultError, match="nothing in the lowering of cpu"):
        find("cpu", "over_lanes_of_a_wave")


def test_instructions_are_others_only_while_the_function_runs():
    from llvmlite import ir

    before = ir.IRBuilder.add
    seen = within(add=lambda method: "another")(lambda: ir.IRBuilder.add)()
    assert seen == "another" and ir.IRBuilder.add is before
