"""Whether the same rows ran the same machine code on two machines: reports of a card, and files of ``amd-test --json``.

Both say of each row which code objects it ran, and of each of those ``code_sha256``: machine code, kernel descriptors
and metadata, whichever linker was used. What ran on a card is what was verified on the virtual GPU where that is equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmkern.runtime.errors import ArgumentError

#: In place of the hash of code that a file does not describe.
UNKNOWN = "unknown"
_SHOWN = 20


@dataclass(frozen=True)
class CodeOfRows:
    """Which code the rows of a file ran.

    Attributes
    ----------
    arch : str
    rows : mapping of str to frozenset of str
        ``code_sha256`` of each piece of code, by the row's id; rows that ran none are left out.
    """

    arch: str
    rows: Mapping[str, frozenset[str]]


def read(path: Path) -> CodeOfRows:
    """Read a file; `ArgumentError` where it is neither a report of a card nor a record of `amd-test`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if "card_report" in data:
            devices = data["run"]["environment"]["devices"]
            arch = str(devices[data["target"]]["arch"])
            code, rows = data["code"], {row["case"]: row["code"] for row in data["run"]["results"]}
        else:
            arch, code = str(data["arch"]), data["code_objects"]
            rows = {name: row["code"] for name, row in data["rows"].items()}
        found = {name: _hashes(ran, code) for name, ran in rows.items() if ran}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        words = f"{path} ({type(error).__name__}: {error})"
        allowed = "a complete report of `rocmkern report --card`, or a file of `amd-test --json`"
        raise ArgumentError("--same-code", words, allowed) from None
    return CodeOfRows(arch.partition(":")[0], found)


def _hashes(ran: list[str], code: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(code.get(sha256, {}).get("code_sha256", UNKNOWN) for sha256 in ran)


def compare(one: CodeOfRows, other: CodeOfRows) -> tuple[list[str], bool]:
    """Lines that say what was found, and whether every row of both ran the same code, and there are such."""
    if one.arch != other.arch:
        return [f"the files are of {one.arch} and {other.arch}, whose code cannot be the same"], False
    both = [name for name in one.rows if name in other.rows]
    unknown = [name for name in both if UNKNOWN in one.rows[name] | other.rows[name]]
    compared = [name for name in both if name not in unknown]
    different = [name for name in compared if one.rows[name] != other.rows[name]]
    lines = [f"DIFFERS  {name}" for name in different[:_SHOWN]]
    if len(different) > _SHOWN:
        lines.append(f"DIFFERS  {len(different) - _SHOWN} more")
    lines.append(
        f"{len(both)} rows ran code on {one.arch} in both files: {len(compared) - len(different)} the same code, "
        f"{len(different)} other code, {len(unknown)} code that a file does not describe"
    )
    return lines, bool(compared) and not different
