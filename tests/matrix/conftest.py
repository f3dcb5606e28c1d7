"""Fixtures of the tests of the matrix: a registry of small operations, and a matrix of which the text is given."""

from __future__ import annotations

import pytest
from small_operations import make_registry

from rocmkern.matrix import Registry, loads

HEAD = "version: 1\nregistry: unused\ngroups:\n"


@pytest.fixture
def registry() -> Registry:
    return make_registry()


@pytest.fixture
def matrix(registry):
    """Load a matrix of which the text is given from ``groups:`` on."""

    def load_groups(groups: str, registry: Registry = registry):
        return loads(HEAD + groups, "test.yaml", registry)

    return load_groups
