"""The tool that finds block sizes: what it tries, what it takes, what it writes. Times are the tests' own."""

from __future__ import annotations

import importlib
import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocmkern.architectures import known, tuned
from rocmkern.cli.isa import Row
from rocmkern.matrix import load_cases
from rocmkern.ops import streaming
from rocmkern.ops.norm.kernels import rms_norm
from rocmkern.runtime.errors import ArgumentError, TileError

ROOT = Path(__file__).parents[2]
ROW = "rms_norm-rms_norms-n3x64-f32"
MODULE = """\
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Sizes:
    rows: int = 16
    keys: dict = field(default_factory=lambda: {64: 64, 128: 32})
    line: tuple = (4, 256)


_CPU = Sizes(rows=8)
TABLE = {
    # Grüße: not every character is a byte.
    "cpu": _CPU,
    "amd": Sizes(
        rows=32,
    ),
    "gfx1100": replace(_CPU, rows=64),
}
"""


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.delitem(sys.modules, "tune", raising=False)
    return importlib.import_module("tune")


@pytest.fixture
def space(tool, monkeypatch, tmp_path):
    """A space over a table of a module of the test's."""
    (tmp_path / "made_sizes.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "made_sizes", raising=False)
    made = tool.Space(
        "made_sizes:TABLE", (tool.Knob("rows", 2, 64), tool.Knob("keys.*", 16, 128), tool.Knob("line.1", 64, 512))
    )
    monkeypatch.setitem(tool.SPACES, "rms_norm", made)
    return made


def measure_by(tool, space, seconds, arch="cpu-avx2", noise=lambda: 1.0):
    """A measurement of records whose times are known; a record whose time is a text cannot be used."""

    def measure(records, effect):
        found = []
        for record in records:
            with effect(record):
                assert tuned(space.entries, arch) == record
            time = seconds(record)
            found.append(time if isinstance(time, str) else tool.Score((time * noise(),), f"{time} s"))
        return found

    return measure


OPERATIONS = ["decode_attention", "flash_attention", "layer_norm", "matmul", "mlp", "rms_norm", "softmax"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_knob_turns_numbers_of_some_architecture(tool, name):
    space = tool.SPACES[name]
    for knob in space.knobs:
        concerned = [arch for arch in known() if knob.concerns(arch)]
        assert concerned and (knob.family or set(concerned) == set(known()))
        assert any(list(tool.candidates(tuned(space.entries, arch), knob)) for arch in concerned), knob.path


def test_every_operation_has_rows_to_measure(tool):
    timed = {case.operation.name for case in load_cases(ROOT / "matrix.yaml")[1] if case.category == "benchmark"}
    assert set(tool.SPACES) <= timed


def test_candidates_differ_by_powers_of_two_in_all_numbers_of_a_knob_and_keep_within_its_bounds(tool, space):
    present = space.entries["cpu"]
    found = dict(tool.candidates(present, tool.Knob("keys.*", 16, 128)))
    assert {factor: record.keys for factor, record in found.items()} == {
        0.5: {64: 32, 128: 16}, 2.0: {64: 128, 128: 64},
    }  # fmt: skip
    assert all(replace(record, keys=present.keys) == present for record in found.values())
    assert [r.keys for _, r in tool.candidates(present, tool.Knob("keys.128", 8, 32))] == [
        {64: 64, 128: n} for n in (8, 16)
    ]
    assert [r.line for _, r in tool.candidates(present, tool.Knob("line.0", 1, 8))] == [(1, 256), (2, 256), (8, 256)]
    assert list(tool.candidates(replace(present, rows=0), tool.Knob("rows", 1, 64))) == []
    odd = replace(present, rows=6)
    assert [r.rows for _, r in tool.candidates(odd, tool.Knob("rows", 1, 64))] == [3, 12, 24]


def test_a_record_in_effect_is_what_operations_choose_by_and_is_gone_afterwards(tool):
    space = tool.SPACES["rms_norm"]
    before, arch = dict(space.entries), "cpu-avx2"

    def chosen():
        return streaming.rows_config(rms_norm.Config, arch, 4096, whole=True).block_m

    record = replace(tuned(space.entries, arch), whole_by_width={4096: streaming.LaneBlock(16, 1, 0)})
    with pytest.raises(KeyError), tool.in_effect(space.entries, arch, record):
        assert chosen() == 16
        raise KeyError
    assert chosen() == 1 and space.entries == before and list(space.entries) == list(before)


def test_the_search_finds_the_fastest_sizes(tool, space):
    said = []
    best = {"rows": 2, "keys": {64: 128, 128: 64}}

    def seconds(record):
        return sum(2.0 if getattr(record, name) != value else 1.0 for name, value in best.items())

    found = tool.search(space, "cpu-avx2", measure_by(tool, space, seconds), 0.03, said.append)
    assert found == replace(space.entries["cpu"], **best)
    assert [line.split()[0] for line in said if "taken" in line] == ["0.25", "2"]
    assert "cpu-avx2" not in space.entries


def test_what_is_within_the_noise_or_cannot_be_used_is_not_taken(tool, space):
    present, said = space.entries["cpu"], []

    def seconds(record):
        return 1.0 if record == present else "does not fit" if record.rows < 8 else 0.98

    assert tool.search(space, "cpu-avx2", measure_by(tool, space, seconds), 0.03, said.append) == present
    assert sum("cannot be used: does not fit" in line for line in said) == 2
    assert not any("taken" in line for line in said)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_slower_than_the_present_sizes_is_found_whatever_the_noise(tool, space, seed):
    draw = random.Random(seed)
    cost = {}

    def seconds(record):
        return cost.setdefault(repr(record), draw.uniform(0.5, 1.5))

    noise = measure_by(tool, space, seconds, noise=lambda: draw.uniform(0.99, 1.01))
    found = tool.search(space, "cpu-avx2", noise, 0.03, lambda line: None)
    assert seconds(found) <= seconds(space.entries["cpu"])


def test_a_candidate_has_to_be_faster_twice(tool, space):
    asked = []

    def measure(records, effect):
        asked.append(len(records))
        lucky = len(records) > 2
        return [tool.Score((1.0,), ""), *(tool.Score((0.5 if lucky else 1.0,), "") for _ in records[1:])]

    assert tool.search(space, "cpu-avx2", measure, 0.03, lambda line: None) == space.entries["cpu"]
    assert asked == [5, 2, 3, 2, 4, 2]


def test_sizes_that_cannot_be_used_now_are_an_error(tool, space):
    with pytest.raises(ArgumentError, match=r"cannot be used \(no shared memory\)"):
        tool.search(space, "cpu-avx2", measure_by(tool, space, lambda r: "no shared memory"), 0.03, print)


@pytest.mark.parametrize("arch", ["cpu-avx512", "gfx1103", "gfx1100"])
def test_what_is_written_is_a_table_with_the_record_that_was_found(tool, space, arch):
    after = replace(tuned(space.entries, arch), rows=2, line=(8, 64))
    text = tool.edited(MODULE, "TABLE", arch, after)
    made = {"__name__": "made_sizes"}
    exec(text, made)
    assert repr(tuned(made["TABLE"], arch)) == repr(after)
    for other in {"cpu-avx2", "gfx1100", "gfx942", "cpu-avx512", "gfx1103"} - {arch}:
        assert repr(tuned(made["TABLE"], other)) == repr(tuned(space.entries, other))
    assert f'    "{arch}": Sizes(rows=2, line=(8, 64)),\n' in text
    assert text.count(arch) == 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_record_of_the_tables_is_spelled_as_it_is(tool, name):
    space = tool.SPACES[name]
    for record in space.entries.values():
        assert eval(tool.spelled(record), vars(space.module)) == record


def row(error="", waves=(8, 8.0), **numbers):
    resources = dict.fromkeys(("scratch", "vgpr_spills", "sgpr_spills"), 0)
    loop = dict.fromkeys(("matrix", "vector", "transcendental", "lds", "scratch", "flat", "global", "scalar", "fma"), 0)
    loop |= {"matrix": 4, "vector": 12}
    given = {
        name: {k: numbers.get(k, v) for k, v in had.items()} for name, had in (("resources", resources), ("loop", loop))
    }
    return Row("gfx1100", "k", (), "", given["resources"], *waves, given["loop"], error=error)


def test_counters_decide_in_their_order(tool):
    order = [
        [row(vector=4)], [row()], [row(), row(vector=20)], [row(waves=(8, 7.0), vector=4)], [row(sgpr_spills=1)],
        [row(vgpr_spills=2, waves=(16, 16))], [row(scratch=4, waves=(16, 16), vector=4)],
    ]  # fmt: skip
    scores = [tool.counters(rows) for rows in order]
    assert sorted(scores) == scores and len({score.rank for score in scores}) == len(order)
    assert scores[1].text == "0 bytes of scratch, 0 spills, 8 waves, 4 instructions per product"
    assert tool.counters([row(matrix=0, fma=6)]).rank[-1] == 2.0
    assert tool.counters([row(matrix=0, **{"global": 2})]).rank[-1] == 7.0
    assert tool.counters([row(), row(error="no registers\nmore")]) == "no registers"


def test_candidates_for_an_amd_card_are_judged_by_what_their_kernels_compile_to(tool, monkeypatch, capsys):
    from rocmkern.cli import isa

    asked = []

    def examine(variant):
        asked.append(variant)
        if variant.cfg.block_n == 16:
            return row(error="too few keys")
        return row(scratch=64 if variant.cfg.block_n > 64 else 0, vector=variant.cfg.block_n)

    monkeypatch.setattr(isa, "examine", examine)
    monkeypatch.setattr(isa, "require_compiler", lambda: None)
    arguments = ["flash_attention", "--arch", "gfx1103", "--case", "flash_attention-speed-b1h8s512d64-f32-causal"]
    assert tool.main([*arguments, "--knob", "blocks.keys.*"]) == 0
    printed = capsys.readouterr().out
    assert "scratch" in printed and {variant.name for variant in asked} == {"flash_attention"}
    assert len(set(asked)) == len(asked), "a variant is compiled once"
    assert tool.main(["flash_attention", "--arch", "sm_90"]) == 2
    assert "an AMD architecture" in capsys.readouterr().err


@dataclass
class Clock:
    """Takes the time that the sizes in effect are said to take."""

    function: object
    seconds: list = field(default_factory=list)
    counts = "cpu_s"

    def __call__(self):
        self.seconds.append(self.function())

    def medians(self):
        return {"cpu_s": sorted(self.seconds)[len(self.seconds) // 2]}


@pytest.fixture
def pretended(tool, space, monkeypatch):
    """Rows of a matrix whose times follow from the table of the test."""
    ran = []

    def run():
        sizes = tuned(space.entries, "cpu-avx2")
        ran.append(sizes.rows)
        if sizes.rows == 32:
            raise TileError("kernel k for Config(a=(1, 2), b=Config(c=3)): rows: too many\nof them")
        return 0.003 if sizes.rows != 16 else 0.002

    place = SimpleNamespace(kernel=lambda call: SimpleNamespace(function=run), clock=Clock)
    monkeypatch.setattr("rocmkern.testing.bench.place_of", lambda case, target: place)
    monkeypatch.setenv("ROCMKERN_CPU_ARCH", "cpu-avx2")

    @contextmanager
    def use(target):
        yield

    monkeypatch.setattr("rocmkern.use", use)
    monkeypatch.setattr("rocmkern.target", lambda: SimpleNamespace(name="cpu", arch="cpu-avx2"))
    return ran


def test_candidates_are_called_in_turns_and_short_rows_more_than_once(tool, space, pretended, capsys):
    assert tool.main(["rms_norm", "--case", ROW, "--knob", "rows", "--rounds", "3"]) == 0
    turns = [8, 2, 4, 16]
    thrice = [n for n in turns for _ in range(3)]
    once_more = [8, 16] + [8, 16] + 2 * [8, 8, 8, 16, 16, 16]
    assert pretended == [*turns, 32] + turns + 2 * thrice + once_more
    printed = capsys.readouterr()
    assert "compiling" in printed.err and "round 3 of 3" in printed.err
    assert "4 x: cannot be used: rows: too many\n" in printed.out and "<- taken" in printed.out
    assert '+    "cpu-avx2": Sizes(),' in printed.out


def test_the_file_changes_only_when_asked_to(tool, space, pretended, tmp_path, capsys):
    path, words = tmp_path / "made_sizes.py", ["rms_norm", "--case", ROW, "--knob", "rows", "--rounds", "1"]
    assert tool.main(words) == 0 and path.read_text(encoding="utf-8") == MODULE
    assert tool.main([*words, "--write"]) == 0
    assert '    "cpu-avx2": Sizes(),\n}\n' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--rounds", "0"], "--rounds: got 0; allowed: 1 or more"),
        (["--knob", "colour"], r"--knob: got ['colour']; allowed: rows, keys.*, line.1"),
        (["--case", "nothing*"], "--case: got ['nothing*']; allowed: ids such as rms_norm-"),
    ],
)
def test_wrong_arguments_are_named(tool, space, pretended, capsys, words, error):
    assert tool.main(["rms_norm", *words]) == 2
    assert error in capsys.readouterr().err


def test_help_explains_every_option(tool, capsys):
    with pytest.raises(SystemExit) as ended:
        tool.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    options = ("--target", "--arch", "--case", "--knob", "--rounds", "--margin", "--matrix", "--write")
    assert all(option in text for option in options) and "{" + ",".join(OPERATIONS) + "}" in text


def test_a_real_row_is_measured_on_the_processor_of_this_machine(tool, monkeypatch, capsys):
    assert tool.main(["rms_norm", "--target", "cpu", "--case", ROW, "--rounds", "1", "--knob", "block.rows"]) == 0
    printed = capsys.readouterr()
    assert "rms_norm on cpu-" in printed.out and "of the present time" in printed.out
