"""Plots of a report: where points and lines stand on logarithmic axes, how series differ, which numbers are shown."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from rocmkern.matrix.report import plots
from rocmkern.matrix.report.plots import BOTTOM, COLOURS, HEIGHT, LEFT, TOP, WIDTH

SERIES = {"ours": [(1.0, 2e9), (8.0, 16e9), (64.0, 2e12)], "theirs": [(2.0, 4e10)]}


def chart(series=SERIES, joined=False, rules=None):
    return ElementTree.fromstring(plots.chart(series, "FLOP per byte", "FLOP/s", joined, rules))


def circles(svg):
    """Centres of the points by what is said of them; those of the legend are said nothing of."""
    return {
        circle[0].text: (float(circle.get("cx")), float(circle.get("cy")))
        for circle in svg.iter("circle")
        if len(circle)
    }


def test_points_stand_where_their_logarithms_are():
    found = circles(chart())
    (x1, y1), (x8, y8), (x64, y64) = (found[name] for name in found if name.startswith("ours"))
    assert list(found)[1] == "ours: 8 FLOP per byte, 16 GFLOP/s"
    assert x8 - x1 == pytest.approx(x64 - x8, abs=0.2), "from 1 to 8 it is as far as from 8 to 64"
    assert (y1 - y8) / (y1 - y64) == pytest.approx(math.log(8) / math.log(1000), abs=0.01)
    assert LEFT < x1 < x8 < x64 < WIDTH - 16 and TOP < y64 < y8 < y1 < HEIGHT - BOTTOM
    # A twentieth of the range is left on either side.
    assert x1 - LEFT == pytest.approx((WIDTH - 16 - LEFT) * 0.05 / 1.1, abs=0.2)
    assert y64 - TOP == pytest.approx((HEIGHT - BOTTOM - TOP) * 0.05 / 1.1, abs=0.2)


def test_a_grid_line_stands_where_its_number_says():
    svg, points = chart(), circles(chart())
    texts = {text.text: text for text in svg.iter("text")}
    assert float(texts["8"].get("x")) == points["ours: 8 FLOP per byte, 16 GFLOP/s"][0]
    assert [name for name in ("1", "2", "4", "8", "16", "32", "64") if name in texts] == list("1248") + [
        "16",
        "32",
        "64",
    ]
    ours = points["ours: 1 FLOP per byte, 2 GFLOP/s"][1]
    assert float(texts["10 G"].get("y")) - 4 < ours and "FLOP/s" in texts and "FLOP per byte" in texts


def test_a_single_point_has_axes_too():
    (point,) = circles(chart({"one": [(4.0, 4.0)]})).values()
    assert point[0] == pytest.approx((LEFT + WIDTH - 16) / 2, abs=0.1)
    assert point[1] == pytest.approx((TOP + HEIGHT - BOTTOM) / 2, abs=0.1)


@pytest.mark.parametrize("series", [{}, {"none": []}, {"nothing": [(0.0, 1.0)]}])
def test_nothing_to_show_is_no_chart(series):
    assert plots.chart(series, "x", "y", False) == ""


def test_lines_join_the_points_of_a_series_and_rules_have_no_marks():
    rules = {"roof": [(1.0, 1e9), (64.0, 4e12)]}
    alone, joined = chart(rules=rules), chart(rules=rules, joined=True)
    assert len(list(alone.iter("polyline"))) == 1
    lines = [line for line in joined.iter("polyline") if line.get("stroke")]
    places = [circles(joined)[name] for name in circles(joined) if name.startswith("ours")]
    assert lines[0].get("points") == " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    legend = [text.text for text in alone.iter("text") if text.get("x") == str(LEFT + 16)]
    assert legend == ["ours", "theirs", "roof"]
    assert len([line for line in alone.iter("line") if line.get("class") == "rule"]) == 1
    assert int(alone.get("height")) == HEIGHT + 12 + 17 * 3


def test_series_differ_by_colour_then_by_shape():
    series = {f"series {n:02}": [(1.0 + n, 2.0)] for n in range(2 * len(COLOURS) + 2)}
    marks = [e for e in chart(series).iter() if e.tag in ("circle", "rect") and len(e)]
    assert [mark[0].text.partition(":")[0] for mark in marks] == list(series)
    shapes = [(mark.tag, "rotate(45 " in mark.get("transform", "")) for mark in marks]
    expected = [("circle", False), ("rect", False), ("rect", True)]
    assert shapes == [expected[n // len(COLOURS)] for n in range(len(series))]
    assert [mark.get("fill") for mark in marks] == [COLOURS[n % len(COLOURS)] for n in range(len(series))]


def test_a_square_stands_around_its_point():
    mark = plots._mark(10.0, 20.0, 2 * len(COLOURS), "red", "")
    assert re.findall(r'"([^"]*)"', mark) == ["6.5", "16.5", "7", "7", "red", "rotate(45 10.0 20.0)"]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1, 8], [1, 2, 4, 8]), ([1.02, 7.9], [1, 2, 4, 8]), ([1.1, 7.5], [2, 4]), ([1, 128], [2**n for n in range(8)]),
        ([1, 256], [1, 4, 16, 64, 256]), ([0.25, 0.5], [0.25, 0.5]),
    ],
)  # fmt: skip
def test_ticks_are_powers_of_two_at_most_8(values, ticks):
    assert plots._ticks(values) == ticks


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1, 10], [1, 2, 5, 10]), ([1.04, 9.6], [1, 2, 5, 10]), ([1.1, 9], [2, 5]), ([1, 1000], [1, 10, 100, 1000]),
        ([3, 300], [5, 10, 20, 50, 100, 200]), ([1, 200], [1, 2, 5, 10, 20, 50, 100, 200]), ([1, 500], [1, 10, 100]),
    ],
)  # fmt: skip
def test_decimal_ticks_are_1_2_and_5_or_powers_of_ten_where_those_are_too_many(values, ticks):
    assert plots._decimal_ticks(values) == pytest.approx(ticks)


def test_numbers_are_short_but_not_in_powers():
    assert [plots._number(value) for value in (0.25, 9999.0, 10000.0, 65536.0)] == ["0.25", "9999", "10000", "65536"]


def test_a_label_of_more_than_70_letters_is_cut():
    assert plots._shortened("x" * 70) == "x" * 70 and plots._shortened("x" * 71) == "x" * 69 + "…"


def result(operation, ratios=None, dims=None, **speed):
    peers = {name: {"ratio": ratio} if ratio else {"unavailable": "-"} for name, ratio in (ratios or {}).items()}
    return SimpleNamespace(
        operation=operation, group="group", case=f"{operation}-group-n4-f32", dtype="f32", dims=dims or {},
        features={"causal": True}, speed=speed | {"peers": peers},
    )  # fmt: skip


class Title(NamedTuple):
    """A place of a report."""

    title: str


def summary(*results, places=("cpu",)):
    return SimpleNamespace(timed=[(Title(place), one) for place in places for one in results])


def test_a_bar_is_as_long_as_its_ratio_and_a_line_stands_at_one():
    rows = [result("softmax", {"torch": 2.0, "numpy": 0.5, "triton": None}), result("scale", {"torch": 1.0})]
    svg = ElementTree.fromstring(plots.ratio_bars(summary(*rows)))
    bars = list(svg.iter("rect"))
    assert [(float(bar.get("width")), bar.get("class")) for bar in bars] == [
        (290.0, "faster"), (72.5, "slower"), (145.0, "faster"),
    ]  # fmt: skip
    (line,) = svg.iter("line")
    assert float(line.get("x1")) == float(line.get("x2")) == float(bars[0].get("x")) + 145.0
    texts = [(text.text, float(text.get("y"))) for text in svg.iter("text")]
    assert [text for text, _ in texts] == [
        "softmax", "n4 f32, torch", "2.00", "n4 f32, numpy", "0.50", "scale", "n4 f32, torch", "1.00",
    ]  # fmt: skip
    places = [y for _, y in texts]
    assert places == sorted(places) and int(svg.get("height")) > places[-1]
    for bar, name, ratio in zip(bars, (1, 3, 6), (2, 4, 7), strict=True):
        assert float(bar.get("y")) + 11 == places[name] == places[ratio], "a bar stands beside its name and its number"
    assert float(list(svg.iter("text"))[2].get("x")) == float(bars[0].get("x")) + 290 + 5


def test_of_several_places_each_bar_says_which():
    svg = plots.ratio_bars(summary(result("softmax", {"torch": 2.0}), places=("cpu", "gfx1100")))
    assert "n4 f32, torch, cpu" in svg and "n4 f32, torch, gfx1100" in svg
    assert plots.ratio_bars(summary(result("softmax", {"torch": None}))) == ""
    small = plots.ratio_bars(summary(result("softmax", {"torch": 0.5})))
    assert 'width="145.0"' in small and 'x1="720.0"' in small, "the scale holds 1"


def test_lines_over_the_length_are_of_calls_that_differ_in_nothing_else():
    rows = [
        result("attention", dims={"heads": 4, "seq_q": 1, "seq_k": n}, flop_per_s=n * 1e6) for n in (256, 64, 128, 64)
    ]
    others = [
        result("attention", dims={"heads": 8, "seq_q": 1, "seq_k": 64}, flop_per_s=1e6),
        result("softmax", dims={"seq_q": 32}, flop_per_s=1e6), result("softmax", dims={"seq_q": 64}, flop_per_s=2e6),
        result("softmax", dims={"seq_q": 0}, flop_per_s=1e6), result("softmax", dims={"seq_q": 128}),
    ]  # fmt: skip
    svg = ElementTree.fromstring(plots.speed_over_length(summary(*rows, *others)))
    titles = [title.text for title in svg.iter("title")]
    assert [title.split(": ")[1] for title in titles] == [
        "64 keys, 64 MFLOP/s", "128 keys, 128 MFLOP/s", "256 keys, 256 MFLOP/s", "32 keys, 1 MFLOP/s",
        "64 keys, 2 MFLOP/s",
    ]  # fmt: skip
    assert titles[0].startswith("attention; f32; heads 4; causal True; cpu: ") and titles[3].startswith("softmax; ")


def test_the_roofline_is_of_what_was_measured():
    roof = {"flop_per_s": 1e12, "byte_per_s": 1e11}
    rows = [
        result("matmul", flop_per_s=8e11, byte_per_s=2e10, roof=roof),
        result("scale", flop_per_s=1e10, byte_per_s=4e10), result("softmax", flop_per_s=1e10),
        result("rope", byte_per_s=1e10, roof={"byte_per_s": 1e11}),
    ]  # fmt: skip
    svg = ElementTree.fromstring(plots.roofline(summary(*rows)))
    assert [title.text for title in svg.iter("title")] == [
        "cpu: matmul: 40 FLOP per byte, 800 GFLOP/s", "cpu: scale: 0.25 FLOP per byte, 10 GFLOP/s",
    ]  # fmt: skip
    (rule,) = (line for line in svg.iter("polyline") if line.get("class") == "rule")
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, point.split(","))) for point in rule.get("points").split())
    assert y1 == y2 < y0 and (x1 - x0) / (x2 - x1) == pytest.approx(8 / 6, abs=0.01), (
        "from 1/256 of the knee to 64 of it"
    )
    assert "roof of cpu f32" in [text.text for text in svg.iter("text")]
