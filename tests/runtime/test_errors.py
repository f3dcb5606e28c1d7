"""Errors: what they say, what they also are, and that they arrive in another process as they were."""

from __future__ import annotations

import copy
import pickle

import pytest

from rocmkern.runtime import errors
from rocmkern.runtime.errors import RocmkernError

MATRIX = errors.MatrixError
WORDS = "something is wrong: do that"
#: What each is made of, what it then says, and what else it is.
EXAMPLES = [
    (errors.ArgumentError("q", "5", "6 or 7"), "q: got 5; allowed: 6 or 7", ValueError),
    (errors.ArgumentTypeError("q", "a str", "a number"), "q: got a str; allowed: a number", TypeError),
    (errors.TileError(WORDS), WORDS, TypeError),
    (errors.TargetError(WORDS), WORDS, RuntimeError),
    (errors.DeviceUnavailableError(WORDS), WORDS, errors.TargetError),
    (errors.ReentryError(WORDS), WORDS, RuntimeError),
    (
        errors.DriverError("hipMemcpyAsync", "hipErrorUnknown", "hip:0"),
        "hipMemcpyAsync failed on hip:0: hipErrorUnknown. If later calls fail too, this process has lost the device: "
        "end it",
        errors.TargetError,
    ),
    (
        errors.DeviceMemoryError(1, 2, 3, 4, 5),
        "cannot allocate 1 bytes (over the cap): allowed 2, free 3, held 4, total 5 bytes; free tensors, call trim(), "
        "or raise cap= (at most 0.90)",
        MemoryError,
    ),
    (
        errors.DeviceMemoryError(1, 2, 3, 4, 5, "the driver has none"),
        "cannot allocate 1 bytes (the driver has none): allowed 2, free 3, held 4, total 5 bytes; free tensors, call "
        "trim(), or raise cap= (at most 0.90)",
        MemoryError,
    ),
    (errors.DeadlineError(WORDS), WORDS, TimeoutError),
    (errors.LockTimeoutError(WORDS), WORDS, errors.DeadlineError),
    (errors.LeakError(WORDS), WORDS, AssertionError),
    (errors.GuardBandError(WORDS), WORDS, AssertionError),
    (errors.ClosedError(WORDS), WORDS, ValueError),
    (errors.IndexOutOfRangeError(WORDS), WORDS, IndexError),
    (
        errors.OutOfBlocksError(7, 2, 9),
        "7 blocks are needed and 2 of 9 are free; free() a sequence or make a larger cache",
        MemoryError,
    ),
    (errors.PeerError((1, 3), 4, WORDS), f"rank 1 and rank 3 of 4: {WORDS}", RuntimeError),
    (errors.CheckpointError(WORDS), WORDS, ValueError),
    (MATRIX("no"), "no", ValueError),
    (MATRIX("no", file="m.yaml"), "m.yaml: no", ValueError),
    (MATRIX("no", file="m.yaml", line=3, column=5), "m.yaml:3:5: no", ValueError),
    (MATRIX("no", file="m.yaml", line=3, column=5, path="groups.a"), "m.yaml:3:5: groups.a: no", ValueError),
    (MATRIX("no", path="groups.a"), "groups.a: no", ValueError),
    (MATRIX("no", line=3, column=5), "no", ValueError),
]


def classes(base=RocmkernError):
    """The errors of the library's one module of errors."""
    found = {base} if base.__module__ == errors.__name__ else set()
    return found.union(*(classes(each) for each in base.__subclasses__()))


def test_every_error_has_an_example():
    assert {type(error) for error, _, _ in EXAMPLES} == classes() - {RocmkernError}


@pytest.mark.parametrize(("error", "text", "base"), EXAMPLES)
@pytest.mark.parametrize("sent", [lambda e: e, copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_an_error_says_the_same_wherever_it_arrives(error, text, base, sent):
    arrived = sent(error)
    assert type(arrived) is type(error) and isinstance(arrived, base)
    assert str(arrived) == text and vars(arrived) == vars(error)
