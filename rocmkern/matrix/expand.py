"""From rows to cases: the cartesian product of a row, with ids that say what a case is.

An id is made of what the case *is* (operation, group, row name, dimensions, dtype, features, inputs, memory), never of
its place in the file, so adding or moving a row renames nothing::

    flash_attention-plain-b1h2s4d8-f32-causal

Left out are dimensions and features that have their default value. Two rows that describe the same case are an error.
"""

from __future__ import annotations

import builtins
import importlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rocmkern.matrix.case import OUT_ARRAY, Case, RowFacts
from rocmkern.matrix.draw import ALL_ARRAYS
from rocmkern.matrix.inputs import described_call
from rocmkern.matrix.layouts import each_layout, repeats
from rocmkern.matrix.loader import Document, load, nearest, unknown_name
from rocmkern.matrix.registry import Dim, Operation
from rocmkern.matrix.schema import (
    MAX_ELEMENTS,
    Generator,
    Group,
    Masked,
    Memory,
    Row,
    Settings,
)
from rocmkern.matrix.spoilers import SPOILERS
from rocmkern.matrix.yaml_source import DataPath
from rocmkern.runtime import errors
from rocmkern.runtime.errors import MatrixError

#: The memory of rows that want every layout of every array.
EACH = "each"
# Six axes of ten values are a million cases, which nobody meant and which would not come to an end.
MAX_CASES = 100_000


def load_cases(path: str | Path) -> tuple[Document, list[Case]]:
    """A matrix file and its cases, read once for as long as the file does not change."""
    try:
        facts = os.stat(path)
    except OSError:
        document = load(path)  # which says why it cannot be read
        return document, expand(document)
    return _loaded(str(path), os.path.realpath(path), facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=8)
def _loaded(path: str, real_path: str, modified: int, size: int) -> tuple[Document, list[Case]]:
    document = load(path)
    return document, expand(document)


def expand(document: Document) -> list[Case]:
    """All cases of a matrix, in the order of the file.

    Raises
    ------
    MatrixError
        For a row that does not fit its operation, expands to nothing, or describes a case that another row describes.
    """
    cases: list[Case] = []
    origins: dict[str, DataPath] = {}
    _check_operations(document)
    for group_name, group in document.matrix.groups.items():
        for index, row in enumerate(group.rows):
            path = ("groups", group_name, "rows", index)
            operations = _operations_of(document, group, row, path)
            _check_settings(document, path[:2], group, *operations)
            _check_settings(document, path, row, *operations)
            expansions = [_RowExpansion(document, group_name, group, row, path, each) for each in operations]
            if len(cases) + sum(expansion.count() for expansion in expansions) > MAX_CASES:
                raise document.source.error(path, f"with this row there are more than {MAX_CASES} cases")
            for case in itertools.chain.from_iterable(expansion.cases() for expansion in expansions):
                if case.id in origins:
                    raise _ambiguous(document, case.id, path, origins[case.id])
                origins[case.id] = path
                cases.append(case)
    return _with_known_failures(document, cases)


def _with_known_failures(document: Document, cases: list[Case]) -> list[Case]:
    rules = sorted(document.matrix.known_failures or (), key=lambda rule: rule.specificity, reverse=True)
    for index, rule in enumerate(document.matrix.known_failures or ()):
        if not any(rule.fits(case.id) for case in cases):
            hint = nearest(rule.cases, [case.id for case in cases])
            message = f"{rule.cases!r} fits none of the {len(cases)} cases;{hint} remove it or correct it"
            raise document.source.error(("known_failures", index, "cases"), message)
    if not rules:
        return cases
    return [replace(case, known_failures=tuple(rule for rule in rules if rule.fits(case.id))) for case in cases]


def _check_operations(document: Document) -> None:
    known = document.registry.names
    for name, settings in (document.matrix.operations or {}).items():
        path = ("operations", name)
        if name not in document.registry:
            raise document.unknown(path, "operation", name, known)
        _check_settings(document, path, settings, document.registry[name])


def _operations_of(document: Document, group: Group, row: Row, path: DataPath) -> list[Operation]:
    """What a row runs: the operation of its group, its gradient, or both."""
    if group.operation not in document.registry:
        raise document.unknown(
            path[:2] + ("operation",), "operation", group.operation, document.registry.names, key=False
        )
    direction = row.direction or group.direction or "forward"
    if direction == "forward":
        return [document.registry[group.operation]]
    gradient = document.registry.gradient(group.operation)
    if gradient is None:
        place = (path if row.direction else path[:2]) + ("direction",)
        raise document.source.error(place, f"{group.operation} has no gradient", key=False)
    return [document.registry[group.operation], gradient][direction == "backward" :]


