"""What an error says is allowed is not what it says was given: every row of the matrix with a bad argument."""

from __future__ import annotations

import re
from pathlib import Path

import rocmkern
from rocmkern.matrix.expand import load_cases
from rocmkern.matrix.inputs import make_bad_call
from rocmkern.matrix.registry import resolve
from rocmkern.runtime.errors import ArgumentError

MATRIX = Path(__file__).parents[2] / "matrix.yaml"


def quoted(text):
    return set(re.findall(r"'([^']*)'", text)) | set(re.findall(r'"([^"]*)"', text))


def contradicts(error):
    """Whether a word in quotes, or all that was given, is among what is allowed."""
    alternatives = {part.strip() for part in re.split(r", | or ", error.allowed)}
    return bool(quoted(error.given) & quoted(error.allowed)) or error.given in alternatives


def test_no_refusal_allows_what_was_given():
    assert contradicts(ArgumentError("scaling", "\"rope_type\": 'default'", "'default', 'linear'"))
    assert not contradicts(ArgumentError("stream", "str", "None, a stream, or the handle of one"))
    seen, wrong = 0, []
    with rocmkern.using("python"):
        for case in load_cases(MATRIX)[1]:
            if case.facts.expect_error is None or case.operation.needs:
                continue
            try:
                resolve(case.operation.function)(**make_bad_call(case))
            except ArgumentError as error:
                seen += 1
                wrong += [f"{case.id}: {error}"] if contradicts(error) else []
    assert seen > 200 and not wrong
