"""The summary as Markdown, for a README or a pull request."""

from __future__ import annotations

from rocmkern.matrix.report.coverage import Coverage
from rocmkern.matrix.report.summary import Summary, counts, dtypes_of, ratios, roof_share, si


def text(summary: Summary) -> str:
    """Markdown tables: runs, support, accuracy, speed, and what is not verified on a card of which vendor."""
    parts = ["# Kernels: support, accuracy, speed", "", "## Runs", ""]
    parts += _table(
        ("target", "device", "run", "passed", "failed", "skipped"),
        [
            (p.title, p.name + (" (emulated)" if p.emulated else ""), p.run, *map(str, counts(summary, p).values()))
            for p in summary.places
        ],
    )
    parts += [
        "",
        "## Support",
        "",
        "Passed of all cases that ran; the worst share of the error bound in parentheses. The last columns count what "
        "has passed on a card of the vendor, of all cases that should.",
        "",
    ]
    dtypes = dtypes_of(summary)
    rows = []
    for operation in summary.operations:
        for dtype in dtypes:
            cells = [summary.cells.get((operation, dtype, place)) for place in summary.places]
            if any(cells):
                verified = (_coverage(coverage, operation, dtype) for coverage in summary.coverage)
                rows.append((operation, dtype, *(_cell(cell) for cell in cells), *verified))
    places = (place.title + (" (emulated)" if place.emulated else "") for place in summary.places)
    parts += _table(("operation", "dtype", *places, *(f"on {c.card}" for c in summary.coverage)), rows)
    if summary.timed:
        parts += ["", "## Speed", "", "Ratios are the peer's time over the kernel's: above 1 the kernel is faster.", ""]
        parts += _table(
            ("case", "target", "ms", "arithmetic", "memory", "of the roof", "ratio to peers"),
            [
                (
                    result.case,
                    place.title,
                    f"{result.speed['wall_s'] * 1e3:.3f}",
                    si(result.speed.get("flop_per_s"), "FLOP/s"),
                    si(result.speed.get("byte_per_s"), "B/s"),
                    " ".join(filter(None, ((share := roof_share(result.speed)).text(), share.of))),
                    ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios(result.speed).items()),
                )
                for place, result in summary.timed
                if result.speed is not None
            ],
        )
    parts += ["", "## Unverified", "", "A case is verified for a target where it has passed on a card of it."]
    for coverage in summary.coverage:
        unverified = coverage.unverified()
        missing = sum(len(cases) for table in unverified.values() for cases in table.values())
        why = f": {', '.join(coverage.reasons())}" if missing else ""
        parts += ["", f"{coverage.target}: {missing} cases have not passed on {coverage.card}{why}."]
        if missing:
            rows = [
                (operation, str(len(cases)), why)
                for operation, table in unverified.items()
                for why, cases in table.items()
            ]
            parts += ["", *_table(("operation", "cases", "why not"), rows)]
    return "\n".join(parts) + "\n"


def _coverage(coverage: Coverage, operation: str, dtype: str) -> str:
    verified, emulated, total = coverage.count(operation, dtype)
    return f"{verified}/{total}" + (f" ({emulated} emulated only)" if emulated else "") if total else ""


def _cell(cell) -> str:
    if cell is None:
        return ""
    total = cell.passed + len(cell.failed)
    shown = f"{cell.passed}/{total}" if total else f"skipped {len(cell.skipped)}"
    return shown + (f" ({cell.worst[0]:.0%})" if cell.worst is not None else "")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(value.replace("|", "\\|") for value in row) + " |" for row in rows]
