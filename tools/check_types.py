"""Refuse a public surface of which type checkers know too little.

    python tools/check_types.py [--least 98] [package]

A name is public if it can be reached without an underscore: `rocmkern.tile.load_tile`, but nothing in
`rocmkern/tile/_lowering`. Its type is known if all of it is declared, and if what it is declared by is known. pyright
counts (``--verifytypes``); what the types of other packages lack does not count.

Needs pyright, and node for it: ``pip install "rocmkern[types]"`` brings both. The package is that of this interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LEAST = 98.0
#: Names that are shown of those that are not known.
SHOWN = 40


@dataclass(frozen=True)
class Completeness:
    """How many names are public, and those whose types are not known, with pyright's first word on each."""

    public: int
    unknown: dict[str, str]

    @property
    def percent(self) -> float:
        """Public names whose types are known, of a hundred."""
        return 100 * (1 - len(self.unknown) / self.public) if self.public else 0.0


def measure(package: str) -> Completeness:
    """Ask pyright about an installed package.

    Raises
    ------
    OSError
        If the package is not there, or pyright does not answer or looks at another one.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise OSError(f"no package {package} can be imported here")
    home = Path(spec.origin).parent
    # pyright asks the first python of PATH where packages are, whatever it is told, and takes the first one there.
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    environment["PYTHONPATH"] = os.pathsep.join([str(home.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--ignoreexternal", "--verifytypes", package]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)["typeCompleteness"]
        seen = Path(answer["packageRootDirectory"])
    except (ValueError, KeyError) as error:
        raise OSError(f"pyright says nothing of {package}: {(done.stderr or done.stdout).strip()}") from error
    if seen.resolve() != home.resolve():
        raise OSError(f"pyright looks at {seen}, not at {home}")
    public = [symbol for symbol in answer["symbols"] if symbol["isExported"]]
    unknown = {symbol["name"]: _why(symbol) for symbol in public if not symbol["isTypeKnown"]}
    return Completeness(len(public), unknown)


def _why(symbol: dict[str, Any]) -> str:
    """The first error on a name, in one line; a name of a type that is not known has none of its own."""
    errors = [each["message"] for each in symbol.get("diagnostics", ()) if each["severity"] == "error"]
    return " ".join(errors[0].split()) if errors else "a part of it is not known"


def main(arguments: list[str] | None = None) -> int:
    """Print what is known and what is not; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("package", nargs="?", default="rocmkern")
    parser.add_argument("--least", type=float, default=LEAST, metavar="PERCENT", help="(default: %(default)g)")
    options = parser.parse_args(arguments)
    found = measure(options.package)
    for name, why in list(found.unknown.items())[:SHOWN]:
        print(f"{name}: {why}")
    if len(found.unknown) > SHOWN:
        print(f"and {len(found.unknown) - SHOWN} more")
    print(f"{options.package}: {found.percent:.2f} % of {found.public} public names have types that are known", end="")
    print(f"; at least {options.least:g} % are wanted" if found.percent < options.least else "")
    return 0 if found.percent >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