def _check_settings(document: Document, path: DataPath, settings: Settings, *operations: Operation) -> None:
    """Refuse an array that none of the operations has, and a tolerance of one that is exact."""
    arrays = tuple(dict.fromkeys(name for operation in operations for name in operation.arrays))
    for name in settings.inputs or ():
        if name not in arrays and name != ALL_ARRAYS:
            raise document.unknown(path + ("inputs", name), "array", name, (*arrays, ALL_ARRAYS))
    for index, memory in enumerate(() if settings.memory == EACH else settings.memory or ()):
        for name, variant in memory.items() if isinstance(memory, dict) else ():
            place = path + ("memory", index, name)
            if name == OUT_ARRAY and repeats(variant):
                raise document.source.error(place, f"an output in the layout {variant} cannot be written")
            if name not in arrays and name != OUT_ARRAY:
                raise document.unknown(place, "array", name, (*arrays, OUT_ARRAY))
    exact = [operation.name for operation in operations if operation.exact is True]
    if exact and settings.tolerance is not None:
        message = f"{exact[0]} is exact: its tolerance is 0 and cannot be widened"
        raise document.source.error(path + ("tolerance",), message, key=True)


def _ambiguous(document: Document, case_id: str, path: DataPath, first: DataPath) -> MatrixError:
    if path == first:
        message = f"expands to the case {case_id} twice; remove the repeated value"
    else:
        line = document.source.position(first).line
        message = f"expands to the case {case_id}, as the row in line {line} does; remove one or name the rows"
    return document.source.error(path, message)


