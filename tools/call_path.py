"""Print which functions and files an operation passes before its kernel starts, on a warm call.

    python tools/call_path.py flash_attention rms_norm              # NumPy arrays, cpu target
    python tools/call_path.py flash_attention --ordinary            # without its plan: the way of a first call
    python tools/call_path.py flash_attention --max-files 7 --max-changes 20
    python tools/call_path.py rms_norm --device hip                 # on a GPU of this machine

Counted are the calls of this package's Python functions from the entry of the public function to the call of the
machine code, and how often one of them lies in another file than the one before. A generator counts each time that it
goes on. The exit status is 1 where there are more than allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import rocmkern

PACKAGE = Path(rocmkern.__file__).parent
#: What is called right behind the machine code (cpu), or right before the driver (GPUs).
LAUNCHES = {("targets/objects.py", "check"), ("targets/gpu.py", "__call__")}


@dataclass(frozen=True)
class CallPath:
    """The functions that a call passed, in their order: (file within the package, name)."""

    calls: tuple[tuple[str, str], ...]

    @property
    def files(self) -> list[str]:
        """Each file once, in the order in which they were entered."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    @property
    def changes(self) -> int:
        """How often the file changes."""
        return sum(a != b for (a, _), (b, _) in itertools.pairwise(self.calls))

    def __str__(self) -> str:
        functions = len(set(self.calls))
        lines = [f"{len(self.calls)} calls, {functions} functions, {len(self.files)} files, {self.changes} changes"]
        for file, calls in itertools.groupby(self.calls, lambda call: call[0]):
            lines.append(f"  {file}: {', '.join(name for _, name in calls)}")
        return "\n".join(lines)


def path_of(call: Callable[[], Any]) -> CallPath:
    """The path of a call up to its first launch; of all of it, where nothing is launched."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE):
            entry = file.relative_to(PACKAGE).as_posix(), frame.f_code.co_name
            if entry in LAUNCHES:
                sys.setprofile(None)
            else:
                calls.append(entry)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return CallPath(tuple(calls))


def flash_attention(operation: Callable, put: Callable[[np.ndarray], Any]) -> Callable[[], Any]:
    """A causal call of one block."""
    q = np.random.default_rng(0).standard_normal((1, 2, 16, 64), dtype=np.float32)
    q, k, v = (put(x) for x in (q, q[:, :1].copy(), q[:, 1:].copy()))
    return lambda: operation(q, k, v, causal=True)


def rms_norm(operation: Callable, put: Callable[[np.ndarray], Any]) -> Callable[[], Any]:
    """A call of one block."""
    x, weight = put(np.ones((4, 64), np.float32)), put(np.ones(64, np.float32))
    return lambda: operation(x, weight)


CALLS = {"flash_attention": flash_attention, "rms_norm": rms_norm}


@contextlib.contextmanager
def prepared(name: str, device: str = "", *, ordinary: bool = False) -> Iterator[Callable[[], Any]]:
    """The call of an operation, made warm on the cpu target or on a GPU; ``ordinary``: not by its plan."""
    with rocmkern.using(device or "cpu"), contextlib.ExitStack() as stack:
        put: Callable[[np.ndarray], Any] = np.asarray
        if device:
            put = stack.enter_context(rocmkern.ResourceManager(device)).from_numpy
        operation = getattr(rocmkern, name)
        call = CALLS[name](operation.__wrapped__ if ordinary else operation, put)
        for _ in range(3):
            call()
        yield call


def main() -> int:
    """Print the paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", nargs="+", choices=CALLS)
    parser.add_argument("--ordinary", action="store_true", help="without the plan of the call")
    parser.add_argument("--device", choices=("hip", "cuda"), default="", help="on a GPU")
    parser.add_argument("--max-files", type=int, default=sys.maxsize, metavar="N")
    parser.add_argument("--max-changes", type=int, default=sys.maxsize, metavar="N")
    arguments = parser.parse_args()
    status = 0
    for name in arguments.operation:
        with prepared(name, arguments.device, ordinary=arguments.ordinary) as call:
            path = path_of(call)
        print(f"{name}: {path}")
        if len(path.files) > arguments.max_files or path.changes > arguments.max_changes:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
