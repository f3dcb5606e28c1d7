"""The tool that calls rows under a sanitizer says which row an error belongs to. The sanitizer is one of the test's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "sanitize.py"
ROWS = ("causal_mask-masks_made-s1k4-f32", "causal_mask-masks_made-s33k17-f32-causal")

#: Runs the program that it is given, and complains after each row whose id has a word in it.
SANITIZER = """#!{python}
import subprocess, sys
options, program = sys.argv[1:6], sys.argv[7:]
assert options == ["--tool", options[1], "--error-exitcode", "77", "--show-backtrace"], options
lines = subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()
found = 0
for line in lines:
    print(line)
    if {word!r} in line and options[1] == "memcheck":
        print("========= Invalid read")
        found = 77
sys.exit(found)
"""


@pytest.fixture
def sanitize(tmp_path):
    """Run the tool with a sanitizer that complains about rows with a word in them."""

    def run(*arguments, word="nothing has this"):
        sanitizer = tmp_path / "sanitizer"
        sanitizer.write_text(SANITIZER.format(python=sys.executable, word=word))
        sanitizer.chmod(0o755)
        command = [sys.executable, str(TOOL), "--target", "python", "--sanitizer", str(sanitizer), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return run


def test_every_tool_runs_over_the_rows_that_match(sanitize):
    done = sanitize(*ROWS)
    assert done.returncode == 0, done.stdout + done.stderr
    tools = ("memcheck", "racecheck", "initcheck", "synccheck")
    assert done.stdout.splitlines() == [f"{tool}: 2 rows, nothing found" for tool in tools]


def test_an_error_stands_behind_its_row(sanitize):
    done = sanitize(*ROWS, "--tools", "memcheck,synccheck", word="s33k17")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"row {ROWS[1]}",
        "========= Invalid read",
        "memcheck: 2 rows, errors found",
        "synccheck: 2 rows, nothing found",
    ]


def test_no_row_is_no_success(sanitize):
    done = sanitize("no_such_operation-*", "--tools", "memcheck")
    assert done.returncode == 1 and "memcheck: 0 rows" in done.stdout


def test_what_is_not_there_is_named(sanitize):
    done = sanitize("--tools", "memchek")
    assert done.returncode == 2 and "got memchek; allowed: memcheck, racecheck, initcheck, synccheck" in done.stderr
    done = sanitize("--sanitizer", "no-such-program")
    assert done.returncode == 2 and "there is no program no-such-program" in done.stderr
