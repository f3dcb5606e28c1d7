"""Small changes of the library's source, drawn at random, for `tools/mutation.py`.

The changes are those of cosmic-ray. They are drawn by a seed, as many from each part of the library; first a place in
the source, then one of the changes that are possible there. Left out are places that no test can notice: annotations,
decorators that only keep results (`functools.cache`), the drivers of cards (a machine without one never calls them).
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "rocmkern"
#: Parts of the library, and the files in them.
PARTS = {
    # Not what they are compared with.
    "ops": [
        *("ops/*.py", "ops/*/[!cbfr]*.py", "ops/*/backward/[!cbfr]*.py", "calls/**/*.py"),
        *("flash_attn/[kop]*.py", "flash_attn/functions.py", "flash_attn/varlen.py"),
    ],
    "runtime": ["runtime/**/*.py"],
    "kernels": ["ops/**/kernels/*.py"],
    "tile": ["tile/*.py", "tile/language/*.py", "tile/_lowering/shared/*.py", "tile/_lowering/cpu/*.py"],
    "matrix": ["matrix/**/*.py", "ops/**/cases.py", "flash_attn/cases.py"],
    "testing": ["testing/*.py"],
    "checkpoint": ["checkpoint/*.py"],
    "decoder": ["decoder/*.py"],
}
#: What is called with a card only, and the faults: one that is wrong is not caught.
LEFT_OUT = (
    "runtime/cuda.py",
    "runtime/hip.py",
    "tile/_lowering/shared/lanes.py",
    "tile/_lowering/shared/folds.py",
    "tile/_lowering/shared/atoms.py",
    "matrix/faults/",
)
KEEPING = ("cache", "lru_cache", "cached_property")

Span = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes
    ----------
    part, file : str
        The file's path within the package.
    operator, occurrence
        As cosmic-ray counts them.
    line : int
    spans : tuple of (int, int)
        First and last line of what runs when the changed place runs: the statement (of a compound one its head), then
        the functions around it, the innermost first. Nothing is outside of a function: that is run when it is imported.
    """

    part: str
    file: str
    operator: str
    occurrence: int
    line: int
    spans: tuple[Span, ...]

    @property
    def id(self) -> str:
        """Name in results."""
        return f"{self.file}:{self.line} {self.operator} {self.occurrence}"


def operators() -> dict[str, Any]:
    """cosmic-ray's operators that need no arguments, by name."""
    try:
        from cosmic_ray.operators.provider import OperatorProvider
    except ImportError as error:
        raise SystemExit(f"{error}; install cosmic-ray, or its wheel and those of parso and attrs") from None
    provider = OperatorProvider()
    return {name: provider[name]() for name in provider if not provider[name].arguments()}


def places(file: str, part: str, known: dict[str, Any]) -> dict[tuple[int, int], list[Mutant]]:
    """Every mutant of a file, by the place of the change."""
    from cosmic_ray.ast import ast_nodes, get_ast

    text = (PACKAGE / file).read_text(encoding="utf-8")
    tree = ast.parse(text)
    skipped = _skipped(tree)
    found: dict[tuple[int, int], list[Mutant]] = defaultdict(list)
    nodes = list(ast_nodes(get_ast(text)))
    for name, operator in known.items():
        positions = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(positions):
            if not any(begin <= (line, column) < end for begin, end in skipped):
                found[line, column].append(Mutant(part, file, name, occurrence, line, spans(tree, line)))
    return found


def _skipped(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    skipped = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            skipped += [_span(each) for each in (node.returns,) if each]
            skipped += [_span(d) for d in node.decorator_list if ast.unparse(d).split("(")[0].split(".")[-1] in KEEPING]
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            skipped.append(_span(node.annotation))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.append(_span(node))
    return skipped


def _span(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    # A decorator's mutation stands at its "@".
    return (node.lineno, max(node.col_offset - 1, 0)), (node.end_lineno, node.end_col_offset)


def spans(tree: ast.Module, line: int) -> tuple[Span, ...]:
    """The `Mutant.spans` of a line."""
    functions: list[Span] = []
    statement: Span | None = None
    inner: Sequence[ast.AST] = tree.body
    while inner:
        node = next((n for n in inner if _first(n) <= line <= (getattr(n, "end_lineno", None) or -1)), None)
        if node is None:
            break
        body = getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # Its head belongs to what is around it, but a function with other defaults is another function.
            if isinstance(node, ast.ClassDef):
                statement = None
            else:
                functions.insert(0, (node.body[0].lineno, node.end_lineno or node.lineno))
                statement = functions[0]
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            first = _first(node)
            last = body[0].lineno - 1 if isinstance(body, list) else node.end_lineno
            statement = (first, max(first, last or first))
        inner = list(ast.iter_child_nodes(node)) if isinstance(body, list) else ()
        if isinstance(body, list) and line < body[0].lineno and not isinstance(node, ast.ClassDef):
            break
    if not functions:
        return ()
    return tuple(dict.fromkeys([*([statement] if statement else []), *functions]))


def _first(node: ast.AST) -> int:
    decorators = getattr(node, "decorator_list", [])
    pattern = getattr(node, "pattern", None)  # of a case
    own = getattr(node, "lineno", None) or (pattern.lineno if pattern is not None else 10**9)
    return min([own, *(decorator.lineno for decorator in decorators)])


def mutated(mutant: Mutant) -> str:
    """The text of a file with a mutant in it."""
    from cosmic_ray.ast import get_ast

    operator, left = operators()[mutant.operator], mutant.occurrence

    def walk(node: Any) -> Any:
        nonlocal left
        for index, _ in enumerate(operator.mutation_positions(node)):
            if left == 0:
                node = operator.mutate(node, index)
            left -= 1
        if node is not None and hasattr(node, "children"):
            node.children = [new for child in node.children if (new := walk(child)) is not None]
        return node

    return walk(get_ast((PACKAGE / mutant.file).read_text(encoding="utf-8"))).get_code()


def draw(count: int, seed: int, parts: Sequence[str]) -> dict[Mutant, str]:
    """So many mutants that are Python, the parts taking turns; each with the text of its file."""
    known, rng = operators(), random.Random(seed)
    drawn: dict[Mutant, str] = {}
    waiting = {}
    for part in parts:
        files = sorted({str(p.relative_to(PACKAGE)) for pattern in PARTS[part] for p in PACKAGE.glob(pattern)})
        files = [file for file in files if not file.startswith(LEFT_OUT) and not file.endswith("__init__.py")]
        sites = [options for file in files for _, options in sorted(places(file, part, known).items())]
        rng.shuffle(sites)
        waiting[part] = sites
    while len(drawn) < count and any(waiting.values()):
        for part in parts:
            while waiting[part] and len(drawn) < count:
                mutant = rng.choice(waiting[part].pop())
                text = mutated(mutant)
                if _is_python(text, (PACKAGE / mutant.file).read_text(encoding="utf-8")):
                    drawn[mutant] = text
                    break
    return drawn


def _is_python(text: str, before: str) -> bool:
    try:
        return ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))
    except SyntaxError:
        return False
