"""Every block of code in README, CONTRIBUTING and docs/ does what the page says."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from pages import ROOT, Block, Page, agrees, commands, pages, printed

from rocmkern.cli import build_parser
from rocmkern.matrix import expand, loads
from rocmkern.testing import plugin

PAGES = pages()
WITH_PYTHON = [page for page in PAGES if page.of("python")]
#: Languages of blocks; one that is not here is a mistake of the page.
TESTED = ("python", "sh", "yaml", "text", "{toctree}", "{insert}")
#: Programs of other projects, which are not looked into.
OTHER_PROGRAMS = {"git", "cp", "cd", "export", "sudo"}


def _id(page: Page) -> str:
    return page.name


def test_there_are_blocks():
    assert len(WITH_PYTHON) >= 8
    assert sum(len(page.of("python")) for page in PAGES) >= 30
    assert sum(len(page.of("sh")) for page in PAGES) >= 10


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_each_block_says_what_it_is(page):
    assert [(block.line, block.language) for block in page.blocks if block.language not in TESTED] == []


@pytest.mark.parametrize("page", WITH_PYTHON, ids=_id)
def test_python_runs_and_prints_what_the_page_says(page, tmp_path):
    for module in page.settings.get("needs", "").split():
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:  # a folder of tests has the name of what it tests
            pytest.skip(f"{page.name} needs {module}, which is not installed")
    script = tmp_path / (page.name.replace("/", "_").removesuffix(".md").replace("-", "_") + ".py")
    script.write_text(page.script, encoding="utf-8")
    environment = {**os.environ, "ROCMKERN_TARGET": page.settings.get("target", "python")}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = printed(done.stdout)
    assert list(output) == [block.line for block in page.of("python")]
    for line, said in page.outputs.items():
        assert agrees(said, output[line]), f"{page.name}:{line} prints\n{output[line]}"


def test_what_blocks_print_is_compared():
    page = Page("p", "```python\nprint('a b c')\n```\n\n```text\na ... c\n```\n")
    assert page.outputs == {2: "a ... c\n"}
    assert Page("p", page.text.replace("```text", "Elsewhere:\n\n```text")).outputs == {}
    assert agrees("a ... c\n", "a b c\n")
    assert not agrees("a ... d\n", "a b c\n")


@pytest.mark.parametrize("page", [page for page in PAGES if page.of("yaml")], ids=_id)
def test_rows_of_a_matrix_are_rows(page):
    head = "version: 1\nregistry: rocmkern.ops.catalog\ndefaults: {category: quick}\n"
    groups = next(block.text for block in page.of("yaml") if block.text.startswith("groups:"))
    for block in page.of("yaml"):
        assert expand(loads(head + (groups if block.text != groups else "") + block.text)), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.of("sh")], ids=_id)
def test_commands_exist(page):
    for block in page.of("sh"):
        for command in commands(block):
            _check(command, f"{page.name}:{block.line}: {command}")


def _check(command: str, where: str) -> None:
    words = shlex.split(command)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    program, *arguments = words
    check = CHECKS.get(program)
    if check is not None:
        check(arguments, where)
    else:
        assert program in OTHER_PROGRAMS or shutil.which(program) or (ROOT / program).exists(), where


def _rocmkern(arguments: list[str], where: str) -> None:
    try:
        assert callable(build_parser().parse_args(arguments).run), where
    except SystemExit:
        pytest.fail(where)


def _torchrun(arguments: list[str], where: str) -> None:
    """PyTorch's starter, which need not be here: the program that it starts is there."""
    programs = [word for word in arguments if word.endswith(".py")]
    assert len(programs) == 1 and (ROOT / programs[0]).exists(), where


def _make(arguments: list[str], where: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^(?:\.PHONY:(.*)|(\w+) \?=)", makefile, re.MULTILINE))
    targets = set(" ".join(targets for targets, _ in known).split())
    variables = {name for _, name in known if name}
    for word in arguments:
        name, is_variable, _ = word.partition("=")
        assert name in (variables if is_variable else targets), where


def _pip(arguments: list[str], where: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = re.findall(r"^([\w-]+) = \[", project.partition("[project.optional-dependencies]")[2], re.MULTILINE)
    assert arguments[0] == "install", where
    for named in re.findall(r"(?:\.|rocmkern)\[([\w,]+)\]", " ".join(arguments)):
        assert set(named.split(",")) <= set(extras), where


def _python(arguments: list[str], where: str) -> None:
    if arguments[0] == "-m":
        module, rest = arguments[1], arguments[2:]
        if module in CHECKS:
            CHECKS[module](rest, where)
        else:
            assert module == "venv" or importlib.util.find_spec(module) is not None, where
    elif arguments[0] != "-c":
        assert (ROOT / arguments[0]).is_file(), where


class _Options:
    """Collects the options that the plugin adds to pytest."""

    def __init__(self):
        self.names = set()

    def getgroup(self, *_):
        return self

    def addoption(self, *names, **_):
        self.names |= set(names)

    def addini(self, *_, **__):
        pass


def _pytest(arguments: list[str], where: str) -> None:
    ours = _Options()
    plugin.pytest_addoption(ours)
    for word in arguments:
        if word.startswith("--rocmkern"):
            assert word.partition("=")[0] in ours.names, where
        elif word.endswith(".py") or word.startswith("tests/"):
            assert (ROOT / word.partition("::")[0]).exists(), where


CHECKS = {
    "rocmkern": _rocmkern, "make": _make, "pip": _pip, "python": _python, "python3": _python, "pytest": _pytest,
    "torchrun": _torchrun,
}  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        "rocmkern nothing",
        "make nothing",
        "pip install .[nothing]",
        "python tools/nothing.py",
        "pytest --rocmkern-nothing",
        "torchrun --nproc-per-node 2 examples/nothing.py",
        "no_such_program now",
    ],
)
def test_a_command_that_does_not_exist_is_found(command):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        _check(command, command)


def test_blocks_in_lists_are_blocks():
    page = Page("p", "1. Do it:\n\n   ```sh\n   make demo\n   ```\n\n2. Or not.\n")
    assert page.blocks == [Block("sh", "make demo\n", 4)]


def test_commands_are_read_without_their_comments():
    block = Block("sh", "# first\nmake demo     # a comment\nrocmkern isa \\\n  --list\n", 1)
    assert list(commands(block)) == ["make demo", "rocmkern isa --list"]
