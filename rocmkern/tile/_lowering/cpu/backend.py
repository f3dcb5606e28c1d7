"""Numba's types and registries of its CPU target as the tile language takes them."""

from __future__ import annotations

from numba.core import types
from numba.core.datamodel.registry import register_default
from numba.core.errors import TypingError
from numba.core.imputils import Registry as LoweringRegistry
from numba.core.typing.templates import Registry as TypingRegistry

from rocmkern.tile import entry
from rocmkern.tile._lowering.shared.numba_core import numba_core
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.types import make_types

NUMBA = numba_core(TypingRegistry(), LoweringRegistry(), register_default)
TILE = make_types(types, TypingError, "cpu")


def bound_config(cfg: Config) -> entry.BoundConfig:
    """The configuration as a constant of a generated module."""
    return entry.BoundConfig(TILE.Config(cfg))
