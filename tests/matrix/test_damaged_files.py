"""Damaged matrix files end in an error with a position: never in a traceback from the loader, never in a hang.

A bare pytest tries some hundred files; ``pytest -m full tests/matrix/test_damaged_files.py`` tries 10 000. What time
and memory a file may take is judged by ``tools/fuzz_matrix.py``, in a process for each file.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from damage import KINDS, damaged_files
from test_loader import GOOD

from rocmkern.matrix import Case, MatrixError, Registry, expand, loads

FEW, MANY = 400, 10_000
SEED = 2026
# Nothing is measured by it: what is not read after this long would not be read at all.
DEADLINE_SECONDS = 60
REGISTRY = b"registry: rocmkern.ops.catalog"
COMMITTED = Path(__file__).parents[2] / "matrix.yaml"


def sound_files() -> list[str]:
    """The file of the loader's tests, and groups of the committed matrix as files of their own."""
    text = COMMITTED.read_text(encoding="utf-8")
    head, _, groups = text.partition("\ngroups:\n")
    head = head.partition("\nbudgets:\n")[0]
    parts = [part for part in groups.split("\n\n  # ----")[1:] if "targets: *" not in part and part.count("\n") < 60]
    files = [f"{head}\ngroups:\n  # ----{part}\n" for part in parts if "rows:\n" in part]
    assert len(files) > 5
    return [*[GOOD] * len(files), *files]


def read(file: str | bytes, own_registry: Registry) -> list[Case]:
    """The cases of a file; GOOD is of the operations of these tests."""
    ours = REGISTRY in (file.encode() if isinstance(file, str) else file)
    return expand(loads(file, "damaged.yaml", None if ours else own_registry))


def test_the_sound_files_are_sound(registry):
    assert all(read(file, registry) for file in sound_files())


@pytest.fixture
def deadline():
    """Ends a test that hangs, where the system can; gives a function that starts the time again."""
    if not hasattr(signal, "SIGALRM"):
        yield lambda: None
        return

    def stop(*_):
        raise TimeoutError(f"not read within {DEADLINE_SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    yield lambda: signal.alarm(DEADLINE_SECONDS)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.full
def test_damage_gives_an_error_with_a_position_or_a_valid_file(registry, request, deadline):
    options = request.config.option
    many = "full" in options.markexpr or getattr(options, "rocmkern_all", False)
    refused: Counter[str] = Counter()
    for number, (kind, raw) in enumerate(damaged_files(sound_files(), MANY if many else FEW, SEED)):
        deadline()
        try:
            read(raw, registry)
        except MatrixError as error:
            refused[kind] += 1
            assert str(error).startswith(f"damaged.yaml:{error.line}:{error.column}: "), f"file {number}, {kind}"
            lines = len(raw.decode("utf-8", "replace").splitlines())
            assert 1 <= error.line <= lines + 1 and error.column >= 1, f"file {number}, {kind}: {error}"
        except Exception as error:
            raise AssertionError(f"file {number}, {kind}: {type(error).__name__} from inside the loader") from error
    assert set(refused) == set(KINDS), "every kind of damage is noticed"


TOOL = COMMITTED.parent / "tools" / "fuzz_matrix.py"


def judged(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True, timeout=300)


def test_damaged_files_are_read_at_once_and_what_is_accepted_is_what_yaml_says():
    done = judged("--files", "240", "--seed", str(SEED))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("240 files, 0 wrong; at most [0-9.]+ s and [0-9]+ MB", done.stdout), done.stdout


def test_the_tool_notices_what_is_slow_large_or_misread(tmp_path):
    """The tool itself, with a loader that is wrong in one way for each number of a file."""
    text = f"""
import sys, time
sys.path[:0] = [{str(TOOL.parent)!r}]
import fuzz_matrix
import rocmkern.matrix as matrix

read = matrix.loads
def loads(raw, name):
    document = read(fuzz_matrix.sound_files()[0], name)
    way = int(sys.argv[1])
    if way == 0:
        start = time.process_time()
        while time.process_time() - start < fuzz_matrix.SECONDS: pass
    if way == 1:
        loads.kept = b"x" * (fuzz_matrix.MEGABYTES << 20)
    if way == 3:
        raise KeyError("x")
    return document
matrix.loads = loads
sys.exit(fuzz_matrix.main(["--only", "4", "--seed", "1"]))
"""
    script = tmp_path / "wrong.py"
    script.write_text(text)
    for way, words in enumerate(("takes", "takes", "accepted, but it holds something else", "KeyError from inside")):
        done = subprocess.run([sys.executable, str(script), str(way)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and words in done.stdout, (way, done.stdout, done.stderr)
