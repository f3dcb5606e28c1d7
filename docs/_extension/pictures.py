"""Pictures of layouts, drawn from the tables that the lowerings use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from xml.sax.saxutils import escape

from rocmkern.architectures import architecture
from rocmkern.tile.lowering.shared.atoms import ATOMS, Atom

CELL = 30
#: Colours of the groups of lanes that share a row.
COLOURS = ("#8ecae6", "#ffd166", "#95d5b2", "#f4a6a6")


def owners(atom: Atom) -> dict[tuple[int, int], tuple[int, int]]:
    """Which lane, and which of its registers, holds the element in a row and a column of 16 columns of a result."""
    return {
        (lane % atom.rows, atom.register_step * i + atom.group_step * (lane // atom.rows)): (lane, i)
        for lane in range(atom.wave)
        for i in range(atom.registers)
    }


def drawing(cells: Mapping[tuple[int, int], tuple[str, int]], title: str, across: str, down: str, caption: str) -> str:
    """A grid of labelled cells as SVG within a figure of HTML, without empty lines.

    Parameters
    ----------
    cells : mapping
        Of (row, column): the label, and the number of the colour.
    title, caption : str
        For those who hear the page, and below the picture.
    across, down : str
        What the columns and the rows are.
    """
    rows, columns = (1 + max(place[axis] for place in cells) for axis in (0, 1))
    left, top = 46, 34
    width, height = left + columns * CELL + 4, top + rows * CELL + 4
    middle = top + rows * CELL / 2
    text = 'font-family="sans-serif" text-anchor="middle" dominant-baseline="central"'
    named = f'font-size="11" fill="currentColor" {text}'
    lines = [
        f'<figure class="picture"><svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{escape(title)}">',
        f'<text x="{left + columns * CELL / 2}" y="8" {named}>{escape(across)}</text>',
        f'<text x="8" y="{middle}" {named} transform="rotate(-90 8 {middle})">{escape(down)}</text>',
    ]
    for column in range(columns):
        at = left + (column + 0.5) * CELL
        lines.append(f'<text x="{at}" y="24" font-size="9" fill="currentColor" {text}>{column}</text>')
    for row in range(rows):
        at = top + (row + 0.5) * CELL
        lines.append(f'<text x="30" y="{at}" font-size="9" fill="currentColor" {text}>{row}</text>')
    for (row, column), (label, colour) in sorted(cells.items()):
        x, y = left + column * CELL, top + row * CELL
        fill = COLOURS[colour % len(COLOURS)]
        lines.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#555"/>')
        lines.append(f'<text x="{x + CELL / 2}" y="{y + CELL / 2}" font-size="9" fill="#111" {text}>{label}</text>')
    lines.append(f"</svg><figcaption>{escape(caption)}</figcaption></figure>")
    return "\n".join(lines) + "\n"


def tile(name: str) -> str:
    """Which lane holds which element of a 16 x 16 tile on an AMD GPU: ``lane.register``."""
    record = architecture(name)
    atom = ATOMS[record.matrix or "fma"]
    cells = {place: (f"{lane}.{i}", lane // atom.rows) for place, (lane, i) in owners(atom).items()}
    caption = (
        f"{name} ({record.matrix or 'no matrix instruction'}): lane.register of each element; "
        f"a colour is a group of {atom.rows} lanes, a wave has {atom.wave}."
    )
    return drawing(cells, f"Layout of a 16 x 16 tile on {name}", "column of the tile", "row of the tile", caption)


INSERTS: dict[str, Callable[..., str]] = {"tile": tile}
