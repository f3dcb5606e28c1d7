"""The plugin's parts without a run of pytest: values of options, orders, what is printed at the end."""

from __future__ import annotations

import argparse
import random
from types import SimpleNamespace

import pytest

from rocmkern.testing import plugin


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (plugin._count, "0", 0), (plugin._count, "1", 1),
        (plugin._positive, "0.5", 0.5), (plugin._positive, "1e-9", 1e-9),
        (plugin._seed, "0", 0), (plugin._seed, "17", 17), (plugin._order, "file", None), (plugin._order, "random:0", 0),
        (plugin._order, "random:7", 7),
    ],
)  # fmt: skip
def test_values_of_options(read, text, value):
    assert read(text) == value and type(read(text)) is type(value)


@pytest.mark.parametrize(
    ("read", "texts", "allowed"),
    [
        (plugin._count, ("-1", "x", "", "1.5"), "a whole number, at least 0"),
        (plugin._positive, ("0", "-1", "inf", "nan", "x"), "a finite number above 0"),
        (plugin._seed, ("-1", "x", "1.5"), "a whole number, at least 0, or random"),
        (
            plugin._order,
            ("files", "random", "random:", "random:-1", "random:x", "other:1"),
            "file, or random:SEED with a whole number",
        ),
    ],
)
def test_what_is_no_value_of_an_option_is_refused_with_what_is_allowed(read, texts, allowed):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError) as caught:
            read(text)
        assert str(caught.value) == f"got {text!r}; allowed: {allowed}"


def test_a_random_seed_is_one_of_32_bits(monkeypatch):
    monkeypatch.setattr(plugin.random, "SystemRandom", lambda: SimpleNamespace(randrange=lambda end: end - 1))
    assert plugin._seed("random") == 2**32 - 1


class Reporter:
    """A terminal: the lines that are written to it, sections in capitals."""

    def __init__(self, **reports):
        self.stats, self.lines = reports, []

    def section(self, title):
        self.lines.append(title.upper())

    def line(self, text):
        self.lines.append(text)


def passed(*shares, case="some-case", **more):
    outputs = [{"output": f"out{n}", "share": s, "error": s * 1e-3, "bound": 1e-3} for n, s in enumerate(shares)]
    record = {"case": case, "target": "cpu", "outputs": outputs} | more
    return SimpleNamespace(user_properties=[("other", {}), (plugin.PROPERTY, record)])


def test_outputs_nearest_to_their_bounds_come_first():
    reporter = Reporter(passed=[passed(0.25, 0.5, case="a"), SimpleNamespace(), passed(0.125), passed(0.75, case="b")])
    plugin._summarise_accuracy(reporter)
    assert reporter.lines == [
        "ACCURACY",
        "4 outputs within their bounds; nearest to its bound:",
        "   75%  b[cpu] out0: error 0.00075, bound 0.001",
        "   50%  a[cpu] out1: error 0.0005, bound 0.001",
        "   25%  a[cpu] out0: error 0.00025, bound 0.001",
    ]
    for nothing in ({}, {"passed": [passed()]}, {"failed": [passed(0.5)]}):
        reporter = Reporter(**nothing)
        plugin._summarise_accuracy(reporter)
        assert reporter.lines == []


def test_skips_are_counted_by_reason_the_most_frequent_first():
    def skipped(reason):
        return SimpleNamespace(longrepr=("file.py", 3, reason))

    reporter = Reporter(
        skipped=[skipped("Skipped: b"), *[skipped("Skipped: a")] * 12, SimpleNamespace(longrepr="other")]
    )
    plugin._summarise_skips(reporter)
    assert reporter.lines == ["SKIPPED, BY REASON", "    12  a", "     1  b"]
    reporter = Reporter(skipped=[SimpleNamespace(longrepr="other")])
    plugin._summarise_skips(reporter)
    assert reporter.lines == []


def test_benchmarks_are_in_the_table_also_those_that_failed(monkeypatch):
    monkeypatch.setattr("rocmkern.testing.bench.table", lambda records: [record["case"] for record in records])
    timed = [passed(case=name, speed={}) for name in "ab"]
    reporter = Reporter(passed=[timed[0], passed(0.5)], failed=[timed[1]])
    plugin._summarise_benchmarks(reporter)
    assert reporter.lines == ["SPEED AGAINST PEERS", "a", "b"]
    reporter = Reporter(passed=[passed(0.5)])
    plugin._summarise_benchmarks(reporter)
    assert reporter.lines == []


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_cases_are_shuffled_among_the_places_of_cases(monkeypatch, seed):
    monkeypatch.setattr("rocmkern.testing.items.category_of", lambda item: None if item.startswith("own") else "quick")
    items = ["own1", *(f"case{n}" for n in range(9)), "own2", "case9"]
    cases = [item for item in items if item.startswith("case")]
    shuffled = list(cases)
    random.Random(seed).shuffle(shuffled)
    plugin._shuffle(items, seed)
    assert (items[0], items[10]) == ("own1", "own2")
    assert items[1:10] + items[11:] == shuffled != cases


@pytest.mark.parametrize(
    ("name", "writable", "reason"),
    [
        ("new.json", True, None), ("old.json", True, None), ("new.json", False, "cannot be written"),
        ("old.json", False, "cannot be written"), ("folder", True, "is a directory"),
        ("folder", False, "is a directory"),
        ("none/new.json", True, "has no directory"), ("none/new.json", False, "has no directory"),
    ],
)  # fmt: skip
def test_results_that_cannot_be_written_are_refused_before_the_run(tmp_path, monkeypatch, name, writable, reason):
    (tmp_path / "old.json").write_text("")
    (tmp_path / "folder").mkdir()
    asked = []
    monkeypatch.setattr(plugin.os, "access", lambda path, mode: asked.append((path, mode)) or writable)
    if reason is None:
        plugin._refuse_unwritable(tmp_path / name)
        # Of a file that is there the file, of a new one its directory.
        assert asked == [(tmp_path / name if name == "old.json" else tmp_path, plugin.os.W_OK)]
    else:
        with pytest.raises(pytest.UsageError) as caught:
            plugin._refuse_unwritable(tmp_path / name)
        path = tmp_path / name
        assert str(caught.value) == f"--rocmkern-json: {path} {reason}; allowed: a file in a directory that exists"
