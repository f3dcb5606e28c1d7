"""The table of architectures: what is in it, and what a card gets that is not."""

import warnings

import pytest

from rocmkern.cli._assembly import UNITS
from rocmkern.ops import _configs
from rocmkern.runtime.errors import TargetError
from rocmkern.tile import architectures
from rocmkern.tile.architectures import architecture, compiled_as
from rocmkern.tile.atoms import ATOMS

CARDS = [
    *("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035"),
    *("gfx1036", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1200"),
    *("gfx1201", "gfx9-4-generic", "gfx10-3-generic", "gfx11-generic", "gfx12-generic"),
]


@pytest.mark.parametrize("name", CARDS)
def test_everything_that_is_asked_of_an_architecture_is_there(name):
    hardware = architecture(name)
    assert ATOMS[hardware.matrix or "fma"].wave == hardware.wave == (64 if name.startswith("gfx9") else 32)
    assert UNITS[name].lds == hardware.shared_bytes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled_as(f"{name}:xnack-") == name


@pytest.mark.parametrize("name", CARDS)
def test_cards_without_matrix_instructions_have_blocks_for_that(name):
    without = _configs.blocks("gfx1030")
    assert (_configs.blocks(name) is without) == (not architecture(name).matrix)


@pytest.mark.parametrize(
    ("card", "expected"),
    [("gfx1154", "gfx11-generic"), ("gfx1104", "gfx11-generic"), ("gfx1037", "gfx10-3-generic"),
     ("gfx1202:xnack-", "gfx12-generic"), ("gfx952", "gfx9-4-generic")],
)  # fmt: skip
def test_an_unknown_card_of_a_known_family_gets_its_generic_target_with_one_warning(card, expected):
    compiled_as.cache_clear()
    with pytest.warns(RuntimeWarning, match=f"{card.split(':')[0]} is not known .* compiled for {expected}") as caught:
        assert compiled_as(card) == compiled_as(card) == expected
    assert len(caught) == 1


@pytest.mark.parametrize("card", ["gfx906", "gfx1010", "gfx1250", "gfx1310", "gfx11", "gfx11000"])
def test_a_card_of_no_known_family_is_refused_by_name(card):
    with pytest.raises(TargetError, match=f"'{card}' is not known; known: .*gfx1100"):
        compiled_as(card)


def test_generic_targets_are_in_the_table():
    assert set(architectures._GENERIC) <= set(architectures.AMD)
