"""A pytest plugin that writes down which functions of the library each test runs, for `tools/mutation.py`.

    pytest -p mutation_record --record FILE ...

One line of JSON for each test that passes: its id, its seconds, and the functions, as ``file:first line``. Python 3.12
tells of the first call of a function and is then silent until the next test; older ones are asked about every call,
which takes a few times as long. What runs in other processes is not seen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'rocmkern'}/"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to write."""
    parser.addoption("--record", required=True, metavar="FILE", help="file that gets a line for each test")


def pytest_configure(config: pytest.Config) -> None:
    """Listen from the start: what is imported and cached by one test is called by it alone."""
    config.pluginmanager.register(Recorder(Path(config.getoption("--record"))), "mutation-recorder")


class Recorder:
    """Listens to calls, test by test."""

    def __init__(self, path: Path):
        self.path, self.called = path, set[str]()
        self.monitoring = getattr(sys, "monitoring", None)
        if self.monitoring is not None:
            self.monitoring.use_tool_id(self.monitoring.COVERAGE_ID, "mutation")
            self.monitoring.register_callback(
                self.monitoring.COVERAGE_ID, self.monitoring.events.PY_START, self._started
            )
            self.monitoring.set_events(self.monitoring.COVERAGE_ID, self.monitoring.events.PY_START)

    def _note(self, code: Any) -> None:
        if code.co_filename.startswith(PACKAGE):
            self.called.add(f"{code.co_filename[len(PACKAGE) :]}:{code.co_firstlineno}")

    def _started(self, code: Any, offset: int) -> Any:
        self._note(code)
        return self.monitoring.DISABLE

    def _profiled(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self._note(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test, its fixtures included."""
        import threading

        self.called.clear()
        if self.monitoring is not None:
            self.monitoring.restart_events()
        else:
            threading.setprofile(self._profiled)
            sys.setprofile(self._profiled)
        try:
            return (yield)
        finally:
            if self.monitoring is None:
                sys.setprofile(None)
                threading.setprofile(None)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what has passed."""
        if report.when == "call" and report.passed:
            self.passed = report.nodeid, report.duration
        if report.when == "teardown" and report.passed and getattr(self, "passed", ("",))[0] == report.nodeid:
            record = {"test": report.nodeid, "seconds": round(self.passed[1], 3), "functions": sorted(self.called)}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
