"""YAML text to plain data that remembers where each value stands, without YAML 1.1's surprises.

PyYAML reads YAML 1.1, where ``no`` is false, ``1e-3`` is a string, ``010`` is eight, ``1:30`` is ninety, and where a
second key of the same name silently wins. All of these are refused here with their position. Anchors, aliases and
merge keys (``<<``) are allowed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from rocmkern.matrix.yaml_nodes import MAX_DEPTH, MAX_VALUES, compose
from rocmkern.runtime.errors import MatrixError

# A path in the data: mapping keys and list indices from the root.
DataPath = tuple[Any, ...]

# Ten times the largest matrix file there is. Without a limit it is a file of logs that is read for minutes.
MAX_BYTES = 1 << 20

_PREFIX = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL_FLOAT = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}


@dataclass(frozen=True)
class Position:
    """A place in a file; line and column count from 1."""

    line: int
    column: int


@dataclass
class YamlSource:
    """Plain data and the position of every value in it.

    Attributes
    ----------
    name : str
        Name of the file, for messages.
    data : object
        Dictionaries, lists and scalars.
    positions : dict
        Position of the value at each path. The empty path is the root.
    key_positions : dict
        Position of the key of each mapping entry.
    """

    name: str
    data: Any = None
    positions: dict[DataPath, Position] = field(default_factory=dict)
    key_positions: dict[DataPath, Position] = field(default_factory=dict)

    def position(self, path: DataPath, key: bool = False) -> Position:
        """Position of `path`, or of the nearest value around it that is in the file."""
        if key and path in self.key_positions:
            return self.key_positions[path]
        while path and path not in self.positions:
            path = path[:-1]
        return self.positions.get(path, Position(1, 1))

    def error(self, path: DataPath, message: str, key: bool = False) -> MatrixError:
        """The error for a mistake at `path`."""
        return matrix_error(self.name, self.position(path, key), path, message)


def matrix_error(name: str, position: Position, path: DataPath, message: str) -> MatrixError:
    """A `MatrixError` with file, line, column and path, as attributes and in the message."""
    return MatrixError(message, file=name, line=position.line, column=position.column, path=format_path(path))


def format_path(path: DataPath) -> str:
    """``("groups", "a", "rows", 2)`` as ``groups.a.rows[2]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def read_yaml(path: str | Path) -> YamlSource:
    """Read a YAML file; any mistake is a `MatrixError` with its position."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise matrix_error(str(path), Position(1, 1), (), f"cannot be read: {error.strerror or error}") from None
    return parse_yaml(raw, name=str(path))


def parse_yaml(text: str | bytes, name: str = "<matrix>") -> YamlSource:
    """Parse YAML text; any mistake is a `MatrixError` with its position."""
    if len(text) > MAX_BYTES:
        message = f"the file has more than {MAX_BYTES} bytes, the most that is read; divide it into several files"
        raise matrix_error(name, Position(1, 1), (), message)
    if isinstance(text, bytes):
        text = _decode(text, name)
    root = _compose(text, name)
    return _Converter(name).convert(root)


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise matrix_error(name, Position(line, column), (), message) from None


def _compose(text: str, name: str) -> yaml.Node:
    try:
        root = compose(text)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        position = Position(before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        character = error.character if isinstance(error.character, str) else chr(error.character)
        raise matrix_error(name, position, (), f"character {character!r} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        raise matrix_error(name, position, (), _explain(error, text, position)) from None
    except yaml.YAMLError as error:
        raise matrix_error(name, Position(1, 1), (), f"not YAML: {error}") from None
    except (ValueError, OverflowError) as error:
        # PyYAML converts escapes such as "\UFFFFFFFF" and version numbers without checking them first.
        raise matrix_error(name, Position(1, 1), (), f"not YAML: {error}") from None
    if root is None:
        raise matrix_error(name, Position(1, 1), (), "the file is empty; it needs version, registry and groups")
    return root


def _explain(error: yaml.MarkedYAMLError, text: str, position: Position) -> str:
    lines = text.splitlines()
    line = lines[position.line - 1] if position.line <= len(lines) else ""
    if "\t" in line[: position.column]:
        return "a tab is used for indentation; use spaces"
    return ", ".join(part for part in (error.context, error.problem) if part)


class _Converter:
    """Turns a node graph into plain data, checking every scalar on the way."""

    def __init__(self, name: str):
        self.source = YamlSource(name)
        self.open_nodes: set[int] = set()
        self.count = 0

    def convert(self, root: yaml.Node) -> YamlSource:
        self.source.data = self._value(root, ())
        return self.source

    def _fail(self, node: yaml.Node, path: DataPath, message: str) -> NoReturn:
        raise matrix_error(self.source.name, _position(node), path, message)

    def _value(self, node: yaml.Node, path: DataPath) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            self._fail(node, path, f"more than {MAX_VALUES} values; aliases expand to too much")
        if len(path) > MAX_DEPTH:
            self._fail(node, path[:4], f"nested deeper than {MAX_DEPTH} levels")
        if id(node) in self.open_nodes:
            self._fail(node, path, "an alias refers to a value that contains it")
        self.source.positions[path] = _position(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self.open_nodes.add(id(node))
        try:
            return self._sequence(node, path) if isinstance(node, yaml.SequenceNode) else self._mapping(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def _sequence(self, node: yaml.SequenceNode, path: DataPath) -> list[Any]:
        if node.tag != _PREFIX + "seq":
            self._fail(node, path, f"tag {node.tag} is not allowed; write a plain list")
        return [self._value(item, path + (index,)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: DataPath) -> dict[str, Any]:
        if node.tag != _PREFIX + "map":
            self._fail(node, path, f"tag {node.tag} is not allowed; write a plain mapping")
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _PREFIX + "merge":
                merged += self._merge_sources(value_node, path)
                continue
            key = self._key(key_node, path)
            if key in entries:
                first = _position(entries[key][0])
                self._fail(key_node, path + (key,), f"duplicate key {key!r}; the first is in line {first.line}")
            entries[key] = (key_node, value_node)
        for mapping in merged:
            for key, pair in self._flatten(mapping, path).items():
                entries.setdefault(key, pair)
        result = {}
        for key, (key_node, value_node) in entries.items():
            self.source.key_positions[path + (key,)] = _position(key_node)
            result[key] = self._value(value_node, path + (key,))
        return result

    def _merge_sources(self, node: yaml.Node, path: DataPath) -> list[yaml.Node]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._fail(source, path, "a merge key (<<) needs a mapping or a list of mappings")
        return sources

    def _flatten(self, node: yaml.Node, path: DataPath, depth: int = 0) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Entries of a mapping that is merged into another one, its own merge keys included."""
        self.count += len(node.value)
        if depth > MAX_DEPTH or self.count > MAX_VALUES or id(node) in self.open_nodes:
            self._fail(node, path, "merge keys (<<) refer to each other or expand to too much")
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        inherited: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _PREFIX + "merge":
                inherited += self._merge_sources(value_node, path)
            else:
                entries[self._key(key_node, path)] = (key_node, value_node)
        for mapping in inherited:
            for key, pair in self._flatten(mapping, path, depth + 1).items():
                entries.setdefault(key, pair)
        return entries

    def _key(self, node: yaml.Node, path: DataPath) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, path, "a key must be a name, not a list or a mapping")
        if node.tag != _PREFIX + "str":
            self._fail(
                node, path, f"the key {node.value!r} is a {_kind(node.tag)} in YAML 1.1; quote it or use another name"
            )
        return node.value

    def _scalar(self, node: yaml.ScalarNode, path: DataPath) -> Any:
        kind, text, plain = _kind(node.tag), node.value, node.style is None
        if kind == "str":
            if plain and _FLOAT.match(text):
                self._fail(
                    node,
                    path,
                    f"{text} is a string in YAML 1.1; write {_as_yaml_float(text)} for a number, quote it for a string",
                )
            return text
        if not plain:
            self._fail(node, path, f"tag {node.tag} on a quoted value is not allowed")
        if kind == "bool":
            if text not in ("true", "false"):
                self._fail(node, path, f"{text} is a boolean in YAML 1.1; write true or false, or quote the string")
            return text == "true"
        if kind == "null":
            return None
        if kind == "int":
            if not _DECIMAL.match(text) or len(text) > 30:
                self._fail(
                    node,
                    path,
                    f"{text} is not a plain decimal number (YAML 1.1 reads it as octal, hexadecimal, binary, base 60 "
                    "or with separators); write it in decimal, or quote it for a string",
                )
            return int(text)
        if kind == "float":
            return self._float(node, path)
        return self._fail(node, path, f"{text[:40]} is a {kind} in YAML 1.1; quote it for a string")

    def _float(self, node: yaml.ScalarNode, path: DataPath) -> float:
        text = node.value
        if text.lower() in _SPECIAL_FLOAT:
            return _SPECIAL_FLOAT[text.lower()]
        if not _FLOAT.match(text):
            self._fail(node, path, f"{text} is not a plain decimal number; write it in decimal")
        value = float(text)
        if value in (float("inf"), float("-inf")):
            self._fail(node, path, f"{text[:40]} overflows; write .inf if infinity is meant")
        return value


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _kind(tag: str) -> str:
    return tag[len(_PREFIX) :] if tag.startswith(_PREFIX) else tag


def _as_yaml_float(text: str) -> str:
    mantissa, mark, exponent = text.partition("e") if "e" in text else text.partition("E")
    if "." not in mantissa:
        mantissa += ".0"
    if mark and exponent[0] not in "+-":
        exponent = "+" + exponent
    return mantissa + mark + exponent
