"""Pictures of layouts, drawn from the tables that the lowerings use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from xml.sax.saxutils import escape

from rocmkern.architectures import architecture
from rocmkern.tile._lowering.shared.atoms import ATOMS, Atom
from rocmkern.tile._lowering.shared.banks import UNIT, places

CELL = 30
#: Colours of the groups of lanes that share a row, and of banks.
COLOURS = ("#8ecae6", "#ffd166", "#95d5b2", "#f4a6a6", "#cdb4db", "#bde0fe", "#fcd5ce", "#d8e2dc")

Cells = dict[tuple[int, int], tuple[str, int]]


def owners(atom: Atom) -> dict[tuple[int, int], tuple[int, int]]:
    """Which lane, and which of its registers, holds the element in a row and a column of 16 columns of a result."""
    return {
        (lane % atom.rows, atom.register_step * i + atom.group_step * (lane // atom.rows)): (lane, i)
        for lane in range(atom.wave)
        for i in range(atom.registers)
    }


def owners_of_mma() -> dict[tuple[int, int], tuple[int, int]]:
    """The same for a 16 x 16 tile on NVIDIA GPUs: two accumulators of mma.sync (PTX ISA: m16n8k16, matrix C)."""
    return {
        (lane // 4 + 8 * half, 8 * j + 2 * (lane % 4) + e): (lane, 4 * j + 2 * half + e)
        for lane in range(32)
        for j in range(2)
        for half in range(2)
        for e in range(2)
    }


def drawing(cells: Mapping[tuple[int, int], tuple[str, int]], across: str, down: str, caption: str) -> str:
    """A grid of labelled cells as SVG within a figure of HTML, without empty lines.

    Parameters
    ----------
    cells : mapping
        Of (row, column): the label, and the number of the colour.
    across, down : str
        What the columns and the rows are.
    caption : str
        Below the picture, and for those who hear the page.
    """
    rows, columns = (1 + max(place[axis] for place in cells) for axis in (0, 1))
    left, top = 46, 34
    width, height = left + columns * CELL + 4, top + rows * CELL + 4
    middle = top + rows * CELL / 2
    text = 'font-family="sans-serif" text-anchor="middle" dominant-baseline="central"'
    named = f'font-size="11" fill="currentColor" {text}'
    numbered = f'font-size="9" fill="currentColor" {text}'
    said = escape(caption, {'"': "&quot;"})
    lines = [
        f'<figure class="picture"><svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{said}">',
        f'<text x="{left + columns * CELL / 2}" y="8" {named}>{escape(across)}</text>',
        f'<text x="8" y="{middle}" {named} transform="rotate(-90 8 {middle})">{escape(down)}</text>',
    ]
    lines += [f'<text x="{left + (c + 0.5) * CELL}" y="24" {numbered}>{c}</text>' for c in range(columns)]
    lines += [f'<text x="30" y="{top + (r + 0.5) * CELL}" {numbered}>{r}</text>' for r in range(rows)]
    for (row, column), (label, colour) in sorted(cells.items()):
        x, y = left + column * CELL, top + row * CELL
        fill = COLOURS[colour % len(COLOURS)]
        lines.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#555"/>')
        lines.append(f'<text x="{x + CELL / 2}" y="{y + CELL / 2}" font-size="9" fill="#111" {text}>{label}</text>')
    lines.append(f"</svg><figcaption>{said}</figcaption></figure>")
    return "\n".join(lines) + "\n"


def tile(name: str) -> str:
    """Which lane holds which element of a 16 x 16 tile of an architecture: ``lane.register``."""
    record = architecture(name)
    if record.target == "cuda":
        rows, found, group = 8, owners_of_mma(), "the four lanes of a row have a colour each"
        cells: Cells = {place: (f"{lane}.{i}", lane % 4) for place, (lane, i) in found.items()}
    else:
        atom = ATOMS[record.matrix or "fma"]
        rows, found = atom.rows, owners(atom)
        group = f"a colour is a group of {rows} lanes, a wave has {atom.wave}"
        cells = {place: (f"{lane}.{i}", lane // rows) for place, (lane, i) in found.items()}
    caption = f"{name} ({record.matrix or 'no matrix instruction'}): lane.register of each element; {group}."
    return drawing(cells, "column of the tile", "row of the tile", caption)


def operand(name: str) -> str:
    """Which lanes hold which element of the 16 x 16 operand of an AMD architecture's matrix instruction."""
    atom = ATOMS[architecture(name).matrix]
    cells: Cells = {}
    for row in range(atom.rows):
        for k in range(16):
            groups = [g for g in range(atom.groups) if 0 <= k - atom.run_step * g < atom.run]
            cells[row, k] = ("&amp;".join(str(row + atom.rows * g) for g in groups), groups[0])
    caption = f"{name}: the lanes that hold each element of an operand of float16."
    return drawing(cells, "place along the reduced axis", "row", caption)


def banks(name: str, line: str) -> str:
    """Where units of 16 bytes of a window lie among the banks of shared memory: number of four banks."""
    window = places(name, 8, int(line), UNIT)
    cells: Cells = {}
    for row in range(window.lines):
        for unit in range(int(line) // UNIT):
            place = window.place(row * window.pitch + unit * UNIT) // UNIT
            cells[row, unit] = (str(place % window.units), place % window.units)
    how = "swizzled" if window.swizzled else "padded"
    caption = f"{name}, lines of {line} bytes, {how}: in which four banks each unit of 16 bytes lies."
    return drawing(cells, "unit of 16 bytes", "line of the window", caption)


def rows_along_lanes(threads_per_row: str, vector_width: str) -> str:
    """Which lane of its team holds each column of a row, where rows lie along lanes."""
    lanes, width = int(threads_per_row), int(vector_width)
    cells: Cells = {}
    for column in range(2 * lanes * width):
        lane = column % (lanes * width) // width
        cells[column // (lanes * width), column % (lanes * width)] = (str(lane), lane)
    caption = f"threads_per_row={lanes}, vector_width={width}: the lane of each column; a row goes on in the next line."
    return drawing(cells, "column", "", caption)


INSERTS: dict[str, Callable[..., str]] = {
    "tile": tile,
    "operand": operand,
    "banks": banks,
    "rows-along-lanes": rows_along_lanes,
}
