"""Files of results, and the page that is made from them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest

from rocmkern import cli
from rocmkern.matrix import MatrixError, expand, loads
from rocmkern.matrix.report import page, summarise, text
from rocmkern.matrix.report.summary import roof_share, si
from rocmkern.matrix.results import (
    Environment,
    MeasuredDevice,
    Run,
    device_of,
    environment_of,
    labels_of,
    read,
    result_of,
    write,
)

TABLE = """\
version: 1
registry: rocmkern.ops.catalog
groups:
  plain:
    why: an attention
    operation: flash_attention
    rows:
      - {shape: {batch: 1, heads: 2, seq_q: 4, head_dim: 80}, features: {causal: true}, dtypes: [f32, bf16]}
      - {category: benchmark, axes: {seq_q: [512, 1024]}, shape: {batch: 1, heads: 2, head_dim: 64}, peers: [torch]}
"""
CPU = MeasuredDevice("cpu-avx2", "A processor, 2 cores")
CARD = MeasuredDevice("gfx1100", "AMD Radeon RX 7900 XT")
H200 = MeasuredDevice("sm_90", "NVIDIA H200")
EMULATED = replace(CARD, name="an emulator", emulated=True)


def measured(share=0.25):
    return {"outputs": [{"output": "out", "error": share * 1e-3, "bound": 1e-3, "share": share, "parts": "2 * e"}]}


def timed(flops):
    return {
        "speed": {
            "cpu_s": 2e-3,
            "wall_s": 1e-3,
            "flop_per_s": flops,
            "byte_per_s": 1e9,
            "roof": {"flop_per_s": 4e9, "byte_per_s": 4e9},
            "peers": {"torch": {"ratio": 1.25}, "other": {"unavailable": "not installed"}},
        }
    }


@pytest.fixture
def cases():
    return expand(loads(TABLE))


@pytest.fixture
def run(cases):
    """``run({"hip": device}, {(case number, target): (outcome, reason, record)}, time=...)``."""

    def make(devices, outcomes, time="2026-01-01T00:00:00+00:00", label="a machine"):
        results = [result_of(cases[n], target, *facts) for (n, target), facts in outcomes.items()]
        place = Environment(label, time, "Linux x86_64", "3.12.1", {"numpy": "2.4.0"}, devices)
        return Run(place, results, labels_of(cases))

    return make


@pytest.fixture
def mixed(run):
    """A processor, and a card that passes one case, fails one, and skips one."""
    return run(
        {"cpu": CPU, "hip": CARD},
        {
            (0, "cpu"): ("passed", "", measured(0.5)),
            (1, "cpu"): ("passed", "", measured()),
            (0, "hip"): ("failed", "check parity </script> failed", {}),
            (1, "hip"): ("passed", "", measured()),
            (2, "cpu"): ("passed", "", timed(1e9)),
            (3, "cpu"): ("passed", "", timed(2e9)),
        },
    )


def test_a_file_gives_back_what_was_written(mixed, tmp_path):
    write(tmp_path / "run.json", mixed)
    assert read(tmp_path / "run.json") == mixed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("[]", "has no format; allowed: 1"),
        ('{"format": 2}', "has the format 2; allowed: 1"),
        ('{"format": true}', "has the format True; allowed: 1"),
        ('{"format": 1, "environment": {}}', "environment.label: field required; and 7 more mistakes"),
        ('{"format": 1, "environment": [], "results": 3}', r"environment: must be a mapping; got \[\]; and 2 more"),
    ],
)
def test_another_file_is_refused_by_name(content, message, tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(MatrixError, match=message):
        read(path)
    assert cli.main(["matrix", "report", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_a_missing_file_is_an_error_with_its_name(tmp_path):
    with pytest.raises(MatrixError, match=r"gone\.json: cannot be read"):
        read(tmp_path / "gone.json")


def test_an_environment_says_what_the_targets_are():
    place = environment_of({target: device_of(target, emulated=False) for target in ("python", "cpu")}, "")
    assert place.devices["cpu"].arch.startswith("cpu-") and "cores" in place.devices["cpu"].name
    assert place.label and place.versions["numpy"] and not place.devices["cpu"].emulated
    assert environment_of({}, "mine").label == "mine"


def test_the_latest_run_counts(run):
    old = run({"cpu": CPU}, {(0, "cpu"): ("failed", "wrong", {})}, time="2026-01-01T00:00:00+00:00")
    new = run({"cpu": CPU}, {(0, "cpu"): ("passed", "", measured())}, time="2026-02-01T00:00:00+00:00")
    for runs in ([old, new], [new, old]):
        summary = summarise(runs)
        (cell,) = summary.cells.values()
        assert (cell.passed, cell.failed) == (1, []) and len(summary.places) == 1


def unverified(runs):
    """``{target: {operation: {why not: cases}}}``."""
    return {coverage.target: coverage.unverified() for coverage in summarise(runs).coverage}


def test_a_case_is_verified_for_a_target_where_it_passed_on_a_card_of_it(run, mixed, cases):
    first, second = (case.id for case in cases[:2])
    never = {"flash_attention": {"never run": [first, second]}}
    assert unverified([mixed]) == {"hip": {"flash_attention": {"failed on gfx1100": [first]}}, "cuda": never}
    emulated = run({"hip": EMULATED}, {(n, "hip"): ("passed", "", measured()) for n in (0, 1)})
    only = {"flash_attention": {"emulated only (gfx1100)": [first, second]}}
    assert unverified([emulated]) == {"hip": only, "cuda": never}
    assert unverified([mixed, emulated])["hip"] == {"flash_attention": {"failed on gfx1100": [first]}}
    # A run on another vendor's card says nothing about AMD's.
    h200 = run({"cuda": H200}, {(n, "cuda"): ("passed", "", measured()) for n in (0, 1)})
    assert unverified([emulated, h200]) == {"hip": only, "cuda": {}}
    hip, cuda = summarise([emulated, h200]).coverage
    assert hip.count() == (0, 2, 2) and cuda.count("flash_attention", "bf16") == (1, 0, 1)


def test_a_failure_in_an_emulator_and_a_row_for_another_target_are_told_apart(run, cases):
    broken = run({"hip": EMULATED}, {(0, "hip"): ("failed", "wrong", {}), (1, "hip"): ("skipped", "not for hip", {})})
    summary = summarise([broken])
    assert unverified([broken])["hip"] == {"flash_attention": {"failed in an emulator (gfx1100)": [cases[0].id]}}
    assert summary.coverage[0].count() == (0, 0, 1) and summary.coverage[1].count() == (0, 0, 2)


def test_the_page_says_what_is_not_verified_on_an_amd_card(run):
    emulated = run({"hip": EMULATED}, {(n, "hip"): ("passed", "", measured()) for n in (0, 1)})
    h200 = run({"cuda": H200}, {(n, "cuda"): ("passed", "", measured()) for n in (0, 1)})
    html, markdown = page(summarise([emulated, h200])), text(summarise([emulated, h200]))
    assert "On an AMD card: 0 of 2 cases passed, 2 more in an emulator only. On an NVIDIA card: 2 of 2 " in html
    assert '<td class="skipped">0/2<small>2 emulated only</small></td><td class="passed">2/2</td>' in html
    assert "hip: not verified on an AMD card" in html
    for form in (html, markdown):
        assert "2 cases have not passed on an AMD card: 2 emulated only (gfx1100)." in form
        assert "0 cases have not passed on an NVIDIA card." in form
    assert "| flash_attention | bf16 | 1/1 (25%) | 1/1 (25%) | 0/1 (1 emulated only) | 1/1 |" in markdown


def test_results_of_a_target_without_a_device_are_not_lost(run):
    summary = summarise([run({"cpu": CPU}, {(0, "hip"): ("failed", "wrong", {})})])
    assert [result.outcome for _, result in summary.everything] == ["failed"]
    assert "a device that the file does not name" in page(summary)
    assert summarise([run({"cpu": CPU}, {(0, "hip"): ("skipped", "no GPU", {})})]).everything == ()


def test_markdown_has_support_accuracy_and_speed(mixed):
    lines = text(summarise([mixed])).splitlines()
    assert "| flash_attention | f32 | 1/1 (50%) | 0/1 | 0/1 | 0/1 |" in lines
    assert "| flash_attention | bf16 | 1/1 (25%) | 1/1 (25%) | 1/1 | 0/1 |" in lines
    (line,) = [line for line in lines if "k512" in line or "s512" in line]
    assert line.endswith("| cpu-avx2 | 1.000 | 1 GFLOP/s | 1 GB/s | 25% arithmetic | torch 1.25 |")
    assert "hip: 1 cases have not passed on an AMD card: 1 failed on gfx1100." in lines


@pytest.mark.parametrize(
    ("roof", "share", "of"),
    [
        ({}, "", ""),
        ({"flop_per_s": 4e9, "byte_per_s": 2e9}, "50%", "memory"),
        ({"flop_per_s": 1.25e9, "byte_per_s": 2e9}, "80%", "arithmetic"),
        ({"flop_per_s": 1.25e9, "byte_per_s": 0.5e9}, "80%", "arithmetic; data in caches"),
        ({"no_peak": "no peak of bf16 is known", "byte_per_s": 4e9}, "25%", "memory; no peak of bf16 is known"),
        ({"byte_per_s": 0.5e9}, "", "data in caches; no matrix peak was measured"),
        ({"flop_per_s": 0.8e9, "byte_per_s": 4e9}, "125%", "arithmetic"),
    ],
)
def test_the_share_of_the_roof_says_of_which(roof, share, of):
    found = roof_share({"flop_per_s": 1e9, "byte_per_s": 1e9, "roof": roof})
    assert (found.text(), found.of) == (share, of)


def test_the_best_roof_of_a_run_counts_for_all_its_rows(run):
    rows = {(2, "cpu"): ("passed", "", timed(5e9)), (3, "cpu"): ("passed", "", timed(5e9))}
    rows[3, "cpu"][2]["speed"]["roof"] = {"flop_per_s": 1e10, "byte_per_s": 1e9}
    shares = [roof_share(result.speed).share for _, result in summarise([run({"cpu": CPU}, rows)]).timed]
    assert shares == [0.5, 0.5], "the first row alone would have 125 %"
    html = page(summarise([run({"cpu": CPU}, rows)]))
    assert "Above 100 %" in html and "roof of cpu-avx2 f32" in html and "<small>arithmetic</small>" in html


class _Page(HTMLParser):
    """Open elements, and the text of the script elements by id."""

    def __init__(self, html):
        super().__init__()
        self.open, self.scripts, self.links = [], {}, []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.links += [values[name] for name in ("src", "href") if values.get(name)]
        if tag not in ("meta", "link", "input", "br", "rect", "line", "polyline", "circle"):
            self.open.append((tag, values.get("id")))

    def handle_endtag(self, tag):
        if tag not in ("rect", "line", "polyline", "circle"):
            assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            self.scripts[self.open[-1][1]] = self.scripts.get(self.open[-1][1], "") + data


def test_the_page_is_well_formed_and_needs_no_network(mixed):
    html = page(summarise([mixed]))
    parsed = _Page(html)
    assert parsed.open == []
    assert all(link.startswith(("#", "data:")) for link in parsed.links)
    assert not re.search(r"https?://|@import|url\(", html)
    records = json.loads(parsed.scripts["results"])
    assert len(records) == 6 and any("</script>" in record["reason"] for record in records)


def test_the_table_of_support_has_a_head_for_each_cell_of_a_row(mixed):
    table = page(summarise([mixed])).partition("<table>")[2].partition("</table>")[0]
    heads = re.findall("<th>(.*?)</th>", table)
    assert heads == [
        "operation",
        *(f"on {a} card<br><small>verified</small>" for a in ("an AMD", "an NVIDIA")),
        *(f"{place}<br><small>{dtype}</small>" for place in ("cpu-avx2", "hip gfx1100") for dtype in ("f32", "bf16")),
    ]
    rows = table.partition("<tbody>")[2].partition("</tbody>")[0].split("</tr>")[:-1]
    assert [row.count("<td") for row in rows] == [len(heads)]


def test_the_page_shows_plots_of_what_was_timed(mixed):
    html = page(summarise([mixed]))
    assert html.count("<svg") == 3 and "roof" in html and "right of the line the kernel is faster" in html
    nothing = replace(mixed, results=[result for result in mixed.results if result.speed is None])
    assert "<svg" not in page(summarise([nothing]))


def test_the_search_knows_dimensions_features_and_architectures(mixed):
    records = json.loads(_Page(page(summarise([mixed]))).scripts["results"])

    def found(query):
        return [r for r in records if all(word in r["words"].split() for word in query.lower().split())]

    (record,) = found("bf16 causal d=80 gfx1100")
    assert record["outcome"] == "passed" and record["exact"] == "0.00025 / 0.001"
    assert found("bf16 causal head_dim=80 gfx1100") == found("bf16 causal d80 hip") == [record]
    assert found("bf16 causal d=8 gfx1100") == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""), (0.0, "0 X"), (12.5, "12.5 X"), (3e6, "3 MX"), (1.8698e14, "187 TX"), (4.2e15, "4200 TX"),
        # A prefix begins with its number: of the number before, there are 1000 of the smaller one.
        (1e6, "1 MX"), (1e9, "1 GX"), (1e12, "1 TX"), (999_999.0, "1e+06 X"), (999_999_999.5, "1e+03 MX"),
        (1e12 - 0.5, "1e+03 GX"), (9.99e14, "999 TX"), (1e15, "1000 TX"),
    ],
)  # fmt: skip
def test_rates_are_shown_with_prefixes(value, shown):
    assert si(value, "X") == shown


def test_the_command_writes_both_forms(mixed, tmp_path, capsys):
    write(tmp_path / "run.json", mixed)
    words = ["--html", str(tmp_path / "page.html"), "--markdown", str(tmp_path / "page.md")]
    assert cli.main(["matrix", "report", str(tmp_path / "run.json"), *words]) == 0
    assert "6 results of 1 runs" in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert cli.main(["matrix", "report", str(tmp_path / "run.json")]) == 0
    assert capsys.readouterr().out == (tmp_path / "page.md").read_text()


def test_a_page_that_cannot_be_written_is_an_error_with_its_name(mixed, tmp_path, capsys):
    write(tmp_path / "run.json", mixed)
    assert cli.main(["matrix", "report", str(tmp_path / "run.json"), "--html", str(tmp_path / "gone" / "x.html")]) == 1
    assert "x.html: cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.fixture
def browse(mixed, tmp_path):
    """``browse(query)``: the note above the results, and the cells of the answers, as Chromium shows them."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium to open the page in")
    path = tmp_path / "page.html"
    path.write_text(page(summarise([mixed])))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    command = [browser, *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]

    def run(query):
        address = f"{path.as_uri()}#{urlencode({'q': query})}"
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "CONSOLE" not in done.stderr
        found = re.search(
            r'<section id="found"[^>]*><h2>Found</h2><p>(.*?)</p>.*?<tbody>(.*?)</tbody>', done.stdout, re.S
        )
        hits = re.search(r'<table id="hits">.*?<tbody>(.*?)</tbody>', done.stdout, re.S)[1]
        return unescape(found[1]), re.findall(r"<td[^>]*>([^<]*)</td>", found[2]), hits

    return run


