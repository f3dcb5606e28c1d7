"""Plots as SVG text: bars of ratios, lines over the sequence length, the roofline. No script, no network."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from html import escape

from rocmkern.matrix.report.summary import Summary, ratios, si

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 300, 64, 40, 16
#: Readable on light and on dark ground; after all of them the marks change their shape.
COLOURS = ("#3b82f6", "#e0692e", "#2b9a66", "#a066e0", "#b8900b", "#d6336c", "#0a95a3", "#8d6e63")


def ratio_bars(summary: Summary) -> str:
    """One bar for each timed case and peer, by operation: the peer's time over the kernel's, with a line at 1."""
    several = len({place for place, _ in summary.timed}) > 1
    bars: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for place, result in summary.timed:
        for name, ratio in ratios(result.speed or {}).items():
            label = result.case.removeprefix(f"{result.operation}-{result.group}-").replace("-", " ")
            bars[result.operation].append((f"{label}, {name}{f', {place.title}' if several else ''}", ratio))
    if not bars:
        return ""
    step, largest = 19, max(1.0, *(ratio for each in bars.values() for _, ratio in each))
    scale, start = 290 / largest, 430
    parts, y = [], 0
    for operation, each in bars.items():
        parts.append(f'<text x="0" y="{y + 15}" class="head">{escape(operation)}</text>')
        y += step + 3
        for label, ratio in each:
            parts.append(
                f'<text x="{start - 8}" y="{y + 11}" text-anchor="end">{escape(_shortened(label))}</text>'
                f'<rect x="{start}" y="{y}" width="{ratio * scale:.1f}" height="13" rx="2" '
                f'class="{"faster" if round(ratio, 2) >= 1 else "slower"}"/>'
                f'<text x="{start + ratio * scale + 5:.1f}" y="{y + 11}">{ratio:.2f}</text>'
            )
            y += step
        y += 6
    parts.append(f'<line x1="{start + scale:.1f}" x2="{start + scale:.1f}" y1="0" y2="{y}" class="rule"/>')
    return _svg(WIDTH + 50, y, parts, "ratio of the peer's time to the kernel's, for each benchmark row")


def speed_over_length(summary: Summary) -> str:
    """Lines of FLOP/s over the sequence length, one for each place and otherwise equal cases."""
    series: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for place, result in summary.timed:
        speed, length = result.speed or {}, result.dims.get("seq_k", result.dims.get("seq_q"))
        if isinstance(length, int) and length and speed.get("flop_per_s"):
            others = ", ".join(f"{k} {v}" for k, v in result.dims.items() if k not in ("seq_q", "seq_k"))
            features = ", ".join(f"{k} {v}" for k, v in result.features.items())
            key = "; ".join(x for x in (result.operation, result.dtype, others, features, place.title) if x)
            series[key].append((float(length), speed["flop_per_s"]))
    lines = {name: sorted(set(points)) for name, points in series.items() if len({x for x, _ in points}) > 1}
    return chart(lines, "keys", "FLOP/s", joined=True)


def roofline(summary: Summary) -> str:
    """Measured speed over arithmetic intensity, with the roofs that were measured in the same run."""
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    roofs: dict[tuple[float, float], dict[str, None]] = {}
    for place, result in summary.timed:
        speed = result.speed or {}
        if speed.get("flop_per_s") and speed.get("byte_per_s"):
            points[f"{place.title}: {result.operation}"].append(
                (speed["flop_per_s"] / speed["byte_per_s"], speed["flop_per_s"])
            )
            roof = speed.get("roof", {})
            if roof.get("flop_per_s") and roof.get("byte_per_s"):
                names = roofs.setdefault((roof["flop_per_s"], roof["byte_per_s"]), {})
                names[f"{place.title} {result.dtype}"] = None
    lines: dict[str, list[tuple[float, float]]] = {}
    for (peak, bandwidth), names in roofs.items():
        knee = peak / bandwidth
        lines[f"roof of {', '.join(names)}"] = [(knee / 256, bandwidth * knee / 256), (knee, peak), (knee * 64, peak)]
    return chart(dict(points), "FLOP per byte", "FLOP/s", joined=False, rules=lines)


def chart(
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
    for value in _decimal_ticks([y for _, y in every]):
        y = y_of(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{si(value, "")}</text>'
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
            title = f"<title>{escape(name)}: {x:g} {escape(x_name)}, {si(y, y_name)}</title>"
            parts.append(_mark(x_of(x), y_of(y), index, colour, title))
        top = HEIGHT + 14 + index * 17
        if points:
            parts.append(_mark(LEFT + 5, top - 4, index, colour, ""))
        else:
            parts.append(f'<line x1="{LEFT}" x2="{LEFT + 11}" y1="{top - 4}" y2="{top - 4}" class="rule"/>')
        parts.append(f'<text x="{LEFT + 16}" y="{top}">{escape(name)}</text>')
    return _svg(WIDTH, HEIGHT + 12 + 17 * (len(series) + len(rules)), parts, f"{y_name} over {x_name}")


def _mark(x: float, y: float, index: int, colour: str, title: str) -> str:
    """A point of a series: a circle, then a square, then a diamond."""
    shape = index // len(COLOURS)
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">{title}</circle>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape > 1 else ""
    return f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{colour}"{turn}>{title}</rect>'


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


def _decimal_ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten within the values, or the powers alone where those are too many."""
    low, high = min(values) * 0.95, max(values) * 1.05
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 5), (1,)):
        ticks = [m * 10.0**e for e in exponents for m in multiples if low <= m * 10.0**e <= high]
        if len(ticks) <= 8:
            break
    return ticks


def _number(value: float) -> str:
    return f"{value:g}" if value < 10000 else f"{value:.0f}"


def _shortened(label: str, limit: int = 70) -> str:
    return label if len(label) <= limit else label[: limit - 1] + "…"


def _svg(width: int, height: int, parts: Sequence[str], description: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(description, quote=True)}">{"".join(parts)}</svg>'
    )
