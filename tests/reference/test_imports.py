"""What a reference may import: NumPy, element types and other references, so that no kernel can agree with itself."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from rocmkern import reference
from rocmkern.ops.places import modules

OUTSIDE = {"__future__", "collections", "dataclasses", "functools", "inspect", "math", "typing", "numpy", "ml_dtypes"}
KINDS = ("reference", "baseline", "roundings")


def imported(module):
    """Modules that a module names in its imports."""
    tree = ast.parse(Path(importlib.import_module(module).__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield from ([f"{node.module}.{alias.name}" for alias in node.names] if node.module else ())


@pytest.mark.parametrize("module", [module for kind in KINDS for module in modules(kind)])
def test_references_import_numpy_and_references(module):
    allowed = {name for kind in KINDS for name in modules(kind)} | {
        "rocmkern.ops.precision",
        "rocmkern.reference.costs",
    }
    for name in imported(module):
        assert name.split(".")[0] in OUTSIDE or name in allowed or name.rpartition(".")[0] in allowed, name


def test_every_operation_of_the_matrix_has_a_reference_and_one_that_rounds_a_baseline():
    from rocmkern.matrix.registry import resolve
    from rocmkern.ops.catalog import OPERATIONS

    for operation in OPERATIONS:
        assert callable(resolve(operation.reference))
        assert operation.baseline is None or callable(resolve(operation.baseline))
        assert operation.roundings is None or operation.baseline is not None
    assert {"softmax", "mlp", "decoder_logits"} <= set(dir(reference)) & set(dir(reference.baseline))


def test_names_that_are_no_operations_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'softmx'"):
        _ = reference.softmx
    for module in (reference.baseline, reference.roundings):
        with pytest.raises(AttributeError, match="no attribute 'sample'"):
            _ = module.sample
