"""Numba's report of a kernel that does not compile, in one sentence."""

from __future__ import annotations

import itertools
import re


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
