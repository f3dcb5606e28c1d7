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

# Nobody calls a device function from Python or C.
_NO_WRAPPERS = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
NUMBA = numba_core(TypingRegistry(), LoweringRegistry(), register_default, **_NO_WRAPPERS)
TILE = make_types(types, TypingError, "cpu")


def bound_config(cfg: Config) -> entry.BoundConfig:
    """The configuration as a constant of a generated module."""
    return entry.BoundConfig(TILE.Config(cfg))
