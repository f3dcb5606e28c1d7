"""A pytest plugin that writes down which lines of the library each test runs, for `tools/mutation.py`.

    PYTHONPATH=tools pytest -p mutation_record --record FILE ...

One line of JSON for each test that passes::

    {"test": its id, "seconds": ..., "lines": {file: bits}, "variants": [kernels that it launches on the cpu target]}

and one for each kernel that is compiled for the cpu target, because a test that finds it compiled depends on the same
lines: those of the compilation, of the kernel, and of the device functions that it calls. ::

    {"variant": its name, "seconds": ..., "lines": {file: bits}}

Bit n, of a number in base 16, is line n. Child processes are seen as far as `mutation_lines` reaches them.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mutation_lines
import pytest

Bits = defaultdict[str, int]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to write."""
    parser.addoption("--record", required=True, metavar="FILE", help="file that gets a line for each test")


def pytest_configure(config: pytest.Config) -> None:
    """Listen from the start: what is imported and cached by one test is called by it alone."""
    config.pluginmanager.register(Recorder(Path(config.getoption("--record"))), "mutation-recorder")


class Recorder:
    """Listens to lines, test by test."""

    def __init__(self, path: Path):
        self.path, self.lines = path, Bits(int)
        self.children = path.with_suffix(".children")
        self.variants: set[str] = set()
        self.seconds = 0.0
        os.environ[mutation_lines.CHILDREN] = str(self.children)
        mutation_lines.listen(self.note)
        self.watch_compiler()

    def note(self, file: str, line: int) -> None:
        """A line has run."""
        self.lines[file] |= 1 << line

    def watch_compiler(self) -> None:
        """Learn which kernels are launched on the cpu target, and what compiling them runs."""
        from rocmkern.targets import cpu
        from rocmkern.tile.reached import reached

        launched, compiled = cpu.CpuTarget.compile, cpu.compile_entry

        def compile(target: Any, kernel: Callable, cfg: Any, dtypes: tuple[str, ...]) -> Any:
            self.variants.add(_name(kernel, cfg, dtypes))
            return launched(target, kernel, cfg, dtypes)

        def compile_entry(kernel: Callable, cfg: Any, dtypes: tuple[str, ...]) -> Any:
            outer, self.lines = self.lines, Bits(int)
            mutation_lines.again()
            start = time.monotonic()
            try:
                return compiled(kernel, cfg, dtypes)
            finally:
                for function in reached(kernel):
                    code = function.__code__
                    if code.co_filename.startswith(mutation_lines.PACKAGE):
                        for _, _, line in code.co_lines():
                            self.note(code.co_filename[len(mutation_lines.PACKAGE) :], line or 0)
                seconds = round(time.monotonic() - start, 3)
                self.write({"variant": _name(kernel, cfg, dtypes), "seconds": seconds, "lines": _hex(self.lines)})
                for file, bits in outer.items():
                    self.lines[file] |= bits

        cpu.CpuTarget.compile, cpu.compile_entry = compile, compile_entry

    def write(self, entry: dict[str, Any]) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test, its fixtures included."""
        self.lines, self.seconds, self.passed = Bits(int), 0.0, False
        self.variants.clear()
        self.children.write_text("")
        mutation_lines.again()
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what has passed."""
        self.seconds += report.duration
        if report.when == "call":
            self.passed = report.passed
        if report.when == "teardown" and report.passed and self.passed:
            for line in self.children.read_text().splitlines():
                file, _, number = line.rpartition(":")
                self.note(file, int(number))
            entry = {"test": report.nodeid, "seconds": round(self.seconds, 3), "lines": _hex(self.lines)}
            self.write(entry | {"variants": sorted(self.variants)})

    def pytest_unconfigure(self) -> None:
        """Leave nothing but the recording."""
        self.children.unlink(missing_ok=True)


def _name(kernel: Callable, cfg: Any, dtypes: tuple[str, ...]) -> str:
    text = f"{kernel.__module__}.{kernel.__qualname__} {cfg!r} {dtypes}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hex(lines: Bits) -> dict[str, str]:
    return {file: f"{bits:x}" for file, bits in sorted(lines.items())}
