"""Limits of the values of a file of results: each is allowed, and what lies beyond is not."""

from __future__ import annotations

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from rocmkern.matrix import result_schema as schema

TINY = math.ulp(0.0)


def above(x):
    return math.nextafter(x, math.inf)


def below(x):
    return math.nextafter(x, -math.inf)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("Rate", [0.0, 1e-9, 1e24], [below(1e-9), above(1e24), -1.0, TINY, math.inf, math.nan]),
        ("Integer", [-(2**63), 2**63 - 1], [-(2**63) - 1, 2**63]),
        ("Extent", [0, 2**63 - 1], [-1, 2**63]),
        ("Number", [-1.7e308, 0.0], [math.inf, -math.inf, math.nan]),
        ("NotNegative", [0.0, 1.7e308], [-TINY, math.inf, math.nan]),
        ("Seconds", [1e-12, 1e9], [below(1e-12), above(1e9), 0.0]),
        ("Sample", [0.0, 1e9], [-TINY, above(1e9)]),
        ("Samples", [[0.0], [1.0, 2.0]], [[], [-1.0]]),
        ("Word", ["a"], [""]),
        ("Sha256", ["0" * 64, "0123456789abcdef" * 4], ["0" * 63, "0" * 65, "g" * 64, "A" * 64, "0" * 64 + "\n"]),
    ],
)
def test_limits(name, allowed, refused):
    values = TypeAdapter(getattr(schema, name))
    for value in allowed:
        assert values.validate_python(value) == value
    for value in refused:
        with pytest.raises(ValidationError):
            values.validate_python(value)


OUTPUT = {"output": "out", "error": 0.0, "bound": 0.0, "share": 0.0, "parts": ""}
SPEED = {"wall_s": 1.0, "peers": {}}


@pytest.mark.parametrize(
    ("model", "sound", "more", "fits"),
    [
        (schema.OutputRecord, OUTPUT, {}, True),
        (schema.OutputRecord, OUTPUT, {"e": 0.0, "ulp": 0.0}, True),
        (schema.OutputRecord, OUTPUT, {"e": 0.0}, False),
        (schema.OutputRecord, OUTPUT, {"ulp": 0.0}, False),
        (schema.SpeedRecord, SPEED, {}, True),
        (schema.SpeedRecord, SPEED, {"samples": [1.0], "counts": "cpu_s"}, True),
        (schema.SpeedRecord, SPEED, {"samples": [1.0]}, False),
        (schema.SpeedRecord, SPEED, {"counts": "cpu_s"}, False),
        (schema.SpeedRecord, SPEED, {"rounds": 1}, True),
        (schema.SpeedRecord, SPEED, {"rounds": 0}, False),
        (schema.PeerRecord, {}, {"ratio": 1.0}, True),
        (schema.PeerRecord, {}, {"unavailable": "no"}, True),
        (schema.PeerRecord, {}, {}, False),
        (schema.PeerRecord, {}, {"ratio": 1.0, "unavailable": "no"}, False),
    ],
)
def test_fields_that_go_together(model, sound, more, fits):
    if fits:
        model.model_validate(sound | more)
    else:
        with pytest.raises(ValidationError):
            model.model_validate(sound | more)


def test_a_date_is_one_of_iso():
    assert schema._date("2026-01-01T00:00:00+00:00")
    with pytest.raises(ValueError, match="isoformat"):
        schema._date("yesterday")
