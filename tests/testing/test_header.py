"""What a run of pytest with a matrix says before it begins: targets, rows, devices, and why there is no GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rocmkern.runtime.errors import DriverError
from rocmkern.testing import devices, plugin, results, worker


class Config:
    """A run's options."""

    def __init__(self, **options):
        none = {"numprocesses": None, "rocmkern_order": None, "rocmkern_all": False, "markexpr": ""}
        self.options = none | {"rocmkern_fuzz": 0, "rocmkern_fuzz_seed": 7} | options

    def getoption(self, name, default=None):
        return self.options[name]


@pytest.fixture
def header(monkeypatch):
    """The lines for some options; the worker that was started for them counts how often it is closed."""
    closed = []
    monkeypatch.setattr(plugin, "matrix_files", lambda config: config.options.get("files", ["m.yaml"]))
    monkeypatch.setattr(devices, "chosen_targets", lambda config: ("cpu", "python"))
    monkeypatch.setattr(devices, "device_lines", lambda: ["rocmkern device: none"])
    monkeypatch.setattr(worker, "close_shared_worker", lambda: closed.append(1))
    return lambda **options: (plugin.pytest_report_header(Config(**options)), len(closed))


QUICK = "rocmkern rows: quick (full rows: -m full or --rocmkern-all; benchmark rows: --benchmark-only)"


def test_a_run_of_quick_rows(header):
    lines, closed = header()
    assert lines == ["rocmkern matrix: m.yaml; targets: cpu, python", QUICK, "rocmkern device: none"] and not closed


@pytest.mark.parametrize("options", [{"rocmkern_all": True}, {"markexpr": "full"}])
def test_a_run_of_all_rows(header, options):
    assert QUICK not in header(**options)[0]


def test_the_worker_that_looked_at_the_device_ends_where_others_run_the_cases(header):
    assert header(numprocesses=2)[1] == 1


def test_order_and_draw_are_said_with_their_seeds(header):
    assert header(rocmkern_order=3)[0][-1] == "rocmkern order: random:3"
    assert header(rocmkern_order=0)[0][-1] == "rocmkern order: random:0"
    assert header(rocmkern_fuzz=20)[0][-1] == "rocmkern fuzz: 20 rows, seed 7"


def test_without_a_matrix_nothing_is_said(header):
    assert header(files=[]) == ([], 0)


def status(monkeypatch, chosen, reason="no driver", checks=()):
    monkeypatch.setattr(devices, "gpu_status", lambda: SimpleNamespace(chosen=chosen, reason=reason, checks=checks))


def test_checks_are_numbered_from_one(monkeypatch):
    status(monkeypatch, None, checks=("is it in?", "is it on?"))
    assert devices.device_lines() == [
        "rocmkern device: no GPU: no driver", "  check 1: is it in?", "  check 2: is it on?",
    ]  # fmt: skip
    assert devices.gpu_reason() == "no GPU: no driver"


class Card:
    """A GPU as a probe names it."""

    kind = "hip"

    def __str__(self):
        return "hip:0 RX"


def test_the_device_and_its_memory_or_why_it_cannot_be_used(monkeypatch):
    status(monkeypatch, Card())
    asked = []

    def call(function, *arguments, what):
        asked.append((function, *arguments, what))
        return "total 20.0 GiB"

    monkeypatch.setattr(worker, "shared_worker", lambda: SimpleNamespace(call=call))
    assert devices.device_lines() == ["rocmkern device: hip:0 RX; total 20.0 GiB"]
    assert asked == [("rocmkern.testing.devices:memory_here", "hip", "opening hip")] and devices.gpu_reason() is None

    def fail(*arguments, what):
        raise DriverError("hipInit", "hipErrorNoDevice", "hip:0")

    monkeypatch.setattr(worker, "shared_worker", lambda: SimpleNamespace(call=fail))
    assert devices.device_lines()[0].startswith("rocmkern device: hip:0 RX; cannot be used: ")


def test_memory_is_said_in_gibibytes(monkeypatch):
    stats = SimpleNamespace(total=20 << 30, free=3 << 29)
    manager = SimpleNamespace(memory_stats=lambda: stats, safe_alloc_size=lambda: 1 << 29)
    monkeypatch.setattr("rocmkern.testing.devices.default_manager", lambda kind: manager)
    assert devices.memory_here("hip") == "total 20.0 GiB, free 1.5 GiB, safe limit 0.5 GiB"


# ----------------------------------------------------------------------------------------------------------- the end


class Reporter:
    """pytest's terminal, as far as the summary writes to it."""

    def __init__(self, **stats):
        self.stats, self.lines = stats, []

    def section(self, title):
        self.lines.append(f"== {title}")

    def line(self, text):
        self.lines.append(text)


def test_skips_are_counted_by_reason():
    reports = [SimpleNamespace(longrepr=("f.py", 3, f"Skipped: {reason}")) for reason in ("b", "a", "b", "Skipped: c")]
    reporter = Reporter(skipped=[*reports, SimpleNamespace(longrepr="text of another plugin")])
    plugin._summarise_skips(reporter)
    assert reporter.lines == ["== skipped, by reason", "     2  b", "     1  a", "     1  Skipped: c"]
    silent = Reporter()
    plugin._summarise_skips(silent)
    assert silent.lines == []


def passed(case, *shares):
    outputs = [{"output": "out", "share": share, "error": share / 100, "bound": 0.01} for share in shares]
    record = {"case": case, "target": "cpu", "outputs": outputs}
    return SimpleNamespace(user_properties=[("other", 1), (plugin.PROPERTY, record)])


def test_the_outputs_nearest_to_their_bounds_are_shown():
    reporter = Reporter(passed=[passed("a", 0.1, 0.5), passed("b", 0.9), passed("c", 0.25), SimpleNamespace()])
    plugin._summarise_accuracy(reporter)
    assert reporter.lines == [
        "== accuracy",
        "4 outputs within their bounds; nearest to its bound:",
        "   90%  b[cpu] out: error 0.009, bound 0.01",
        "   50%  a[cpu] out: error 0.005, bound 0.01",
        "   25%  c[cpu] out: error 0.0025, bound 0.01",
    ]
    silent = Reporter(passed=[SimpleNamespace(user_properties=[])])
    plugin._summarise_accuracy(silent)
    assert silent.lines == []


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"outcome": "passed", "longrepr": None}, ""),
        ({"outcome": "skipped", "longrepr": ("f.py", 3, "Skipped: cpu: no time")}, "cpu: no time"),
        ({"outcome": "skipped", "longrepr": "text of another plugin"}, ""),
        (
            {"outcome": "skipped", "longrepr": None, "wasxfail": "reason: known failure until then"},
            "known failure until then",
        ),
        ({"outcome": "failed", "longrepr": "head\ncheck parity failed:\nby 3\n\nlast"}, "check parity failed:"),
        ({"outcome": "failed", "longrepr": "Traceback\n\nValueError: no\n\n"}, "ValueError: no"),
        ({"outcome": "failed", "longrepr": ("f.py", 3, "gone")}, "('f.py', 3, 'gone')"),
        ({"outcome": "failed", "longrepr": "\n"}, "failed"),
    ],
)
def test_how_a_case_ended_is_said_in_a_line(facts, reason):
    assert results._reason(SimpleNamespace(**facts)) == reason