class _RowExpansion:
    """Checks one row against an operation that it runs, and makes its cases."""

    def __init__(
        self, document: Document, group_name: str, group: Group, row: Row, path: DataPath, operation: Operation
    ):
        self.document, self.group_name, self.group, self.row, self.path = document, group_name, group, row, path
        self.operation = operation
        self.layers: list[Settings] = [row, group]
        if document.matrix.operations and operation.name in document.matrix.operations:
            self.layers.append(document.matrix.operations[operation.name])
        if document.matrix.defaults:
            self.layers.append(document.matrix.defaults)

    def count(self) -> int:
        """How many cases the row has."""
        row = self.row
        memory = self._setting("memory")
        several = (row.shapes, row.variants, self._setting("dtypes"), None if memory == EACH else memory)
        return math.prod(len(values) for values in (*several, *(row.axes or {}).values()) if values)

    def cases(self) -> Iterator[Case]:
        facts = self._facts()
        prefix = "-".join(part for part in (self.operation.name, self.group_name, self.row.name) if part)
        suffix = [part for part in (_inputs_label(facts.inputs, self.operation), _masked_label(facts.masked)) if part]
        memories = self._setting("memory") or ["contiguous"]
        dtypes = self._setting("dtypes") or ["f32"]
        features = [(value, _features_label(value, self.operation)) for value in self._features()]
        for dims in self._dims():
            shape_label = _shape_label(dims, self.operation)
            for dtype, (feature, feature_label) in itertools.product(dtypes, features):
                parts = [prefix, shape_label, dtype, *feature_label, *suffix]
                plain = Case("-".join(parts), facts, dims, dtype, feature, "contiguous")
                for memory in self._each_memory(plain) if memories == EACH else memories:
                    label = _memory_label(memory)
                    yield replace(plain, id="-".join([*parts, label]), memory=memory) if label else plain

    def _each_memory(self, case: Case) -> Iterator[Memory]:
        """Every layout of every array of a case."""
        yield from each_layout(array_shapes(case), (*self.operation.distinct, OUT_ARRAY))

    def _error(self, keys: DataPath, message: str, key: bool = True) -> MatrixError:
        return self.document.source.error(self.path + keys, message, key=key)

    def _setting(self, name: str) -> Any:
        for layer in self.layers:
            value = getattr(layer, name)
            if value is not None:
                return value
        return None

    def _facts(self) -> RowFacts:
        row = self.row
        category = self._setting("category") or "quick"
        self._check_errors()
        self._check_peers(category)
        if row.masked is not None and self.operation.hidden is None:
            raise self._error(("masked",), f"{self.operation.name} has no mask")
        if row.invariant and self.operation.excerpts is None:
            raise self._error(("invariant",), f"{self.operation.name} declares no excerpts")
        if row.one_hot is not None and self.operation.probabilities is None:
            raise self._error(("one_hot",), f"{self.operation.name} has no softmax")
        return RowFacts(
            operation=self.operation,
            group=self.group_name,
            row=row.name or "",
            why=row.why or self.group.why,
            category=category,
            file=self.document.name,
            line=self.document.source.position(self.path).line,
            inputs=self._setting("inputs") or {},
            tolerance=self._setting("tolerance"),
            targets=self._setting("targets"),
            masked=row.masked,
            one_hot=row.one_hot,
            expect_error=row.expect_error,
            arguments=row.arguments or {},
            spoil=row.spoil or {},
            peers=tuple(row.peers or ()),
            bars=row.bars or {},
            warm=bool(row.warm),
            deadline_s=self._setting("deadline_s"),
            invariant=bool(row.invariant),
        )

    def _check_errors(self) -> None:
        row = self.row
        if row.expect_error is None:
            for name in ("arguments", "spoil"):
                if getattr(row, name) is not None:
                    raise self._error((name,), f"{name} is for rows with expect_error; use features or inputs")
            return
        if row.name is None:
            raise self._error((), "a row with expect_error needs a name, which says what is wrong", key=False)
        try:
            error_type(row.expect_error.type)
        except LookupError as error:
            raise self._error(("expect_error", "type"), str(error), key=False) from None
        for name, spoiler in (row.spoil or {}).items():
            if spoiler not in SPOILERS:
                raise self._error(("spoil", name), unknown_name("spoiler", spoiler, SPOILERS), key=False)
            if name not in self.operation.arrays and name != OUT_ARRAY:
                known = (*self.operation.arrays, OUT_ARRAY)
                raise self._error(("spoil", name), unknown_name("array", name, known))

    def _check_peers(self, category: str) -> None:
        row = self.row
        if (row.peers or row.bars) and category != "benchmark":
            raise self._error(("peers",) if row.peers else ("bars",), "only rows of the category benchmark have peers")
        if row.warm is not None and category != "benchmark":
            raise self._error(("warm",), "only rows of the category benchmark are timed")
        for index, name in enumerate(row.peers or ()):
            if name not in self.operation.peer_table:
                known = self.operation.peer_table
                raise self._error(("peers", index), unknown_name("peer", name, known), key=False)
        for name in row.bars or ():
            if name not in (row.peers or ()):
                raise self._error(("bars", name), unknown_name("peer", name, row.peers or ()))

    def _axes(self, table: Mapping[str, Any]) -> dict[str, list[Any]]:
        axes = self.row.axes or {}
        for name in axes:
            if name not in self.operation.dim_table and name not in self.operation.feature_table:
                if name in ("dtype", "memory"):
                    other = "dtypes" if name == "dtype" else name
                    raise self._error(("axes", name), f"{name} is not an axis; use the row's {other}: [...]")
                known = (*self.operation.dim_table, *self.operation.feature_table)
                raise self._error(("axes", name), unknown_name("axis", name, known))
        return {name: values for name, values in axes.items() if name in table}

    def _dims(self) -> Iterator[dict[str, Any]]:
        table, axes = self.operation.dim_table, self._axes(self.operation.dim_table)
        group_shape, row_shape = self.group.shape or {}, self.row.shape or {}
        self._check_known(self.path[:2] + ("shape",), group_shape, table, "dimension")
        self._check_known(self.path + ("shape",), row_shape, table, "dimension")
        for index, shape in enumerate(self.row.shapes or ()):
            self._check_known(self.path + ("shapes", index), shape, table, "dimension")
        self._refuse_twice(axes, (row_shape, *(self.row.shapes or ())))
        for name, values in axes.items():
            for index, value in enumerate(values):
                self._check_extent(self.path + ("axes", name, index), table[name], value)
        for shape in self.row.shapes or ({},):
            given = {**group_shape, **row_shape, **shape}
            for chosen in itertools.product(*axes.values()):
                yield self._complete(given | dict(zip(axes, chosen, strict=True)))

    def _check_known(self, path: DataPath, given: Mapping[str, Any], table: Mapping[str, Any], what: str) -> None:
        for name, value in given.items():
            if name not in table:
                raise self.document.unknown(path + (name,), what, name, table)
            if what == "dimension":
                self._check_extent(path + (name,), table[name], value)
            elif not table[name].accepts(value):
                raise self._bad_feature(path + (name,), name, value)

    def _check_extent(self, path: DataPath, dim: Dim, value: Any) -> None:
        values = value if dim.many and isinstance(value, list) else [value]
        if isinstance(value, list) != dim.many or any(type(item) is not int or item < 0 for item in values):
            what = "a list of integers" if dim.many else "an integer"
            raise self.document.source.error(path, f"{dim.name} is {value!r}; it must be {what}, at least 0")
        if any(item > MAX_ELEMENTS for item in values):
            raise self.document.source.error(path, f"{dim.name} is {value!r}; at most {MAX_ELEMENTS} is allowed")

    def _refuse_twice(self, axes: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> None:
        for name in axes:
            if any(name in other for other in others):
                raise self._error(("axes", name), f"{name} is an axis and is also given in the same row")

    def _complete(self, given: dict[str, Any]) -> dict[str, Any]:
        dims: dict[str, Any] = {}
        for dim in self.operation.dims:
            value = given.get(dim.name, dim.default)
            if value is None:
                known = ", ".join(name for name in self.operation.dim_table if name not in given)
                raise self._error((), f"the dimension {dim.name} is missing (not given: {known})", key=False)
            dims[dim.name] = dims[value] if isinstance(value, str) else value
        return dims

    def _features(self) -> Iterator[dict[str, Any]]:
        table, axes = self.operation.feature_table, self._axes(self.operation.feature_table)
        group_features, row_features = self.group.features or {}, self.row.features or {}
        self._check_known(self.path[:2] + ("features",), group_features, table, "feature")
        self._check_known(self.path + ("features",), row_features, table, "feature")
        for index, variant in enumerate(self.row.variants or ()):
            self._check_known(self.path + ("variants", index), variant, table, "feature")
        self._refuse_twice(axes, (row_features, *(self.row.variants or ())))
        for name, values in axes.items():
            for index, value in enumerate(values):
                if not table[name].accepts(value):
                    raise self._bad_feature(self.path + ("axes", name, index), name, value)
        defaults = {name: feature.default for name, feature in table.items()}
        for variant in self.row.variants or ({},):
            for chosen in itertools.product(*axes.values()):
                yield {**defaults, **group_features, **row_features, **variant, **dict(zip(axes, chosen, strict=True))}

    def _bad_feature(self, path: DataPath, name: str, value: Any) -> MatrixError:
        feature = self.operation.feature_table[name]
        hint = nearest(value, [choice for choice in feature.allowed if isinstance(choice, str)])
        return self.document.source.error(path, f"{name} is {value!r};{hint} allowed: {feature.describe()}")


def array_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Shape of every array of a case that a row may lay out: those that the declaration names, and the output."""
    operation, call = case.operation, described_call(case)
    given = {name: call.arrays.get(name) for name in operation.arrays}
    shapes = {name: array.shape for name, array in given.items() if array is not None}
    if operation.out:
        # The layout of one that has fewer axes is one that the others may have, too.
        shapes[OUT_ARRAY] = min(call.out_shapes, key=len)
    return shapes


def error_type(name: str) -> type[BaseException]:
    """The exception class of a name: one of rocmkern's, a built-in one, or ``package.module:Class``.

    Raises
    ------
    LookupError
        When there is no such class; the message says what is known.
    """
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), attribute, None)
        except (Exception, SystemExit) as error:
            # Whatever the module does while it is imported, and a name that is no module's, is a mistake of the file.
            raise LookupError(f"module {module_name!r} cannot be imported: {error}") from None
    else:
        found = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    known = [key for key, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]
    raise LookupError(unknown_name("error type", name, [*known, "TypeError", "ValueError"]))


def _number(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).replace("-", "m").replace("+", "")


def _shape_label(dims: Mapping[str, Any], operation: Operation) -> str:
    label = ""
    for dim in operation.dims:
        value = dims[dim.name]
        default = dims[dim.default] if isinstance(dim.default, str) else dim.default
        if value == default:
            continue
        label += dim.label + ("x".join(map(str, value)) or "0" if isinstance(value, (list, tuple)) else str(value))
    return label or "default"


def _features_label(features: Mapping[str, Any], operation: Operation) -> list[str]:
    labels = []
    for name, feature in operation.feature_table.items():
        value = features[name]
        if value is feature.default or (value == feature.default and type(value) is type(feature.default)):
            continue
        if value is True:
            labels.append(name)
        elif value is False:
            labels.append(f"no_{name}")
        elif isinstance(value, str):
            labels.append(f"{name}_{value}")
        elif isinstance(value, list):
            labels.append(f"{name}_" + "_".join(map(_number, value)))
        elif value is None:
            labels.append(f"no_{name}")
        else:
            labels.append(f"{name}{_number(value)}")
    return labels


def _generator_label(generator: Generator) -> str:
    fields = type(generator).model_fields
    values = [getattr(generator, name) for name in fields if name != "kind"]
    defaults = [fields[name].default for name in fields if name != "kind"]
    while values and values[-1] == defaults[-1]:
        values.pop()
        defaults.pop()
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return generator.kind + "_".join(map(_number, flat))


def _inputs_label(inputs: Mapping[str, Generator], operation: Operation) -> str:
    labels = []
    for name in (ALL_ARRAYS, *operation.arrays):
        if name in inputs:
            label = _generator_label(inputs[name])
            labels.append(label if name == ALL_ARRAYS else f"{name}_{label}")
    label = ".".join(labels)
    return "" if label == "normal" else label


def _masked_label(masked: Masked | None) -> str:
    if masked is None:
        return ""
    value = _number(masked.value)
    return f"{masked.where}_{value}"


def _memory_label(memory: Memory) -> str:
    if isinstance(memory, str):
        return "" if memory == "contiguous" else memory
    return ".".join(f"{name}_{variant}" for name, variant in sorted(memory.items()))
