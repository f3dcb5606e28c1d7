"""numba-hip's types and registries as the tile language takes them; the atom of an architecture."""

from __future__ import annotations

from numba.core import types
from numba.core.errors import TypingError
from numba.hip.typing_lowering.models import register_model
from numba.hip.typing_lowering.registries import impl_registry, typing_registry

from rocmkern.architectures import architecture
from rocmkern.tile import entry
from rocmkern.tile._lowering.shared.atoms import ATOMS, Atom
from rocmkern.tile._lowering.shared.numba_core import numba_core
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.types import make_types

NUMBA = numba_core(typing_registry, impl_registry, register_model)
TILE = make_types(types, TypingError, "hip")


def atom_of(arch: str, wave_rows: int = 16) -> Atom:
    """Layout of tiles on an architecture, with so many rows of a tile side by side in a wave."""
    if wave_rows == 16:
        return ATOMS[architecture(arch).matrix or "fma"]
    atom = ATOMS["fma-8"]
    if wave_rows != atom.rows or architecture(arch).wave != atom.wave:
        allowed = "16 rows of a tile" if architecture(arch).wave != atom.wave else f"16 or {atom.rows} rows of a tile"
        raise TypingError(f"a wave on {arch} has {allowed} side by side, not {wave_rows}")
    return atom


def bound_config(cfg: Config) -> entry.BoundConfig:
    """The configuration as a constant of a generated module."""
    return entry.BoundConfig(TILE.Config(cfg))
