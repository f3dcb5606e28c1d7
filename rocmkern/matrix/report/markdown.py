"""The summary as Markdown, for a README or a pull request."""

from __future__ import annotations

from rocmkern.matrix.report.summary import Summary, counts, dtypes_of, ratios, roof_share, si


def text(summary: Summary) -> str:
    """Markdown tables: runs, support, accuracy, speed, and what never ran on a card."""
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
        "Passed of all cases that ran; the worst share of the error bound in parentheses.",
        "",
    ]
    dtypes = dtypes_of(summary)
    rows = []
    for operation in summary.operations:
        for dtype in dtypes:
            cells = [summary.cells.get((operation, dtype, place)) for place in summary.places]
            if any(cells):
                rows.append((operation, dtype, *(_cell(cell) for cell in cells)))
    parts += _table(("operation", "dtype", *(place.title for place in summary.places)), rows)
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
                    "" if (share := roof_share(result.speed)) is None else f"{share:.0%}",
                    ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios(result.speed).items()),
                )
                for place, result in summary.timed
                if result.speed is not None
            ],
        )
    missing = sum(map(len, summary.unverified.values()))
    parts += ["", "## Unverified", "", f"{missing} cases have not passed on a graphics card."]
    if missing:
        parts += [""] + _table(
            ("operation", "cases"), [(name, str(len(cases))) for name, cases in summary.unverified.items()]
        )
    return "\n".join(parts) + "\n"


def _cell(cell) -> str:
    if cell is None:
        return ""
    total = cell.passed + len(cell.failed)
    shown = f"{cell.passed}/{total}" if total else f"skipped {len(cell.skipped)}"
    return shown + (f" ({cell.worst[0]:.0%})" if cell.worst is not None else "")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(value.replace("|", "\\|") for value in row) + " |" for row in rows]
