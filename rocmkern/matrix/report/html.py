"""One self-contained HTML page: it needs no network, and without scripts only the search is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

from rocmkern.matrix.report import plots
from rocmkern.matrix.report.summary import Cell, Place, Summary, counts, dtypes_of, ratios, roof_share, si
from rocmkern.matrix.results import Result, Run

TITLE = "Kernels: support, accuracy, speed"


def page(summary: Summary) -> str:
    """The page as text.

    Parameters
    ----------
    summary : Summary

    Returns
    -------
    str
        HTML with its style, its script and all results in it.
    """
    files = resources.files(__package__)
    style, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    passed, failed = (sum(r.outcome == outcome for _, r in summary.everything) for outcome in ("passed", "failed"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header>
<h1>{TITLE}</h1>
<p>{len(summary.operations)} operations, {len({r.case for _, r in summary.everything})} cases, {len(summary.places)}
targets in {len(summary.runs)} runs: {passed} results passed, {failed} failed.</p>
<nav><a href="#support">Support</a><a href="#accuracy">Accuracy</a><a href="#speed">Speed</a>
<a href="#unverified">Unverified</a><a href="#runs">Runs</a></nav>
</header>
<div class="search"><input id="search" type="search" autofocus aria-label="search the results"
placeholder="search: operation, dtype, feature, dimension, target, e.g. bf16 causal d=80 gfx1100"></div>
<section id="found" hidden><h2>Found</h2><p></p>
<div class="scroll"><table id="answer"><thead><tr><th>target</th><th>does it work</th><th>how exact</th>
<th>how fast</th></tr></thead><tbody></tbody></table></div>
<div class="scroll"><table id="hits"><thead><tr><th>case</th><th>target</th><th>outcome</th>
<th class="number">error / bound</th><th class="number">speed</th></tr></thead><tbody></tbody></table></div></section>
<section id="support"><h2>Support</h2>
<p>Passed of all cases that ran. Hatched: the machine code ran in an emulator, not on a card.</p>
{_support(summary)}</section>
<section id="accuracy"><h2>Accuracy</h2>
<p>The output of each operation that comes nearest to its bound: error, bound, and the share of the bound.</p>
{_accuracy(summary)}</section>
<section id="speed"><h2>Speed</h2>{_speed(summary)}</section>
<section id="unverified"><h2>Unverified</h2>{_unverified(summary)}</section>
<section id="runs"><h2>Runs</h2>{_runs(summary)}</section>
<script type="application/json" id="results">{_embedded(summary)}</script>
<script>
{script}</script>
</body>
</html>
"""


