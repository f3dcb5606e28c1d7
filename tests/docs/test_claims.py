"""What the pages of docs/ claim about the code: variables, numbers of tests, files, tables that have everything."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest
from pages import ROOT, pages

import rocmkern
from rocmkern.architectures import known
from rocmkern.matrix import expand, loads
from rocmkern.tile.language.operation import OPERATIONS

sys.path.insert(0, str(ROOT / "docs"))
import _extension
from _extension import pictures, tables

PAGES = {page.name: page for page in pages()}


def test_every_environment_variable_is_documented_and_every_documented_one_exists():
    in_code = set()
    for path in (ROOT / "rocmkern").rglob("*.py"):
        in_code |= set(re.findall(r"\bROCMKERN_[A-Z][A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    in_table = set(re.findall(r"^\| `(ROCMKERN_[A-Z_]+)` \|", PAGES["docs/how-to/settings.md"].text, re.MULTILINE))
    assert in_table == in_code


def test_the_row_makes_the_number_of_tests_that_is_claimed():
    page = PAGES["docs/how-to/test-from-a-table.md"]
    head = "version: 1\nregistry: rocmkern.ops.catalog\ndefaults: {category: quick}\n"
    cases = expand(loads(head + page.of("yaml")[0].text))
    assert f"are {len(cases)} tests on each target" in " ".join(page.text.split())


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_linked_files_and_named_paths_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.text, flags=re.MULTILINE | re.DOTALL)
    here = (ROOT / page.name).parent
    links = [here / name for name in re.findall(r"\]\(([^)#:]+)\)", text)]
    named = re.findall(r"`((?:rocmkern|examples|tests|tools|docs)/[\w/.*-]+)`", text)
    if page.name == "CHANGELOG.md":  # it also names what is gone
        named = []
    assert [str(path) for path in links if not path.exists()] == []
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


def test_every_extra_is_documented():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    part = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^([\w-]+) = \[", part, re.MULTILINE))
    table = PAGES["docs/how-to/install.md"].text
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == extras


def test_no_number_of_rows_is_given_that_the_next_row_makes_wrong():
    """Of what is said of every row; of parts that ran at some time the number stays true."""
    for page in PAGES.values():
        assert not re.findall(r"every quick row[^|,;.]*\(\d+\)|\ball \d{3,} of", page.text), page.name


def test_every_public_name_is_in_the_reference():
    inserted = re.findall(r"^```\{insert\} reference (\w+)$", "".join(p.text for p in PAGES.values()), re.MULTILINE)
    documented = [name for names in tables.families().values() for name in names]
    documented += [name for part in inserted for name in tables.part(part)]
    assert sorted(documented) == sorted(rocmkern.__all__)


def test_every_operation_of_the_tile_language_is_in_its_table_once():
    rows = re.findall(r"^\| `(\w+)\(", tables.tile_operations(), re.MULTILINE)
    assert sorted(rows) == sorted(OPERATIONS)


def test_every_architecture_is_in_the_table():
    names = re.findall(r"^\| \w+ \| `([\w-]+)`", tables.architectures(), re.MULTILINE)
    assert sorted(names) == sorted(set(known()) - set(known("python")))


@pytest.mark.parametrize("name", ["gfx1030", "gfx1100", "gfx1201", "gfx942"])
def test_a_picture_has_each_element_of_a_tile_once(name):
    figure = ElementTree.fromstring(pictures.tile(name))
    labels = [text.text for text in figure.iter("text")]
    assert len(list(figure.iter("rect"))) == 256
    assert len(set(labels) - {str(n) for n in range(16)}) == 256 + 2
    assert "\n\n" not in pictures.tile(name).strip()


def test_a_first_row_of_wmma_alternates_between_two_lanes():
    owners = pictures.owners(pictures.ATOMS["wmma-gfx11"])
    assert [owners[0, column][0] for column in range(4)] == [0, 16, 0, 16]


def test_an_insert_takes_the_place_of_its_block():
    text = _extension.filled("before\n\n```{insert} operations\n```\n\nafter\n")
    assert "flash_attention" in text and "insert" not in text and text.endswith("after\n")
    with pytest.raises(KeyError, match="nothing"):
        _extension.filled("```{insert} nothing\n```\n")
