"""Strict loading of a matrix file: YAML, then the models, then the registry that the file names.

Every mistake is a `MatrixError` with file, line, column, path and, for a name, the nearest valid one.
"""

from __future__ import annotations

import difflib
import importlib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rocmkern.matrix.registry import Registry
from rocmkern.matrix.schema import Matrix
from rocmkern.matrix.yaml_source import DataPath, YamlSource, format_path, matrix_error, parse_yaml, read_yaml
from rocmkern.runtime.errors import MatrixError

# How many mistakes one message lists.
MAX_LISTED = 10


@dataclass(frozen=True)
class Document:
    """A loaded matrix file.

    Attributes
    ----------
    matrix : Matrix
        The validated models.
    registry : Registry
        The declared operations that the file names.
    source : YamlSource
        Positions, for errors that are found later.
    """

    matrix: Matrix
    registry: Registry
    source: YamlSource

    @property
    def name(self) -> str:
        """Name of the file, as it was given."""
        return self.source.name

    def unknown(self, path: DataPath, what: str, given: str, known: Iterable[str], key: bool = True) -> MatrixError:
        """The error for a name that does not exist, with the nearest one that does."""
        return self.source.error(path, unknown_name(what, given, known), key=key)


def load(path: str | Path, registry: Registry | None = None) -> Document:
    """Load a matrix file.

    Parameters
    ----------
    path : str or Path
        The file.
    registry : Registry, optional
        The operations; default is the registry that the file names (``registry: package.module``, whose attribute
        ``OPERATIONS`` is a `Registry`).

    Raises
    ------
    MatrixError
        For any mistake in the file, with its position.
    """
    return _validate(read_yaml(path), registry)


def loads(text: str | bytes, name: str = "<matrix>", registry: Registry | None = None) -> Document:
    """Load a matrix from text; otherwise like `load`."""
    return _validate(parse_yaml(text, name), registry)


def unknown_name(what: str, given: Any, known: Iterable[str]) -> str:
    """``unknown WHAT 'given'; did you mean ...? known: ...``."""
    known = sorted(known)
    return f"unknown {what} {given!r};{nearest(given, known)} known: {', '.join(known) or 'none'}"


def nearest(given: Any, known: Iterable[str]) -> str:
    """`` did you mean ...?`` for the known name that is nearest to a given one, or nothing."""
    near = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.5)
    return f" did you mean {near[0]!r}?" if near else ""


def _validate(source: YamlSource, registry: Registry | None) -> Document:
    if not isinstance(source.data, dict):
        kind = {list: "a list", str: "a string", type(None): "nothing"}.get(type(source.data), "a scalar")
        raise source.error((), f"the file holds {kind}; it must be a mapping with version, registry and groups")
    try:
        matrix = Matrix.model_validate(source.data)
    except ValidationError as error:
        raise _translate(error, source) from None
    return Document(matrix, registry or _import_registry(matrix.registry, source), source)


def _import_registry(module_name: str, source: YamlSource) -> Registry:
    path = ("registry",)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # Whatever the named module does while it is imported is a mistake of this line of the file.
        raise source.error(path, f"module {module_name!r} cannot be imported: {error}") from error
    operations = getattr(module, "OPERATIONS", None)
    if not isinstance(operations, Registry):
        raise source.error(path, f"module {module_name!r} has no OPERATIONS of type rocmkern.matrix.Registry")
    return operations


def _translate(error: ValidationError, source: YamlSource) -> MatrixError:
    """One `MatrixError` for all mistakes that the models found; its position is the first one's."""
    problems: dict[DataPath, Any] = {}
    for detail in error.errors(include_url=False):
        path, depth = path_in_data(detail["loc"], source.data)
        # A union reports one mistake per alternative; the alternative that came furthest is the one that was meant.
        if path not in problems or depth > 0:
            problems.setdefault(path, detail)
    parents = {path[:length] for path in problems for length in range(len(path))}

    def place(path: DataPath) -> tuple[bool, int, int, str]:
        # What is missing comes last: a misspelled name is the cause more often than the consequence.
        position = source.position(path, _is_key(problems[path]))
        return problems[path]["type"] == "missing", position.line, position.column, str(path)

    ordered = sorted((path for path in problems if path not in parents), key=place)
    lines = []
    for path in ordered[:MAX_LISTED]:
        position = source.position(path, _is_key(problems[path]))
        lines.append((path, position, _message(problems[path], path, source)))
    path, position, message = lines[0]
    for other, at, text in lines[1:]:
        message += f"\n{source.name}:{at.line}:{at.column}: {format_path(other)}: {text}"
    if len(ordered) > MAX_LISTED:
        message += f"\nand {len(ordered) - MAX_LISTED} more"
    return matrix_error(source.name, position, path, message)


def path_in_data(loc: tuple[Any, ...], data: Any) -> tuple[DataPath, int]:
    """The part of a pydantic location that is in the file; union tags are left out, a missing key is kept."""
    path: DataPath = ()
    for index, part in enumerate(loc):
        if _holds(data, part):
            path, data = path + (part,), data[part]
        elif part == "[key]":
            break
        elif index == len(loc) - 1 and isinstance(data, dict) and isinstance(part, str) and part.isidentifier():
            return path + (part,), len(path)
    return path, len(path)


def _holds(data: Any, part: Any) -> bool:
    if isinstance(part, int):
        return isinstance(data, list) and part < len(data)
    return isinstance(data, dict) and part in data


def _is_key(detail: Any) -> bool:
    """Whether a mistake concerns the key rather than the value."""
    return detail["type"] == "extra_forbidden" or "[key]" in detail["loc"]


def _message(detail: Any, path: DataPath, source: YamlSource) -> str:
    kind, context, given = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        return unknown_name("key", path[-1], _allowed_keys(path[:-1], source.data))
    if kind == "missing":
        return "is missing"
    if kind in ("literal_error", "union_tag_invalid"):
        expected = context.get("expected") or context.get("expected_tags")
        names = [name.strip(" '") for name in str(expected).replace(" or ", ", ").split(",")]
        return unknown_name("value", context.get("tag", given), names)
    if kind == "union_tag_not_found":
        return "needs a kind, for example {kind: normal}"
    if "[key]" in detail["loc"] or kind == "string_pattern_mismatch":
        return f"the name {given!r} must be lower-case letters, digits and underscores, starting with a letter"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}; got {short(given)}"


def short(value: Any) -> str:
    """A value in a message: its repr, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _allowed_keys(path: DataPath, data: Any) -> set[str]:
    """Names of the fields that the model at `path` has."""
    candidates: list[Any] = [Matrix]
    for part in path:
        candidates = [inner for annotation in candidates for inner in _step(annotation, part)]
        data = data[part]
    models = [model for model in candidates if isinstance(model, type) and issubclass(model, BaseModel)]
    if isinstance(data, dict) and "kind" in data:
        models = [model for model in models if data["kind"] in _kinds(model)] or models
    return {name for model in models for name in model.model_fields}


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("kind")
    return typing.get_args(field.annotation) if field else ()


def _step(annotation: Any, part: Any) -> list[Any]:
    """Annotations one step further down, unions and `Annotated` taken apart."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(part)
        return _alternatives(field.annotation) if field else []
    if typing.get_origin(annotation) in (dict, list):
        return _alternatives(typing.get_args(annotation)[-1])
    return []


def _alternatives(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [inner for choice in typing.get_args(annotation) for inner in _alternatives(choice)]
    return [annotation]
