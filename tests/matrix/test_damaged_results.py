"""Damaged files of results: one error that names the file and the place, or a file that everything can be made from."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocmkern import cli
from rocmkern.matrix import MatrixError, expand, loads
from rocmkern.matrix.bounds import judge_bounds
from rocmkern.matrix.regression import compare_runs
from rocmkern.matrix.report import page, summarise, text
from rocmkern.matrix.results import Environment, MeasuredDevice, Run, labels_of, read, result_of, write

TABLE = """\
version: 1
registry: rocmkern.ops.catalog
defaults: {tolerance: {c: 3.0, reason: a wider bound}}
groups:
  plain:
    why: an attention
    operation: flash_attention
    rows:
      - {shape: {batch: 1, heads: 2, seq_q: 4, head_dim: 80}, features: {causal: true, window: [3, null]},
         dtypes: [f32, bf16]}
      - {category: benchmark, axes: {seq_q: [512, 1024]}, shape: {batch: 1, heads: 2, head_dim: 64}, peers: [torch]}
"""
OUTPUT = {"output": "out", "error": 1e-4, "bound": 1e-3, "share": 0.1, "parts": "2 * e", "e": 5e-4, "ulp": 1e-7}
SPEED = {
    "cpu_s": 2e-3, "wall_s": 1e-3, "spread": 0.1, "rounds": 5, "counts": "cpu_s", "samples": [0.2, 0.1, 0.3, 0.4, 0.5],
    "flop_per_s": 1e9, "byte_per_s": 1e9, "roof": {"flop_per_s": 4e9, "byte_per_s": 4e9},
    "peers": {
        "torch": {"cpu_s": 1.0, "wall_s": 1.0, "ratio": 1.2, "wall_ratio": 1.3, "bar": None,
                  "samples": [0.3, 0.2, 0.3, 0.4, 0.5]},
        "other": {"unavailable": "not installed"},
    },
}  # fmt: skip
# What may stand where something else belongs.
VALUES = [
    None, True, False, 0, -1, 1, 0.0, -0.0, 0.5, 1e308, -1e308, 5e-324, 1e-300, float("inf"), float("-inf"),
    float("nan"), 10**9, 10**30, 10**400, 2**63, "", "x", "passed", "cpu", "cpu_s", "wall_s", "2026", "\ud800", "\x00",
    "</script>", "é" * 300, [], {}, [[]], [None], [0, 0, 0, 0, 0], [1, 2], ["a"], {"a": {}}, {"": 1}, [1e308] * 5,
]  # fmt: skip


@pytest.fixture(scope="module")
def document():
    return loads(TABLE)


@pytest.fixture(scope="module")
def sound(document):
    """A run on two targets, one of them timed."""
    cases = expand(document)
    facts = {"outputs": [OUTPUT]}
    results = [result_of(case, target, "passed", "", facts) for case in cases[:2] for target in ("cpu", "hip")]
    results += [result_of(case, "cpu", "passed", "", {"speed": SPEED}) for case in cases[2:]]
    results += [result_of(cases[2], "hip", "failed", "check speed", {}), result_of(cases[3], "hip", "skipped", "none")]
    devices = {
        "cpu": MeasuredDevice("cpu-avx2", "A processor"),
        "hip": MeasuredDevice("gfx1100", "A card", emulated=True),
    }
    place = Environment("a machine", "2026-01-01T00:00:00+00:00", "Linux x86_64", "3.12", {"numpy": "2"}, devices)
    return Run(place, results, labels_of(cases))


@pytest.fixture(scope="module")
def data(sound, tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "run.json"
    write(path, sound)
    return json.loads(path.read_text())


def places(data):
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], (dict, list)):
            yield from places(data[key])


@st.composite
def damage(draw, data):
    """The data with one to three values that are others, gone, wrapped, renamed or moved."""
    data = copy.deepcopy(data)
    for _ in range(draw(st.integers(1, 3))):
        every = list(places(data))
        if not every:
            break
        parent, key = draw(st.sampled_from(every))
        change = draw(st.sampled_from(("value", "value", "value", "gone", "renamed", "wrapped", "elsewhere")))
        if change == "gone":
            del parent[key]
        elif change == "renamed" and isinstance(parent, dict):
            parent[draw(st.sampled_from([key + "s", key[1:], "case", "\ud800"]))] = parent.pop(key)
        elif change == "wrapped":
            parent[key] = draw(st.sampled_from([[parent[key]], {"a": parent[key]}, [parent[key]] * 3]))
        elif change == "elsewhere":
            other, place = draw(st.sampled_from(every))
            parent[key] = copy.deepcopy(other[place]) if place in other or isinstance(place, int) else None
        else:
            parent[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return data


def use(path, document, sound):
    """Read a file and make everything from it; what cannot be done is said in one line that begins with the file."""
    try:
        run = read(path)
    except MatrixError as error:
        assert str(error).startswith(f"{path}: ") and len(str(error).splitlines()) == 1
        return str(error)
    summary = summarise([run, sound])
    records = page(summary).split('id="results">')[1].split("</script>")[0]
    json.loads(records, parse_constant=lambda name: pytest.fail(f"{name} is no JSON of a browser"))
    assert text(summary).encode()
    judge_bounds(document, expand(document), [run])
    for pair in ((run, sound), (sound, run)):
        try:
            assert compare_runs(*pair).lines()
        except MatrixError as error:
            assert "compared" in str(error) or "samples" in str(error)
    return ""


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_a_damaged_file_is_an_error_with_its_place_or_can_be_used(drawn, data, sound, document, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_text(json.dumps(drawn.draw(damage(data))))
    use(path, document, sound)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.data())
def test_a_file_with_broken_bytes_is_an_error_or_can_be_used(drawn, data, sound, document, tmp_path_factory):
    raw = bytearray(json.dumps(data).encode())
    for _ in range(drawn.draw(st.integers(1, 4))):
        at = drawn.draw(st.integers(0, len(raw) - 1))
        raw[at : at + drawn.draw(st.integers(0, 30))] = drawn.draw(st.binary(max_size=6))
    path = tmp_path_factory.getbasetemp() / "broken.json"
    path.write_bytes(bytes(raw))
    use(path, document, sound)


def test_half_of_a_character_is_an_error(data, tmp_path):
    path = tmp_path / "half.json"
    data["environment"]["devices"]["hip"]["arch"] = "\ud800"
    path.write_text(json.dumps(data))
    with pytest.raises(MatrixError, match=r"half of a character: '\\ud800' without its other half"):
        read(path)
    data["environment"]["devices"]["hip"]["arch"] = "\U0001f600"  # JSON writes it as two halves
    path.write_text(json.dumps(data))
    assert read(path).environment.devices["hip"].arch == "\U0001f600"


def test_the_sound_file_can_be_used(data, sound, document, tmp_path):
    (tmp_path / "sound.json").write_text(json.dumps(data))
    assert use(tmp_path / "sound.json", document, sound) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r[0].update(outputs=[{}]), "results[0].outputs[0].output: field required (case '"),
        (lambda r: r[4].update(speed={}), "results[4].speed.wall_s: field required"),
        (lambda r: r[1].update(dtype=None), "results[1].dtype: input should be a valid string; got None"),
        (lambda r: r[0]["outputs"][0].update(error=float("nan")), "results[0].outputs[0].error: input should be a fin"),
        (lambda r: r[4]["speed"].update(samples=[]), "results[4].speed.samples: list should have at least 1 item"),
        (lambda r: r[4]["speed"].update(samples=["1"]), "results[4].speed.samples[0]: input should be a valid number"),
        (
            lambda r: r[4]["speed"]["peers"]["torch"].pop("ratio"),
            "speed.peers.torch: give exactly one of ratio, unavailable",
        ),
        (lambda r: r[0]["outputs"][0].pop("ulp"), "results[0].outputs[0]: give all of e, ulp, or none"),
        (lambda r: r[2].update(speeed=1), "results[2].speeed: extra inputs are not permitted; got 1"),
        (
            lambda r: r[4]["speed"].update(flop_per_s=9.9e-10),
            "speed.flop_per_s: must be 0 or from 1e-9 to 1e24; got 9.9",
        ),
        (lambda r: r[4]["speed"].update(flop_per_s=-0.5), "speed.flop_per_s: must be 0 or from 1e-9 to 1e24; got -0.5"),
        (
            lambda r: r[4]["speed"].update(byte_per_s=1.1e24),
            "speed.byte_per_s: must be 0 or from 1e-9 to 1e24; got 1.1",
        ),
        (lambda r: r.insert(3, "text"), "results[3]: must be a mapping; got 'text'"),
        (lambda r: r[0].update(dims={"seq_q": "four"}), "results[0].dims.seq_q: input should be a valid integer"),
    ],
)
def test_the_place_is_named(change, message, data, document, sound, tmp_path, capsys):
    data = copy.deepcopy(data)
    change(data["results"])
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data))
    assert message in use(path, document, sound)
    assert cli.main(["matrix", "report", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"rocmkern: {path}: ") and message in error


def test_a_file_that_is_nested_without_end_is_an_error(document, sound, tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"format": 1, "results": ' + "[" * 200_000)
    assert "nested too deep" in use(path, document, sound) or "is not JSON" in use(path, document, sound)
