"""Files of results, and the page that is made from them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from rocmkern import cli
from rocmkern.matrix import MatrixError, expand, loads
from rocmkern.matrix.report import page, summarise, text
from rocmkern.matrix.report.summary import si
from rocmkern.matrix.results import (
    Device,
    Environment,
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
registry: rocmkern.matrix.operations
groups:
  plain:
    why: an attention
    operation: flash_attention
    rows:
      - {shape: {batch: 1, heads: 2, seq_q: 4, head_dim: 80}, features: {causal: true}, dtypes: [f32, bf16]}
      - {category: benchmark, axes: {seq_q: [512, 1024]}, shape: {batch: 1, heads: 2, head_dim: 64}, peers: [torch]}
"""
CPU = Device("cpu-avx2", "A processor, 2 cores")
CARD = Device("gfx1100", "AMD Radeon RX 7900 XT")
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


def test_cases_that_no_card_passed_are_unverified(run, mixed, cases):
    assert summarise([mixed]).unverified == {"flash_attention": [cases[0].id]}
    emulated = run({"hip": EMULATED}, {(n, "hip"): ("passed", "", measured()) for n in (0, 1)})
    summary = summarise([emulated])
    assert summary.unverified == {"flash_attention": [cases[0].id, cases[1].id]}
    assert summarise([mixed, emulated]).unverified == {"flash_attention": [cases[0].id]}


def test_markdown_has_support_accuracy_and_speed(mixed):
    lines = text(summarise([mixed])).splitlines()
    assert "| flash_attention | f32 | 1/1 (50%) | 0/1 |" in lines
    assert "| flash_attention | bf16 | 1/1 (25%) | 1/1 (25%) |" in lines
    (line,) = [line for line in lines if "k512" in line or "s512" in line]
    assert line.endswith("| cpu-avx2 | 1.000 | 1 GFLOP/s | 1 GB/s | 25% | torch 1.25 |")
    assert "1 cases have not passed on a graphics card." in lines


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
    [(None, ""), (0.0, "0 X"), (12.5, "12.5 X"), (3e6, "3 MX"), (1.8698e14, "187 TX"), (4.2e15, "4200 TX")],
)
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


def test_a_browser_finds_the_answer_within_one_search(mixed, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium to open the page in")
    path = tmp_path / "page.html"
    path.write_text(page(summarise([mixed])))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    command = [browser, *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, f"{path.as_uri()}#q=bf16+causal+d%3D80+gfx1100"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "CONSOLE" not in done.stderr
    assert "1 results: 1 passed, 0 failed, 0 skipped" in done.stdout
    assert '<td class="number">0.00025 / 0.001</td>' in done.stdout
    answer = re.search(r'<table id="answer">.*?<tbody>(.*?)</tbody>', done.stdout, re.DOTALL)[1]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", answer) == [
        "hip gfx1100, AMD Radeon RX 7900 XT", "yes: 1 of 1 pass", "error 0.00025, bound 0.001 (25 %)",
        "not timed in these runs",
    ]  # fmt: skip
