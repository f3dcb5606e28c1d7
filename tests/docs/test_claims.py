"""What the pages of docs/ claim about the code: variables, numbers of tests, files, tables that have everything."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import _extension
import pytest
from _extension import paths, pictures, tables
from pages import ROOT, pages

import rocmkern
from rocmkern.architectures import known
from rocmkern.matrix import expand, loads
from rocmkern.tile.language.operation import OPERATIONS

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


def test_a_first_row_of_wmma_alternates_between_two_lanes():
    owners = pictures.owners(pictures.ATOMS["wmma-gfx11"])
    assert [owners[0, column][0] for column in range(4)] == [0, 16, 0, 16]


@pytest.mark.parametrize("name", ["gfx1030", "gfx1100", "gfx1201", "gfx942", "sm_90"])
def test_a_picture_has_each_element_of_a_tile_once(name):
    figure = ElementTree.fromstring(pictures.tile(name))
    labels = [text.text for text in figure.iter("text")]
    assert len(list(figure.iter("rect"))) == 256
    assert len(set(labels) - {str(n) for n in range(16)}) == 256 + 2
    assert "\n\n" not in pictures.tile(name).strip()


def test_the_picture_of_mma_is_the_layout_of_the_lowering(monkeypatch):
    pytest.importorskip("numba_cuda", reason="the lowering for NVIDIA GPUs needs numba-cuda")
    from rocmkern.tile._lowering.cuda import layouts
    from rocmkern.tile._lowering.shared.ir_types import I32, const
    from rocmkern.tile._lowering.shared.lanes import FoldingBuilder

    tile = layouts.TILE.Tile(16, 16, ("sm_90", 1, 16))
    builder, found = FoldingBuilder(None), {}
    for lane in range(32):
        monkeypatch.setattr(layouts, "lane_index", lambda b, lane=lane: const(I32, lane))
        row, column = layouts.row_of_lane(builder).constant, layouts.column_of_lane(builder).constant
        for number, (slot, ahead) in enumerate(layouts.elements_of(tile)):
            found[row + 8 * slot, column + ahead] = (lane, number)
    assert found == pictures.owners_of_mma()


def test_a_matrix_instruction_of_rdna_3_has_its_operands_twice():
    figure = ElementTree.fromstring(pictures.operand("gfx1100"))
    labels = {text.text for text in figure.iter("text")}
    assert {"0&16", "15&31"} <= labels
    assert "&" not in "".join(text.text for text in ElementTree.fromstring(pictures.operand("gfx942")).iter("text"))


@pytest.mark.parametrize("name", ["gfx1100", "gfx942"])
def test_units_that_are_read_together_lie_in_different_banks(name):
    figure = ElementTree.fromstring(pictures.banks(name, "128"))
    labels = [text.text for text in figure.iter("text")][-64:]
    assert all(len(set(labels[column::8])) == 8 for column in range(8))


def test_every_column_of_rows_along_lanes_has_its_lane():
    figure = ElementTree.fromstring(pictures.rows_along_lanes("4", "8"))
    assert [text.text for text in figure.iter("text")][-32:] == [str(column // 8) for column in range(32)]


def test_the_map_has_every_package_and_the_files_that_say_what_they_are():
    packages = {path.parent.name for path in (ROOT / "rocmkern").glob("*/__init__.py")}
    named = set(re.findall(r"`(?:rocmkern/)?(\w+)`", PAGES["docs/architecture.md"].text))
    # Of the operations, `reference` only joins what the families say.
    assert packages - {"reference"} <= named
    assert "| `plan.py` | Plans" in paths.files("calls")
    assert all(name in paths.layers() for name in packages)


def test_the_way_of_a_call_begins_and_ends_where_it_does():
    figure = ElementTree.fromstring(paths.way("rms_norm"))
    boxes, files = list(figure.iter("rect")), [text.text for text in figure.iter("text")]
    assert len(files) == len(set(files)) <= len(boxes)
    assert files[0] == "calls/plan.py" and files[-1].startswith("targets/")
    table = paths.visited("rms_norm")
    assert table.splitlines()[2].startswith("| `ops/norm/api.py` | `rms_norm`")
    assert "`ops/norm/launch.py`" in table


def test_an_insert_takes_the_place_of_its_block():
    text = _extension.filled("before\n\n```{insert} operations\n```\n\nafter\n")
    assert "flash_attention" in text and "insert" not in text and text.endswith("after\n")
    with pytest.raises(KeyError, match="nothing"):
        _extension.filled("```{insert} nothing\n```\n")
