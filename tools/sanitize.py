"""Call the operations of a matrix under NVIDIA's compute-sanitizer, which comes with the CUDA toolkit.

    python tools/sanitize.py                                # every quick row, all four tools
    python tools/sanitize.py 'softmax-*' --tools racecheck

Each row is called once. Every buffer is an allocation of its own, of exactly its size: in memory of a pool the tools do
not see where a buffer ends. Under memcheck a process has lost the device after the first error, so that the others are
found when that one is mended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
#: The exit status of the sanitizer where it found something.
FOUND = 77
_ROW = "row "


def call_rows(patterns: Sequence[str], target: str) -> int:
    """Call the quick rows that match, in this process; a line before each."""
    import rocmkern
    from rocmkern.matrix import load_cases, make_call
    from rocmkern.matrix.registry import resolve
    from rocmkern.runtime.manager import default_manager
    from rocmkern.targets import current_target

    rocmkern.use(target)
    manager = default_manager(current_target().device)
    for case in load_cases(ROOT / "matrix.yaml")[1]:
        usable = case.category == "quick" and case.facts.expect_error is None and case.skip_reason(target) is None
        if usable and any(fnmatch(case.id, pattern) for pattern in patterns):
            print(f"{_ROW}{case.id}", flush=True)
            resolve(case.operation.function)(**make_call(case).arguments)
            manager.wait(case.id)
    return 0


def sanitize(sanitizer: str, tool: str, patterns: Sequence[str], target: str) -> bool:
    """Call the rows under a tool; prints what it found behind the row that it belongs to. Whether that is nothing."""
    program = [sys.executable, str(Path(__file__).resolve()), "--call", "--target", target, *patterns]
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--show-backtrace", "no"]
    environment = {**os.environ, "ROCMKERN_MEMORY": "nopool", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    row, rows, reported = "", 0, ""
    with subprocess.Popen(
        [sanitizer, *options, *program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            if line.startswith(_ROW):
                row, rows = line, rows + 1
                continue
            if row != reported:
                print(row, end="")
                reported = row
            print(line, end="")
    verdict = {0: "nothing found", FOUND: "errors found"}.get(process.returncode, f"status {process.returncode}")
    print(f"{tool}: {rows} rows, {verdict}", flush=True)
    return process.returncode == 0 and rows > 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 0 where rows were called and nothing was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patterns", nargs="*", default=["*"], metavar="PATTERN", help="ids with * and ? (default: all)")
    parser.add_argument("--tools", default=",".join(TOOLS), help="a comma-separated list (default: %(default)s)")
    parser.add_argument("--target", default="cuda", help="where the rows are called (default: %(default)s)")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program (default: that on the PATH)")
    parser.add_argument("--call", action="store_true", help="only call the rows, in this process")
    options = parser.parse_args(arguments)
    if options.call:
        return call_rows(options.patterns, options.target)
    tools = options.tools.split(",")
    unknown = [tool for tool in tools if tool not in TOOLS]
    if unknown:
        parser.error(f"--tools: got {', '.join(unknown)}; allowed: {', '.join(TOOLS)}")
    if shutil.which(options.sanitizer) is None:
        parser.error(f"--sanitizer: there is no program {options.sanitizer}; it comes with the CUDA toolkit")
    return int(not all([sanitize(options.sanitizer, tool, options.patterns, options.target) for tool in tools]))


if __name__ == "__main__":
    sys.exit(main())
