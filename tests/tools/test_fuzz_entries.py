"""Changed entries of the cache are refused and compiled again; and the tool that says so notices when they are not."""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import fuzz_entries

from rocmkern.targets import entries


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """The tool sets variables; a test leaves none."""
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ROCMKERN_QUIET", "1")


@pytest.mark.parametrize("target", fuzz_entries.EXAMPLES)
def test_changed_entries_are_refused(target, tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    done = fuzz_entries.refusals(random.Random(seed), target, 600, tmp_path)
    assert sum(done.values()) == 600 and set(done) >= set(fuzz_entries.KINDS), f"seed {seed}: {done}"
    assert done["unchanged"] < 20


def test_a_launch_with_a_changed_entry_compiles_it_again(capsys):
    assert fuzz_entries.main(["--target", "cpu", "--mutants", "20", "--again", "2", "--seed", "5"]) == 0
    refused, again = capsys.readouterr().out.splitlines()
    assert refused.startswith("cpu, seed 5: 20 refused")
    assert again.startswith("cpu, seed 5: 2 compiled again to the right result")


def test_a_loader_that_trusts_a_file_is_noticed(monkeypatch, capsys):
    """One that looks at no checksum, and one that unpickles."""

    def trusting(data):
        code = entries._HEAD.unpack_from(data)[3]
        start = len(data) - 32 - code
        return entries.Entry(**entries._header(data[entries._HEAD.size : start]), code=data[start:-32])

    def unpickling(data):
        if data.startswith(b"\x80"):
            pickle.loads(data)
        return right(data)

    right = entries.decode
    arguments = ["--mutants", "600", "--again", "0", "--seed", "5"]
    assert fuzz_entries.main(arguments) == 0
    for wrong in (trusting, unpickling):
        monkeypatch.setattr(entries, "decode", wrong)
        assert fuzz_entries.main(arguments) == 1
        assert "FAILED: " in capsys.readouterr().out
        fuzz_entries.Executed.happened = False


def test_a_launch_that_gives_a_wrong_result_is_noticed(monkeypatch, capsys):
    launch, results = fuzz_entries._launch, []

    def wrong(target, x):
        results.append(launch(target, x))
        compilations, out = results[-1]
        return compilations, out + (len(results) > 1)

    monkeypatch.setattr(fuzz_entries, "_launch", wrong)
    assert fuzz_entries.main(["--mutants", "0", "--again", "1", "--seed", "5"]) == 1
    assert "FAILED: " in capsys.readouterr().out and len(results) == 2
