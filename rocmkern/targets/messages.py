"""What a user hears of compilation: that it takes place, and why it failed, in one sentence."""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path

from rocmkern.targets.source import Key

#: Set it, and nothing is said of compilation.
QUIET_VARIABLE = "ROCMKERN_QUIET"
_announced = False


def announce_compilation(key: Key, directory: Path | None) -> None:
    """Say on stderr, once in a process, that a kernel is being compiled, and where it will be kept, if anywhere."""
    global _announced
    if _announced or os.environ.get(QUIET_VARIABLE, "") not in ("", "0"):
        return
    _announced = True
    kept = f"kept in {directory}" if directory is not None else "not kept"
    print(
        f"rocmkern: compiling {key.kernel.rpartition('.')[2]} and what else is needed for {key.arch} ({kept}; "
        f"`rocmkern compile` does it ahead of time; {QUIET_VARIABLE}=1: without this line)",
        file=sys.stderr,
    )


def first_message(error: Exception) -> str:
    """What is wrong and where: the tile language's own words where it spoke, else the first thing that numba says."""
    text = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\)\s*", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    mark = "TypingError: "
    spoken = [line.split(mark, 1)[1] for line in lines if mark in line]
    ours = [
        line.split(mark, 1)[1]
        for line, source in itertools.pairwise(lines)
        if mark in line and re.match(r"raised from .*rocmkern.tile\b", source)
    ]
    message = (ours or spoken or lines or [repr(error)])[0]
    if message.endswith("for signature:"):
        # Numba writes the signature on a line of its own.
        signature = next((line[4:] for line in lines if line.startswith(">>> ")), "")
        message = f"{message} {signature}".rstrip(": ")
    place = re.search(r" at (.+) \((\d+)\)", text)
    return f"{message} (line {place[2]} of {place[1]})" if place else message
