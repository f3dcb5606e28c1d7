"""The map of the code: layers and files from the source, and the way of a call, measured while the pages are built."""

from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import call_path
import check_imports

import rocmkern
from _extension.tables import table

PACKAGE = Path(rocmkern.__file__).parent
STEP, LINE, LABEL = 24, 20, 210


def first_line(file: Path) -> str:
    """The first sentence of a module's docstring, as a line of Markdown."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).removesuffix("::").removesuffix(":")


def layers() -> str:
    """The layers of packages, the highest first, as the check of imports has them."""
    rows = []
    for number, layer in enumerate(check_imports.LAYERS):
        names = []
        for name in layer:
            apart = sorted(f"`{file}.py`" for file, part in check_imports.APART.items() if part == name)
            names.append(f"`{name}`" + (f" ({', '.join(apart)} of a family)" if apart else ""))
        rows.append((str(number + 1), ", ".join(names)))
    return table(("Layer", "Packages"), reversed(rows))


def files(package: str) -> str:
    """The files of a package that say what they are, and how."""
    found = sorted((PACKAGE / package).glob("*.py"))
    rows = [(f"`{file.name}`", first_line(file)) for file in found if file.name != "__init__.py"]
    return table(("File", "What it is for"), [row for row in rows if row[1]])


def steps(name: str, *, ordinary: bool = False) -> list[tuple[str, tuple[str, ...]]]:
    """The way of a warm call on the cpu target: file, and the functions that were called in it before the next."""
    os.environ.setdefault("ROCMKERN_QUIET", "1")
    with call_path.prepared(name, ordinary=ordinary) as call:
        path = call_path.path_of(call)
    groups = itertools.groupby(path.calls, lambda each: each[0])
    return [(file, tuple(dict.fromkeys(function for _, function in calls))) for file, calls in groups]


def way(name: str) -> str:
    """A picture of the way of a warm call: a line for each file, a box for each visit, in their order."""
    visits = steps(name)
    order = list(dict.fromkeys(file for file, _ in visits))
    width, height = LABEL + STEP * len(visits) + 8, LINE * len(order) + 8
    text = 'font-family="sans-serif" font-size="11" dominant-baseline="central"'
    title = f"The way of a warm call of {name}"
    lines = [
        f'<figure class="picture"><svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{title}">'
    ]
    for number, file in enumerate(order):
        y = 4 + LINE * (number + 0.5)
        lines.append(f'<text x="{LABEL - 8}" y="{y}" text-anchor="end" fill="currentColor" {text}>{file}</text>')
        lines.append(f'<line x1="{LABEL}" y1="{y}" x2="{width}" y2="{y}" stroke="currentColor" opacity="0.15"/>')
    corners = []
    for number, (file, functions) in enumerate(visits):
        x, y = LABEL + STEP * number, 4 + LINE * order.index(file)
        corners.append(f"{x + STEP / 2},{y + LINE / 2}")
        said = escape(", ".join(functions))
        box = f'x="{x + 4}" y="{y + 3}" width="{STEP - 8}" height="{LINE - 6}" rx="3"'
        lines.append(f'<rect {box} fill="#8ecae6" stroke="#555"><title>{said}</title></rect>')
    lines.insert(1, f'<polyline points="{" ".join(corners)}" fill="none" stroke="#888"/>')
    caption = f"{title}, from left to right: {len(order)} files, {len(visits) - 1} changes of file."
    lines.append(f"</svg><figcaption>{caption}</figcaption></figure>")
    return "\n".join(lines) + "\n"


def visited(name: str) -> str:
    """The files that the first call of a kind passes, in the order in which it enters them, and its functions there."""
    seen: dict[str, dict[str, None]] = {}
    for file, called in steps(name, ordinary=True):
        seen.setdefault(file, {}).update(dict.fromkeys(called))
    rows = []
    for file, functions in seen.items():
        shown = [f"`{function}`" for function in functions if not function.startswith(("_", "<"))]
        rows.append((f"`{file}`", ", ".join(shown), first_line(PACKAGE / file)))
    return table(("File", "Functions", "What it is for"), rows)


INSERTS: dict[str, Callable[..., str]] = {"layers": layers, "files": files, "way": way, "visited": visited}
