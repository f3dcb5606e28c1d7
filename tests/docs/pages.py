"""Pages of documentation as their tests see them: blocks of code, and a page's Python as one script.

The Python blocks of a page are run in their order, as a reader does. A block ```` ```text ```` right behind one is what
it prints, where ``...`` stands for anything. A page may begin with what it needs::

    ---
    target: cpu          what NumPy arrays run on; python otherwise
    needs: torch         modules without which it is skipped
    ---
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
#: Says in the output of a script which block comes next: its line.
MARK = "\f"


@dataclass(frozen=True)
class Block:
    """A fenced block: what its fence says, its text, and the line of the page where that begins, from 1."""

    language: str
    text: str
    line: int

    @property
    def end(self) -> int:
        """The line of its closing fence."""
        return self.line + self.text.count("\n")


@dataclass(frozen=True)
class Page:
    """A page and its name relative to the root."""

    name: str
    text: str

    @property
    def settings(self) -> dict[str, str]:
        """What stands at its top between lines of dashes."""
        found = re.match(r"---\n(.*?)\n---\n", self.text, re.DOTALL)
        return yaml.safe_load(found[1]) if found else {}

    @property
    def blocks(self) -> list[Block]:
        """All fenced blocks, also those within the items of a list."""
        found = re.finditer(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", self.text, re.MULTILINE | re.DOTALL)
        return [Block(each[2], textwrap.dedent(each[3]), self.text.count("\n", 0, each.start(3)) + 1) for each in found]

    def of(self, *languages: str) -> list[Block]:
        """The blocks of these languages."""
        return [block for block in self.blocks if block.language in languages]

    @property
    def script(self) -> str:
        """The Python blocks, each where it stands in the page, so that a traceback names the page's lines."""
        lines = [""] * self.text.count("\n")
        for block in self.of("python"):
            lines[block.line - 2] = f"print({MARK + str(block.line) + MARK!r})"
            for number, line in enumerate(block.text.splitlines()):
                lines[block.line - 1 + number] = line
        return "\n".join(lines) + "\n"

    @property
    def outputs(self) -> dict[int, str]:
        """What blocks print according to the page, by the line of the block."""
        blocks = self.blocks
        return {
            code.line: said.text
            for code, said in itertools.pairwise(blocks)
            if (code.language, said.language) == ("python", "text") and said.line == code.end + 3
        }


def pages() -> list[Page]:
    """README, CONTRIBUTING and what else stands beside them, and all pages of docs/."""
    files = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")) for file in files]


def printed(output: str) -> dict[int, str]:
    """What a page's script printed, by the line of the block."""
    parts = output.split(MARK)
    return {int(line): text.removeprefix("\n") for line, text in zip(parts[1::2], parts[2::2], strict=True)}


def agrees(said: str, text: str) -> bool:
    """Whether what was printed is what a page says."""
    pattern = "".join(".*" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", said.strip()))
    return re.fullmatch(pattern, text.strip(), re.DOTALL) is not None


def commands(block: Block) -> Iterator[str]:
    """The commands of a block of a shell, without comments; a line that ends in a backslash goes on."""
    for line in re.sub(r"\s*\\\n\s*", " ", block.text).splitlines():
        command = re.split(r"\s{2,}|(?:^|\s)#", line.strip())[0].strip()
        if command:
            yield command
