"""How a report looks, and what operations declare, as a whole: each number, each word.

What is compared lies in ``golden/``. Who changes one on purpose runs this file as a program, which writes it anew,
looks at what changed, and commits it.
"""

from __future__ import annotations

import zlib
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from rocmkern.matrix import expand, load_cases, loads
from rocmkern.matrix.inputs import make_call
from rocmkern.matrix.registry import resolve
from rocmkern.matrix.report import plots, summarise, text
from rocmkern.matrix.results import Environment, MeasuredDevice, Run, labels_of, result_of
from rocmkern.ops.catalog import OPERATIONS

GOLDEN = Path(__file__).parent / "golden"
TABLE = """\
version: 1
registry: rocmkern.ops.catalog
groups:
  plain:
    why: an attention
    operation: flash_attention
    rows:
      - {shape: {batch: 1, heads: 2, seq_q: 4, head_dim: 80}, features: {causal: true}, dtypes: [f32, bf16]}
      - {category: benchmark, axes: {seq_q: [512, 1024]}, shape: {batch: 1, heads: 2, head_dim: 64}, peers: [torch]}
  other:
    why: a multiple
    operation: scale
    rows:
      - {axes: {size: [[5], [7]]}, dtypes: [f32]}
"""


class Title(NamedTuple):
    """A place of a report."""

    title: str


def timed(operation, length, flops, nbytes, ratios):
    """A row as plots take it; of ten, so that marks change their shape."""
    peers = {name: {"ratio": ratio} for name, ratio in ratios.items()}
    roof = {"flop_per_s": 4e12, "byte_per_s": 2e11}
    return SimpleNamespace(
        operation=operation, group="some", case=f"{operation}-some-s{length}-a_label_that_is_too_long_{'x' * 60}",
        dtype="f32", dims={"seq_q": length, "heads": 4}, features={"causal": True},
        speed={"flop_per_s": flops, "byte_per_s": nbytes, "roof": roof, "peers": peers},
    )  # fmt: skip


def a_summary():
    rows = [
        timed(
            f"operation{n}", length, 1e9 * (n + 1) * length**0.5, 3e8 * (12 - n), {"torch": 0.5 + n / 4, "numpy": 2.0}
        )
        for n in range(10)
        for length in (64, 512, 16384)
    ]
    timed_rows = [*((Title("cpu"), row) for row in rows), *((Title("gfx1100 <2>"), row) for row in rows[:3])]
    return SimpleNamespace(timed=timed_rows)


def a_report():
    cases = expand(loads(TABLE))
    devices = {"cpu": MeasuredDevice("cpu-avx2", "A processor"), "hip": MeasuredDevice("gfx1100", "A card")}
    place = Environment("a machine", "2026-01-01T00:00:00+00:00", "Linux x86_64", "3.12.1", {"numpy": "2.4.0"}, devices)

    def measured(share):
        return {"outputs": [{"output": "out", "error": share / 1e3, "bound": 1e-3, "share": share, "parts": "2 * e"}]}

    def speed(flops):
        roof, peers = {"flop_per_s": 4e9, "byte_per_s": 4e9}, {"torch": {"ratio": 1.25}, "other": {"unavailable": "no"}}
        rates = {"cpu_s": 2e-3, "wall_s": 1e-3, "flop_per_s": flops, "byte_per_s": 1e9}
        return {"speed": {**rates, "roof": roof, "peers": peers}}

    outcomes = [
        (0, "cpu", "passed", "", measured(0.5)), (1, "cpu", "passed", "", measured(0.25)),
        (0, "hip", "failed", "check parity | failed", {}), (1, "hip", "passed", "", measured(0.75)),
        (2, "cpu", "passed", "", speed(1e9)), (3, "cpu", "passed", "", speed(2.5e9)),
        (4, "cpu", "passed", "", measured(0.125)), (5, "cpu", "skipped", "no time", {}),
        (5, "hip", "passed", "", measured(0.0)),
    ]  # fmt: skip
    results = [result_of(cases[number], *facts) for number, *facts in outcomes]
    return text(summarise([Run(place, results, labels_of(cases))]))


def declarations():
    """What rows of each operation may say, and what fuzzing draws."""
    lines = []
    for operation in OPERATIONS:
        lines.append(f"\n{operation.name}")
        lines += [f"  {dim.label} {dim.name}: {dim.default!r}{', many' * dim.many}" for dim in operation.dims]
        for feature in operation.features:
            allowed = [getattr(value, "__name__", repr(value)) for value in feature.allowed]
            lines.append(f"  {feature.name}: {feature.default!r}, {', '.join(allowed)}")
        lines += [f"  -> {each.name}: {each.dtype}, {each.feature}" for each in operation.outputs]
        lines.append(f"  arrays {operation.arrays}, distinct {operation.distinct}, dense {operation.dense_on_device}")
        lines.append(f"  out {operation.out}, in place {operation.in_place}, on device {operation.on_device}")
        lines.append(f"  peers {tuple(peer.name for peer in operation.peers)}")
        if operation.domain is not None:
            domain = operation.domain
            lines += [f"  drawn {name}: {values}" for name, values in {**domain.dims, **domain.features}.items()]
            lines.append(f"  drawn {domain.dtypes}, plain {domain.plain}")
    return "\n".join(lines)


def numbers(x):
    """Shape of an array, and a checksum of whole numbers: those that are drawn or chosen are so everywhere."""
    shape = f"{x.shape}".replace(" ", "")
    return f"{shape} {zlib.crc32(np.ascontiguousarray(x)):08x}" if x.dtype.kind == "i" else shape


def excerpts():
    """Which rows of a batch are computed again in other batches, whatever the dtype, of the cases that ask for it.

    An excerpt has the arguments that differ, and the elements of the results that are its own.
    """
    _, cases = load_cases(GOLDEN.parents[2] / "matrix.yaml")
    asked = [case for case in cases if case.facts.invariant]
    lines = []
    for _, (case, *_) in groupby(asked, key=lambda case: (case.facts.line, case.dims, case.features)):
        call = make_call(case)
        lines.append(f"\n{case.id}")
        for excerpt in resolve(case.operation.excerpts)(call):
            given = {
                name: numbers(x) if isinstance(x, np.ndarray) else x
                for name, x in excerpt.arguments.items() if x is not call.arguments.get(name)
            }  # fmt: skip
            places = [
                numbers(np.arange(np.prod(shape), dtype=np.int64).reshape(shape)[place])
                for shape, place in zip(call.out_shapes, excerpt.places, strict=True)
            ]
            told = ", ".join(f"{name} {text}" for name, text in given.items())
            lines.append(f"  {excerpt.name}: {told} -> {', '.join(places)}{' by another' * bool(excerpt.function)}")
    return "\n".join(lines)


MADE = {
    "operations.txt": declarations,
    "excerpts.txt": excerpts,
    "bars.svg": lambda: plots.ratio_bars(a_summary()),
    "lines.svg": lambda: plots.speed_over_length(a_summary()),
    "roofline.svg": lambda: plots.roofline(a_summary()),
    "report.md": a_report,
}


def in_lines(made):
    """An element a line."""
    return made.replace("><", ">\n<").rstrip("\n") + "\n"


@pytest.mark.parametrize("name", MADE)
def test_it_looks_as_it_did(name):
    assert in_lines(MADE[name]()).splitlines() == (GOLDEN / name).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    for name, make in MADE.items():
        (GOLDEN / name).write_text(in_lines(make()), encoding="utf-8")