ANSWER = [
    "hip gfx1100, AMD Radeon RX 7900 XT", "yes: 1 of 1 pass", "error 0.00025, bound 0.001 (25 %)",
    "not timed in these runs",
]  # fmt: skip
ONE = "1 results: 1 passed, 0 failed, 0 skipped"


def test_a_browser_finds_the_answer_within_one_search(browse):
    note, answer, hits = browse("bf16 causal d=80 gfx1100")
    assert (note, answer) == (ONE, ANSWER)
    assert '<td class="number">0.00025 / 0.001</td>' in hits


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        (
            "does bf16 causal attention with D=80 work on gfx1100, how exact, how fast",
            "; no result has: does, with, work, on, how, exact, fast",
        ),
        ("Bfloat16 causal head_dim=80 gfx1100?", ""),
        ("BFLOAT16 CAUSAL D = 80, AMD", ""),
        ("bf16 d80 gfx1100 splendid", "; no result has: splendid"),
    ],
)
def test_a_browser_answers_questions_as_they_are_asked(browse, query, unknown):
    note, answer, _ = browse(query)
    assert (note, answer) == (ONE + unknown, ANSWER)


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("bf16 causal with D=96", "nothing fits; no result has: d=96 (there are d=80, d=64), with"),
        ("bf16 gfx942", "nothing fits; no result has: gfx942"),
        ("how fast is it", "nothing fits; no result has: how, fast, is, it"),
        ("half causal gfx1100", "nothing fits; no result has: half"),
        (
            "bf16 d=64",
            "nothing fits all of: bf16, d=64 (without one of bf16, d=64 something does)",
        ),
    ],
)
def test_a_browser_says_why_nothing_fits(browse, query, note):
    assert browse(query)[:2] == (note, [])
