"""What the pages take from the code while they are built.

A page says where, in a block of its own::

    ```{insert} operations
    ```

and Markdown takes its place before the page is read: `tables` has tables and the API reference, `pictures` drawings of
layouts, `paths` the map of the code. Nothing of it is kept in a file, so none of it can be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from _extension import paths, pictures, ranks, tables

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INSERTS: dict[str, Callable[..., str]] = {**tables.INSERTS, **pictures.INSERTS, **paths.INSERTS, **ranks.INSERTS}
_BLOCK = re.compile(r"^```\{insert\} (.+)\n```$", re.MULTILINE)


def filled(page: str) -> str:
    """The text of a page with what its ``insert`` blocks name: the name of an insert, and its arguments."""

    def insert(block: re.Match[str]) -> str:
        name, *arguments = block[1].split()
        return INSERTS[name](*arguments)

    return _BLOCK.sub(insert, page)


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = filled(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    app.connect("source-read", _fill)
    return {"version": "1", "parallel_read_safe": True}
