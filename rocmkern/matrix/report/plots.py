"""Plots as SVG text: bars of ratios, lines over the sequence length, the roofline. No script, no network."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from html import escape

from rocmkern.matrix.report.summary import Summary, ratios

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 300, 64, 40, 16
COLOURS = ("#2a6fdb", "#d9622b", "#2b9a66", "#8a4fc7", "#b8860b", "#c2185b", "#00838f", "#5d4037")


def ratio_bars(summary: Summary) -> str:
    """One bar for each timed case and peer: the peer's time over the kernel's, with a line at 1."""
    bars = [
        (f"{result.case} on {place.title}, against {name}", ratio)
        for place, result in summary.timed
        if result.speed is not None
        for name, ratio in ratios(result.speed).items()
    ]
    if not bars:
        return ""
    step, largest = 20, max(1.0, *(ratio for _, ratio in bars))
    scale, start = 300 / largest, 400
    parts = []
    for index, (label, ratio) in enumerate(bars):
        y = index * step + 4
        colour = "#2b9a66" if ratio >= 1 else "#c0392b"
        parts.append(
            f'<text x="{start - 8}" y="{y + 11}" text-anchor="end">{escape(_shortened(label))}</text>'
            f'<rect x="{start}" y="{y}" width="{ratio * scale:.1f}" height="14" fill="{colour}"/>'
            f'<text x="{start + ratio * scale + 5:.1f}" y="{y + 11}">{ratio:.2f}</text>'
        )
    height = len(bars) * step + 8
    parts.append(f'<line x1="{start + scale:.1f}" x2="{start + scale:.1f}" y1="0" y2="{height}" class="rule"/>')
    return _svg(WIDTH + 40, height, parts, "ratio of the peer's time to the kernel's, for each benchmark row")


def speed_over_length(summary: Summary) -> str:
    """Lines of FLOP/s over the sequence length, one for each place and otherwise equal cases."""
    series: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for place, result in summary.timed:
        speed, length = result.speed or {}, result.dims.get("seq_k", result.dims.get("seq_q"))
        if length and speed.get("flop_per_s"):
            others = ", ".join(f"{k} {v}" for k, v in result.dims.items() if k not in ("seq_q", "seq_k"))
            features = ", ".join(f"{k} {v}" for k, v in result.features.items())
            key = "; ".join(x for x in (result.operation, result.dtype, others, features, place.title) if x)
            series[key].append((float(length), speed["flop_per_s"] / 1e9))
    lines = {name: sorted(set(points)) for name, points in series.items() if len({x for x, _ in points}) > 1}
    return _chart(lines, "keys", "GFLOP/s", joined=True)


def roofline(summary: Summary) -> str:
    """Measured speed over arithmetic intensity, with the roofs that were measured in the same run."""
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    roofs: dict[str, tuple[float, float]] = {}
    for place, result in summary.timed:
        speed = result.speed or {}
        if speed.get("flop_per_s") and speed.get("byte_per_s"):
            points[f"{place.title}: {result.operation}"].append(
                (speed["flop_per_s"] / speed["byte_per_s"], speed["flop_per_s"] / 1e9)
            )
            if speed.get("roof", {}).get("flop_per_s") and speed["roof"].get("byte_per_s"):
                roofs[place.title] = speed["roof"]["flop_per_s"] / 1e9, speed["roof"]["byte_per_s"] / 1e9
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, (peak, bandwidth) in roofs.items():
        knee = peak / bandwidth
        lines[f"{name}: roof"] = [(knee / 256, bandwidth * knee / 256), (knee, peak), (knee * 64, peak)]
    return _chart(dict(points), "FLOP per byte", "GFLOP/s", joined=False, rules=lines)


def _chart(
    series: dict[str, list[tuple[float, float]]],
    x_name: str,
    y_name: str,
    joined: bool,
    rules: dict[str, list[tuple[float, float]]] | None = None,
) -> str:
    """Points or lines on logarithmic axes, with a legend below."""
    rules = rules or {}
    every = [point for points in (*series.values(), *rules.values()) for point in points if min(point) > 0]
    if not series or not every:
        return ""
    x_of = _axis([x for x, _ in every], LEFT, WIDTH - 16)
    y_of = _axis([y for _, y in every], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_name)}</text>',
        f'<text x="4" y="{TOP - 4}">{escape(y_name)}</text>',
    ]
    for value in _ticks([x for x, _ in every]):
        x = x_of(value)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="grid"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{_number(value)}</text>'
        )
    for value in _ticks([y for _, y in every]):
        y = y_of(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
        )
    for points in rules.values():
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" class="rule" fill="none"/>')
    for index, (name, points) in enumerate([*series.items(), *((name, []) for name in rules)]):
        colour = COLOURS[index % len(COLOURS)] if points else "#555"
        if joined:
            path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in points:
            title = f"<title>{escape(name)}: {x:g} {escape(x_name)}, {y:.4g} {escape(y_name)}</title>"
            parts.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4" fill="{colour}">{title}</circle>')
        top = HEIGHT + 14 + index * 17
        parts.append(f'<rect x="{LEFT}" y="{top - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 16}" y="{top}">{escape(name)}</text>')
    return _svg(WIDTH, HEIGHT + 12 + 17 * (len(series) + len(rules)), parts, f"{y_name} over {x_name}")


def _axis(values: Sequence[float], first: float, last: float):
    low, high = math.log(min(values)), math.log(max(values))
    margin = 0.05 * (high - low) or 0.5
    low, high = low - margin, high + margin
    return lambda value: first + (math.log(value) - low) / (high - low) * (last - first)


def _ticks(values: Sequence[float]) -> list[float]:
    """Powers of two within the values, at most 8 of them."""
    first, last = math.ceil(math.log2(min(values)) - 0.05), math.floor(math.log2(max(values)) + 0.05)
    step = max(1, -(-(last - first + 1) // 8))
    return [2.0**exponent for exponent in range(first, last + 1, step)]


def _number(value: float) -> str:
    return f"{value:g}" if value < 10000 else f"{value:.0f}"


def _shortened(label: str, limit: int = 62) -> str:
    return label if len(label) <= limit else label[: limit - 1] + "…"


def _svg(width: int, height: int, parts: Sequence[str], description: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(description, quote=True)}">{"".join(parts)}</svg>'
    )