def _table(head: Iterable[str], rows: Iterable[str]) -> str:
    """``head`` holds <th> elements, ``rows`` the contents of <tr> elements."""
    body = "".join(f"<tr>{row}</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{"".join(head)}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _heads(names: Sequence[str], numbers: Sequence[str] = ()) -> list[str]:
    return [f"<th>{escape(n)}</th>" for n in names] + [f'<th class="number">{escape(n)}</th>' for n in numbers]


def _td(text: str, kind: str = "", small: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<td{attribute}>{escape(text)}{f'<small>{escape(small)}</small>' if small else ''}</td>"


def _support(summary: Summary) -> str:
    dtypes = dtypes_of(summary)
    columns = [(place, dtype) for place in summary.places for dtype in dtypes]
    head = ["<th>operation</th>", *(f"<th>{escape(p.title)}<br><small>{escape(d)}</small></th>" for p, d in columns)]
    rows = []
    for operation in summary.operations:
        cells = [(place, summary.cells.get((operation, dtype, place))) for place, dtype in columns]
        if any(cell for _, cell in cells):
            rows.append(_td(operation, "id") + "".join(_support_cell(place, cell) for place, cell in cells))
    return _table(head, rows)


def _support_cell(place: Place, cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    kind = cell.state + (" emulated" if place.emulated else "")
    if cell.state == "skipped":
        return _td("skipped", kind, cell.skipped[0].reason)
    total = cell.passed + len(cell.failed)
    return _td(f"{cell.passed}/{total}", kind, f"{len(cell.skipped)} skipped" if cell.skipped else "")


def _accuracy(summary: Summary) -> str:
    rows = []
    for (operation, dtype, place), cell in summary.cells.items():
        if cell.worst is None:
            continue
        share, result, output = cell.worst
        rows.append(
            _td(operation, "id") + _td(dtype) + _place(place) + _td(result.case, "id")
            + _td(f"{output['error']:.3g}", "number") + _td(f"{output['bound']:.3g}", "number")
            + _td(f"{share:.0%}", "number")
        )  # fmt: skip
    return _table(_heads(("operation", "dtype", "target", "case"), ("error", "bound", "share")), sorted(rows))


def _speed(summary: Summary) -> str:
    if not summary.timed:
        return "<p>No benchmark rows in these runs (pytest --benchmark-only --rocmkern-json FILE).</p>"
    rows = []
    for place, result in summary.timed:
        speed: dict[str, Any] = result.speed or {}
        share = roof_share(speed)
        peers = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios(speed).items())
        rows.append(
            _td(result.case, "id") + _place(place) + _td(peers)
            + _td(f"{speed['wall_s'] * 1e3:.3f}", "number") + _td(si(speed.get("flop_per_s"), "FLOP/s"), "number")
            + _td(si(speed.get("byte_per_s"), "B/s"), "number") + _td("" if share is None else f"{share:.0%}", "number")
        )  # fmt: skip
    table = _table(_heads(("case", "target", "ratio to peers"), ("ms", "arithmetic", "memory", "of the roof")), rows)
    drawn = [
        ("Against peers", "The peer's time over the kernel's in the same run: right of the line the kernel is faster.",
         plots.ratio_bars(summary)),
        ("Over the sequence length", "", plots.speed_over_length(summary)),
        ("Roofline", "The dashed roof is copy bandwidth and matrix peak, measured in the same run.",
         plots.roofline(summary)),
    ]  # fmt: skip
    return table + "".join(
        f'<h3>{title}</h3><p>{words}</p><div class="scroll">{svg}</div>' for title, words, svg in drawn if svg
    )


def _place(place: Place) -> str:
    return _td(place.title, "place", "emulated" if place.emulated else "")


def _unverified(summary: Summary) -> str:
    missing = sum(map(len, summary.unverified.values()))
    parts = [f"<p>{missing} cases have not passed on a graphics card; emulated runs do not count.</p>"]
    for operation, cases in summary.unverified.items():
        ids = "<br>".join(map(escape, cases))
        parts.append(
            f'<details><summary>{escape(operation)}: {len(cases)}</summary><div class="id">{ids}</div></details>'
        )
    return "".join(parts)


def _runs(summary: Summary) -> str:
    places = _table(
        _heads(("target", "device", "run"), ("passed", "failed", "skipped")),
        [
            _place(place) + _td(place.name) + _td(place.run)
            + "".join(_td(str(n), "number") for n in counts(summary, place).values())
            for place in summary.places
        ],
    )  # fmt: skip
    runs = _table(_heads(("run", "time", "platform", "versions")), [_run_row(run) for run in summary.runs])
    return places + "<h3>Environments</h3>" + runs


def _run_row(run: Run) -> str:
    place = run.environment
    versions = ", ".join(f"{name} {version}" for name, version in place.versions.items())
    return _td(place.label) + _td(place.time) + _td(f"{place.platform}, Python {place.python}") + _td(versions)


def _embedded(summary: Summary) -> str:
    """All results for the search; ``</`` is broken up so that no text ends the script element."""
    labels = {name: table for run in summary.runs for name, table in run.labels.items()}
    records = [_record(place, result, labels.get(result.operation, {})) for place, result in summary.everything]
    return json.dumps(records, separators=(",", ":")).replace("</", "<\\/")


def _record(place: Place, result: Result, labels: dict[str, str]) -> dict[str, Any]:
    worst = max(result.outputs, key=lambda output: output["share"], default=None)
    speed = result.speed
    peers = "".join(f", {ratio:.2f} × {name}" for name, ratio in ratios(speed or {}).items())
    return {
        "case": result.case,
        "place": f"{place.title}, {place.name}" + (" (emulated)" if place.emulated else ""),
        "outcome": result.outcome,
        "reason": result.reason,
        "emulated": place.emulated,
        "card": place.is_card,
        "exact": f"{worst['error']:.2g} / {worst['bound']:.2g}" if worst else "",
        "share": worst["share"] if worst else None,
        "speed": f"{speed['wall_s'] * 1e3:.3f} ms, {si(speed.get('flop_per_s'), 'FLOP/s')}{peers}" if speed else "",
        "words": _words(place, result, labels),
    }


def _words(place: Place, result: Result, labels: dict[str, str]) -> str:
    """What a search may name: parts of the case, ``d80`` and ``d=80`` and ``head_dim=80`` for dimensions."""
    words = [result.case, result.operation, result.group, result.category, result.dtype, result.outcome]
    words += [place.target, place.arch, *place.name.split(), *result.operation.split("_")]
    words += ["emulated"] if place.emulated else []
    for name, value in result.dims.items():
        shown = "x".join(map(str, value)) if isinstance(value, list) else str(value)
        label = labels.get(name, name)
        words += [f"{label}{shown}", f"{label}={shown}", f"{name}={shown}"]
    for name, value in result.features.items():
        words += [name, f"{name}={value}", *([value] if isinstance(value, str) else [])]
    words += [result.memory] if isinstance(result.memory, str) else list(result.memory.values())
    return " ".join(dict.fromkeys(word.lower() for word in words if word))
