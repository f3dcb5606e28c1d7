"""Start an operation: write its folder, its test and its rows of the matrix, to be filled in.

    python tools/new_operation.py clamp

What is written is an elementwise operation that computes nothing yet. It passes the linters, and its tests fail. To be
filled in are the places that say FILL IN, in this order:

    rocmkern/ops/NAME/reference.py         what it means, in NumPy
    rocmkern/ops/NAME/kernels/NAME.py      how it is computed
    rocmkern/ops/NAME/api.py               its arguments, with their checks and documentation
    rocmkern/ops/NAME/launch.py            what the kernel gets of them
    rocmkern/ops/NAME/cases.py             options and costs, for rows
    rocmkern/ops/NAME/faults.py            how it may be wrong
    tests/ops/test_ops_NAME.py, matrix.yaml
"""

from __future__ import annotations

import argparse
import keyword
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).parent / "templates" / "operation"
PLACEHOLDER = "new_operation"


def places(root: Path, name: str) -> dict[Path, Path]:
    """Where each file of the template goes."""
    folders = {TEMPLATE / "ops": root / "rocmkern" / "ops" / name, TEMPLATE / "tests": root / "tests" / "ops"}
    found = {}
    for source, folder in folders.items():
        for path in sorted(source.rglob("*.py")):
            found[path] = folder / str(path.relative_to(source)).replace(PLACEHOLDER, name)
    return found


def refusal(root: Path, name: str) -> str | None:
    """Why there can be no operation of that name; None: there can."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        return "a name of lower-case letters, digits and underscores, which Python can use"
    if f" as {name}\n" in (root / "rocmkern" / "__init__.pyi").read_text(encoding="utf-8"):
        return "a name that is not public yet"
    taken = [path.relative_to(root) for path in places(root, name).values() if path.exists()]
    return f"a name without files; there is {taken[0]}" if taken else None


def write(root: Path, name: str) -> list[Path]:
    """Write the files of an operation, its rows and its public name; the files that are new."""
    written = places(root, name)
    for source, path in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.read_text(encoding="utf-8").replace(PLACEHOLDER, name), encoding="utf-8")
    folder = root / "rocmkern" / "ops" / name
    packages = [folder / "__init__.py", folder / "kernels" / "__init__.py"]
    for path in packages:
        path.touch()
    new = [*packages, *written.values()]
    # A name decides where imports are sorted to, and how lines break.
    for command in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *map(str, new)], cwd=root, check=True)
    rows = (TEMPLATE / "rows.yaml").read_text(encoding="utf-8").replace(PLACEHOLDER, name)
    with (root / "matrix.yaml").open("a", encoding="utf-8") as matrix:
        matrix.write(rows)
    subprocess.run([sys.executable, root / "tools" / "public_names.py"], cwd=root, check=True)
    return new


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the function, such as clamp")
    name = parser.parse_args(words).name
    allowed = refusal(root, name)
    if allowed:
        print(f"new_operation: name: got {name!r}; allowed: {allowed}", file=sys.stderr)
        return 2
    for path in write(root, name):
        print(f"written  {path.relative_to(root)}")
    print("changed  matrix.yaml, rocmkern/__init__.pyi")
    print(f"Fill in what says FILL IN, then: python -m pytest tests/ops/test_ops_{name}.py, and")
    print(f"python -m pytest matrix.yaml -k {name}; see --help.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
