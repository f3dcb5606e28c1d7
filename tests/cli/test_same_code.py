"""``rocmkern report --same-code``: rows that ran the same machine code on two machines, and rows that did not."""

from __future__ import annotations

import json

import pytest

from rocmkern.cli import main


def card(arch="gfx1100", **code):
    """A report of a card whose rows ran one code object each, of which the bytes differ from machine to machine."""
    results = [{"case": name, "code": [f"bytes of {name}"]} for name in code] + [{"case": "on_the_host", "code": []}]
    described = {
        f"bytes of {name}": {"code_sha256": value} if value else {"unknown": ""} for name, value in code.items()
    }
    environment = {"devices": {"hip": {"arch": arch, "name": "a card"}}}
    run = {"environment": environment, "results": results}
    return {"card_report": 1, "target": "hip", "run": run, "code": described}


def virtual(**code):
    """What `amd-test --json` writes."""
    objects = {f"other bytes of {name}": {"code_sha256": value} for name, value in code.items()}
    return {
        "arch": "gfx1100",
        "rows": {name: {"code": [f"other bytes of {name}"]} for name in code},
        "code_objects": objects,
    }


@pytest.fixture
def compare(tmp_path, capsys):
    def run(*files):
        paths = []
        for number, data in enumerate(files):
            paths.append(tmp_path / f"{number}.json")
            paths[-1].write_text(data if isinstance(data, str) else json.dumps(data))
        status = main(["report", "--same-code", *map(str, paths)])
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    return run


def test_the_same_code_whatever_linked_it(compare):
    status, text = compare(card(a="1", b="2", c="3"), virtual(b="2", a="1", d="4"))
    counts = "2 the same code, 0 other code, 0 code that a file does not describe"
    assert (status, text) == (0, f"2 rows ran code on gfx1100 in both files: {counts}\n")
    assert compare(card(a="1"), card(a="1"))[0] == 0


def test_other_code_is_named(compare):
    status, text = compare(card(a="1", b="2", c=""), virtual(a="1", b="9", c="3"))
    assert status == 1 and text.splitlines()[0] == "DIFFERS  b"
    assert "1 the same code, 1 other code, 1 code that a file does not describe" in text


def test_many_differences_are_counted(compare):
    one, other = ({f"r{number}": f"{number}{side}" for number in range(30)} for side in "ab")
    assert "DIFFERS  10 more" in compare(card(**one), virtual(**other))[1]


def test_files_that_say_nothing_of_each_other_are_no_proof(compare):
    assert compare(card(a="1"), virtual(b="1"))[0] == 1
    status, text = compare(card(arch="gfx942", a="1"), virtual(a="1"))
    assert status == 1 and "gfx942 and gfx1100" in text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"card_report": 1}', '{"arch": "gfx1100", "rows": []}'])
def test_another_file_is_refused(compare, text):
    status, shown = compare(card(a="1"), text)
    assert status == 2 and "--same-code: got" in shown and "allowed: a complete report" in shown
