"""What stands beside the code says the same as the code: versions, licences, Pythons, dependencies of the docs."""

from __future__ import annotations

import re

import yaml
from pages import ROOT

import rocmkern

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_citation_has_the_version_and_the_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == rocmkern.__version__
    assert f'license = "{citation["license"]}"' in PROJECT
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_changelog_has_what_is_not_released_and_this_version():
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[:2] == ["Unreleased", rocmkern.__version__]


def test_the_workflow_runs_every_python_that_is_supported():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    others = jobs["tests"]["strategy"]["matrix"]["include"]
    versions = {job["python"] for job in others}
    versions |= {step["with"]["python-version"] for step in jobs["full"]["steps"] if "setup-python" in str(step)}
    assert versions == set(re.findall(r"Python :: (3\.\d+)", PROJECT))
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in commands:
        program, *targets = command.split()
        targets = [target for target in targets if not target.startswith("PART=")]
        known = (ROOT / program).exists() or all(re.search(rf"^{t}:", makefile, re.MULTILINE) for t in targets)
        assert known, command
    parts = int(re.search(r"^PARTS := (\d+)$", makefile, re.MULTILINE)[1])
    assert {job["part"] for job in others} == set(range(1, len(others) + 1)) and len(others) <= parts


def test_pages_load_nothing_from_a_network():
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.css"), ROOT / "docs" / "conf.py"]
    assert len(pages) > 20
    assert [str(p) for p in pages if re.search(r"(?:src|href|url|import)\W{0,3}https?://", p.read_text("utf-8"))] == []
