"""One self-contained HTML page: it needs no network, and without scripts only the search is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

from rocmkern.matrix.report import plots
from rocmkern.matrix.report.coverage import CARDS, Coverage
from rocmkern.matrix.report.place import Place
from rocmkern.matrix.report.summary import Cell, Summary, counts, dtypes_of, ratios, roof_share, si
from rocmkern.matrix.results import Result, Run

TITLE = "Kernels: support, accuracy, speed"
OF_THE_ROOF = (
    "Of the roof: the share of the matrix peak (arithmetic) or of the bandwidth of a large copy (memory), whichever is "
    "nearer; both are the best that was measured in the same run. A row that moves its data faster than a large copy "
    "has them in a cache, and is measured by arithmetic alone. Above 100 % the peak was measured on a busier machine, "
    "or the row computes in a faster type than its own."
)


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
targets in {len(summary.runs)} runs: {passed} results passed, {failed} failed. {_verified(summary)}</p>
<nav><a href="#support">Support</a><a href="#accuracy">Accuracy</a><a href="#speed">Speed</a>
<a href="#unverified">Unverified</a><a href="#runs">Runs</a></nav>
</header>
<div class="search"><input id="search" type="search" autofocus aria-label="search the results"
placeholder="search or ask: does bf16 causal attention with D=80 work on gfx1100, how exact, how fast"></div>
<section id="found" hidden><h2>Found</h2><p></p>
<div class="scroll"><table id="answer"><thead><tr><th>target</th><th>does it work</th><th>how exact</th>
<th>how fast</th></tr></thead><tbody></tbody></table></div>
<div class="scroll"><table id="hits"><thead><tr><th>case</th><th>target</th><th>outcome</th>
<th class="number">error / bound</th><th class="number">speed</th></tr></thead><tbody></tbody></table></div></section>
<section id="support"><h2>Support</h2>
<p>Passed of all cases that ran. Hatched: the machine code ran in an emulator, not on a card. The first columns count
what has passed on a card of the vendor, of all cases that should.</p>
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
    head = ["<th>operation</th>"]
    head += [f"<th>on {coverage.card}<br><small>verified</small></th>" for coverage in summary.coverage]
    for place, dtype in columns:
        emulated = "<br><small>emulated</small>" if place.emulated else ""
        head.append(f"<th>{escape(place.title)}<br><small>{escape(dtype)}</small>{emulated}</th>")
    rows = []
    for operation in summary.operations:
        cells = [(place, summary.cells.get((operation, dtype, place))) for place, dtype in columns]
        if any(cell for _, cell in cells):
            verified = "".join(_coverage_cell(coverage, operation) for coverage in summary.coverage)
            ran = "".join(_support_cell(place, cell) for place, cell in cells)
            rows.append(_td(operation, "id") + verified + ran)
    return _table(head, rows)


def _support_cell(place: Place, cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    kind = cell.state + (" emulated" if place.emulated else "")
    if cell.state == "skipped":
        return _td("skipped", kind, cell.skipped[0].reason)
    total = cell.passed + len(cell.failed)
    return _td(f"{cell.passed}/{total}", kind, f"{len(cell.skipped)} skipped" if cell.skipped else "")


def _coverage_cell(coverage: Coverage, operation: str) -> str:
    verified, emulated, total = coverage.count(operation)
    kind = "passed" if verified == total else "skipped"
    return _td(f"{verified}/{total}", kind, f"{emulated} emulated only" if emulated else "") if total else _td("")


def _verified(summary: Summary) -> str:
    """What has passed on cards, in a sentence for each vendor."""
    sentences = []
    for coverage in summary.coverage:
        verified, emulated, total = coverage.count()
        more = f", {emulated} more in an emulator only" if emulated else ""
        sentences.append(f"On {coverage.card}: {verified} of {total} cases passed{more}.")
    return " ".join(sentences)


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
        return "<p>No benchmark rows in these runs (pytest --benchmark-only --rocmkern-json=FILE).</p>"
    rows = []
    for place, result in summary.timed:
        speed: dict[str, Any] = result.speed or {}
        share = roof_share(speed)
        peers = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios(speed).items())
        rows.append(
            _td(result.case, "id") + _place(place) + _td(peers)
            + _td(f"{speed['wall_s'] * 1e3:.3f}", "number") + _td(si(speed.get("flop_per_s"), "FLOP/s"), "number")
            + _td(si(speed.get("byte_per_s"), "B/s"), "number") + _td(share.text(), "number", share.of)
        )  # fmt: skip
    table = _table(_heads(("case", "target", "ratio to peers"), ("ms", "arithmetic", "memory", "of the roof")), rows)
    drawn = [
        ("Against peers", "The peer's time over the kernel's in the same run: right of the line the kernel is faster.",
         plots.ratio_bars(summary)),
        ("Over the sequence length", "", plots.speed_over_length(summary)),
        ("Roofline", "The dashed roofs are copy bandwidth and matrix peak, measured in the same run. Points above the "
         "slope have their data in a cache.",
         plots.roofline(summary)),
    ]  # fmt: skip
    return f"<p>{OF_THE_ROOF}</p>{table}" + "".join(
        f'<h3>{title}</h3><p>{words}</p><div class="scroll">{svg}</div>' for title, words, svg in drawn if svg
    )


def _place(place: Place) -> str:
    return _td(place.title, "place", "emulated" if place.emulated else "")


def _unverified(summary: Summary) -> str:
    parts = ["<p>A case is verified for a target where it has passed on a card of it; emulated runs do not count.</p>"]
    parts.append(_cards(summary))
    for coverage in summary.coverage:
        missing = sum(len(cases) for table in coverage.unverified().values() for cases in table.values())
        parts.append(f'<h3 id="unverified-{coverage.target}">{coverage.target}: not verified on {coverage.card}</h3>')
        why = f": {', '.join(map(escape, coverage.reasons()))}" if missing else ""
        parts.append(f"<p>{missing} cases have not passed on {coverage.card}{why}.</p>")
        for operation, table in coverage.unverified().items():
            lines = [f"<p>{escape(why)}</p><div class='id'>{_lines(cases)}</div>" for why, cases in table.items()]
            count = sum(map(len, table.values()))
            parts.append(f"<details><summary>{escape(operation)}: {count}</summary>{''.join(lines)}</details>")
    return "".join(parts)


def _lines(words: Iterable[str]) -> str:
    return "<br>".join(map(escape, words))


def _cards(summary: Summary) -> str:
    """A line for each architecture of a GPU target."""
    rows = []
    for place in summary.places:
        if place.target in CARDS:
            outcomes = counts(summary, place, benchmarks=False)
            rows.append(
                _place(place) + _td(place.name) + _td("in an emulator" if place.emulated else "on a card")
                + "".join(_td(str(number), "number") for number in outcomes.values())
            )  # fmt: skip
    return _table(_heads(("target", "device", "ran"), ("passed", "failed", "skipped")), rows) if rows else ""


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
    # A browser knows no NaN; files with one are refused when they are read.
    return json.dumps(records, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")


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
