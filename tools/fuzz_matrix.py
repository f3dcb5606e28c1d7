"""Read damaged matrix files, each in a process of its own: an error with its position or a right result, at once.

    python tools/fuzz_matrix.py                     # 5000 files, a seed from the clock, which is printed
    python tools/fuzz_matrix.py --files 400 --seed 7
    python tools/fuzz_matrix.py --seed 7 --only 4711 --print    # one of them, and what it holds

Files are made from groups of the committed matrix, by the kinds of damage of ``tests/matrix/damage.py``. Each is read,
expanded, and its arrays are sized, as ``rocmkern matrix validate`` does. A file that is accepted must hold what PyYAML
reads. The limits count a process's own time, so that a busy machine fails nobody, and the library itself (about 55 MB).
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "matrix")]

#: On a slow machine the longest takes 1.5 s.
SECONDS, MEGABYTES = 8.0, 200
#: What a file may take by the clock before its process is ended.
HUNG_SECONDS = 240
NAME = "damaged.yaml"
REFUSED, ACCEPTED = "refused", "accepted"


def sound_files() -> list[str]:
    """Groups of the committed matrix as files of their own."""
    head, _, groups = (ROOT / "matrix.yaml").read_text(encoding="utf-8").partition("\ngroups:\n")
    head = head.partition("\nbudgets:\n")[0]
    parts = [part for part in groups.split("\n\n  # ----")[1:] if "targets: *" not in part and part.count("\n") < 60]
    return [f"{head}\ngroups:\n  # ----{part}\n" for part in parts if "rows:\n" in part]


def verdict(raw: bytes) -> str:
    """What reading a file comes to: `REFUSED`, `ACCEPTED`, or what is wrong with that."""
    from rocmkern.matrix import MatrixError, expand, loads
    from rocmkern.matrix.inputs import check_sizes

    try:
        document = loads(raw, NAME)
        for case in expand(document):
            check_sizes(case)
    except MatrixError as error:
        lines = len(raw.decode("utf-8", "replace").splitlines())
        if not str(error).startswith(f"{NAME}:{error.line}:{error.column}: "):
            return f"an error without its position: {error}"
        if not (1 <= error.line <= lines + 1 and error.column >= 1):
            return f"an error at a place that does not exist: {error}"
        return REFUSED
    except Exception as error:
        return f"{type(error).__name__} from inside the loader: {error}"
    return ACCEPTED if same(document.source.data, plain(raw)) else "accepted, but it holds something else"


def plain(raw: bytes) -> Any:
    """What PyYAML makes of a file; what libyaml refuses is read by PyYAML's own parser, as the library does it."""
    import yaml

    text = raw.decode("utf-8-sig")
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return yaml.safe_load(text)


def same(x: Any, y: Any) -> bool:
    """Whether two values are equal and of the same type, NaN included."""
    if type(x) is not type(y):
        return False
    if isinstance(x, dict):
        return x.keys() == y.keys() and all(same(x[key], y[key]) for key in x)
    if isinstance(x, list):
        return len(x) == len(y) and all(map(same, x, y))
    return x == y or (x != x and y != y)


def judge(raw: bytes) -> tuple[str, float, float]:
    """The verdict on a file, in a child; its seconds of CPU time and the megabytes of the process."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        text = "the child did not end as it should"
        try:
            os.close(receiving)
            resource.setrlimit(resource.RLIMIT_CPU, (int(5 * SECONDS), int(5 * SECONDS)))
            signal.alarm(HUNG_SECONDS)
            text = verdict(raw)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(sending, text.encode("utf-8", "replace")[:4000])
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        text = pipe.read().decode()
    _, status, used = os.wait4(child, 0)
    if status:
        text = f"the process was ended by signal {os.WTERMSIG(status)}"
    return text, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> int:
    """Judge the files; the exit status is 1 where one is not as it should be."""
    from damage import damaged_files

    import rocmkern.ops.catalog  # noqa: F401  the children share it

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=5000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the damage (default: from the clock)")
    parser.add_argument("--only", type=int, default=None, metavar="NUMBER", help="judge this one only")
    parser.add_argument("--print", action="store_true", help="print the files that are judged")
    options = parser.parse_args(arguments)
    seed = time.time_ns() % 10**9 if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    count = options.files if options.only is None else options.only + 1
    counts: Counter[tuple[str, str]] = Counter()
    slowest = largest = 0.0
    wrong = 0
    for number, (kind, raw) in enumerate(damaged_files(sound_files(), count, seed)):
        if options.only not in (None, number):
            continue
        if options.print:
            sys.stdout.write(raw.decode("utf-8", "backslashreplace"))
        text, seconds, megabytes = judge(raw)
        slowest, largest = max(slowest, seconds), max(largest, megabytes)
        if seconds > SECONDS or megabytes > MEGABYTES:
            text = f"takes {seconds:.1f} s and {megabytes:.0f} MB; allowed: {SECONDS:g} s and {MEGABYTES} MB ({text})"
        if text in (REFUSED, ACCEPTED):
            counts[kind, text] += 1
        else:
            wrong += 1
            print(f"file {number}, {kind}: {text}", flush=True)
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:<12} {counts[kind, REFUSED]:>5} refused {counts[kind, ACCEPTED]:>5} accepted")
    print(f"{sum(counts.values()) + wrong} files, {wrong} wrong; at most {slowest:.2f} s and {largest:.0f} MB")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
