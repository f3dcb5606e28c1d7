"""Whether a process runs, for tests of processes that have to end."""

from __future__ import annotations


def is_running(pid):
    """Whether there is such a process; one that only waits for somebody to ask how it ended is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
