"""Changes of a kernel's text by its structure: where they are does not depend on line breaks, quotes and comments.

A pattern is an expression, or a few statements one after the other. ``...`` as the last argument of a call stands for
the arguments from there on, and in the replacement for the same ones::

    replaced(text, "T.load_tile(cfg, bias, ...)", "T.load_tile(cfg, mask, ...)")

What is no expression and no statement by itself (a part of one) is looked up as text.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator
from typing import Any


def replaced(text: str, old: str, new: str) -> tuple[str, int]:
    """The text with `old` replaced by `new`, and how often `old` was found; only one that is found once counts."""
    pattern, replacement = _fragment(old), _fragment(new)
    if pattern is None or replacement is None:
        return text.replace(old, new), text.count(old)
    tree = ast.parse(text)
    found = list(_places(tree, pattern))
    if len(found) == 1:
        holder, field, index, rest = found[0]
        nodes = [_filled(copy.deepcopy(node), rest) for node in replacement]
        if index is None:
            setattr(holder, field, nodes[0])
        else:
            getattr(holder, field)[index : index + len(pattern)] = nodes
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", len(found)


def _fragment(text: str) -> list[ast.AST] | None:
    """One expression, or statements; None for what is neither."""
    text = textwrap.dedent(text).strip()
    try:
        expression = ast.parse(text, mode="eval").body
        # "a, b" is more likely a part of the arguments of a call than a pair.
        return None if isinstance(expression, ast.Tuple) and not text.startswith("(") else [expression]
    except SyntaxError:
        pass
    try:
        return list(ast.parse(text).body)
    except SyntaxError:
        return None


def _places(tree: ast.AST, pattern: list[ast.AST]) -> Iterator[tuple[ast.AST, str, int | None, list[ast.AST]]]:
    """Where a pattern is: the node that holds it, the field, the place in a list, and what ``...`` stands for."""
    for holder in ast.walk(tree):
        for field, value in ast.iter_fields(holder):
            if isinstance(value, list):
                for index in range(len(value) - len(pattern) + 1):
                    rest: list[ast.AST] = []
                    if all(
                        isinstance(node, ast.AST) and _alike(part, node, rest)
                        for part, node in zip(pattern, value[index:], strict=False)
                    ):
                        yield holder, field, index, rest
            elif len(pattern) == 1 and isinstance(value, ast.AST):
                rest = []
                if _alike(pattern[0], value, rest):
                    yield holder, field, None, rest


def _alike(pattern: Any, node: Any, rest: list[ast.AST], of_call: bool = False) -> bool:
    """Whether a node has the structure of a pattern; ``rest`` gets what ``...`` stands for in a call."""
    if isinstance(pattern, ast.expr_context):
        return True
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and all(
            _alike(value, getattr(node, field, None), rest, isinstance(pattern, ast.Call) and field == "args")
            for field, value in ast.iter_fields(pattern)
        )
    if isinstance(pattern, list):
        if not isinstance(node, list):
            return False
        if of_call and pattern and _is_rest(pattern[-1]) and len(node) >= len(pattern) - 1:
            rest[:] = node[len(pattern) - 1 :]
            pattern, node = pattern[:-1], node[: len(pattern) - 1]
        return len(pattern) == len(node) and all(map(_alike, pattern, node, [rest] * len(pattern)))
    return type(pattern) is type(node) and pattern == node


def _is_rest(node: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _filled(node: ast.AST, rest: list[ast.AST]) -> ast.AST:
    """A replacement with the arguments that ``...`` stands for."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and part.args and _is_rest(part.args[-1]):
            part.args[-1:] = rest
    return node
