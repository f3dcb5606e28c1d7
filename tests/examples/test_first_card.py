"""What docs/first-card.md tells a card's owner to type exists, and so do the checks that it names."""

import re
import shlex

import pytest

from rocmkern.cli import build_parser


@pytest.fixture
def page(root):
    return (root / "docs" / "first-card.md").read_text(encoding="utf-8")


def test_every_command_is_one(page):
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("rocmkern ")]
    assert len(lines) >= 7
    for line in lines:
        # Two blanks, or a sign of a comment, end a command; what comes then is for people.
        words = shlex.split(re.split(r"\s{2,}|#", line)[0])
        assert callable(build_parser().parse_args(words[1:]).run), line


def test_every_check_and_outcome_that_is_named_exists(page, root):
    sources = "".join(path.read_text(encoding="utf-8") for path in (root / "rocmkern").rglob("*.py"))
    checks = re.findall(r"`check (\w+)`", page)
    assert checks
    assert [name for name in checks if f'CaseFailure("{name}"' not in sources] == []
    assert [
        name for name in re.findall(r"`(\w*_sha256|hang|crash|unavailable)`", page) if f'"{name}"' not in sources
    ] == []


def test_linked_files_and_the_readme_find_it(page, readme, root):
    assert "docs/first-card.md" in readme
    assert [name for name in re.findall(r"\]\(([^)#:]+)\)", page) if not (root / "docs" / name).exists()] == []
