"""Change entries of the cache of compiled kernels, and count what the loader makes of them.

    python tools/fuzz_entries.py --target cpu              # 10 000 refused, 50 compiled again; a seed by the clock
    python tools/fuzz_entries.py --target hip --mutants 2000 --again 5 --seed 3

Two things are shown of the entries of a target. Its loader, asked for a variant in whose file something else lies
(`mutated`), hands out nothing but what is compiled then: the kernel's machine code is never asked for from a changed
file, and the file is right again afterwards. And launches with changed files compile and give the right result. The
exit status is 1 if there is a failure. Without a device the second part of hip and cuda is left out, and says so.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import io
import json
import os
import pickle
import random
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import rocmkern
from rocmkern.ops.steps.kernels.scale import Config, scale
from rocmkern.runtime.errors import RocmkernError
from rocmkern.targets import cache, current_target, entries
from rocmkern.targets.entries import Entry

FACTOR = 3.0
#: Entries of targets that cannot be compiled for here: the format does not ask what the code does.
_BYTES = bytes(range(256)) * 40
EXAMPLES = {
    "cpu": ("cpu-avx2", {"symbol": "rocmkern_launch"}, b"\x7fELF\x02\x01\x01" + _BYTES),
    "hip": ("gfx1100", {"title": "scale", "name": "scale", "words": 19, "threads": 128}, b"\x7fELF" + _BYTES),
    "cuda": (
        "sm_90",
        {"name": "scale", "words": 19, "threads": 128, "shared_bytes": 0, "maps": [], "overlaps": False},
        b".version 8.4\n.target sm_90\n.entry scale()\n{ ret; }\n" * 200,
    ),
}
KINDS = (
    "cut", "longer", "a byte less", "a byte more", "bits", "bits of the head", "zeros", "another's part", "two joined",
    "another variant", "another target", "another type", "another header", "another format",
)  # fmt: skip


class Executed:
    """Unpickled, it says so."""

    happened = False

    def __reduce__(self) -> tuple:
        return exec, ("import __main__, sys; sys.modules['fuzz_entries'].Executed.happened = True",)


def example(target: str, other: bool = False) -> Entry:
    """An entry of a target that was not compiled."""
    arch, launch, code = EXAMPLES[target]
    code = code[::-1] if other else code
    key = hashlib.sha256(f"{target} {other}".encode()).hexdigest()
    return Entry(key, target, arch, "kernels.scale", "Config()", ("float32",) * 2, "compiler 1", (), launch, code)


def mutated(rng: random.Random, entry: Entry, others: list[Entry]) -> tuple[str, bytes]:
    """What may lie in the place of an entry: what was done, and the contents of the file."""
    kind, data = rng.choice(KINDS), entries.encode(entry)
    at, changed = rng.randrange(len(data)), bytearray(data)
    other = entries.encode(rng.choice(others))
    if kind == "cut":
        changed = changed[:at]
    elif kind == "longer":
        changed += rng.randbytes(rng.randrange(1, 64))
    elif kind == "a byte less":
        del changed[at]
    elif kind == "a byte more":
        changed.insert(at, rng.randrange(256))
    elif kind in ("bits", "bits of the head"):
        for _ in range(rng.randrange(1, 9)):
            changed[rng.randrange(24 if kind == "bits of the head" else len(data))] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        end = min(len(data), at + rng.randrange(1, 4096))
        changed[at:end] = bytes(end - at)
    elif kind == "another's part":
        end = min(len(data), at + rng.randrange(1, 4096))
        changed[at:end] = other[at:end]
    elif kind == "two joined":
        changed = changed[:at] + other[at:]
    elif kind in ("another variant", "another target"):
        same = [each for each in others if (each.target == entry.target) == (kind == "another variant")]
        changed = bytearray(entries.encode(rng.choice(same)))
    elif kind == "another type":
        changed = bytearray(_of_another_type(rng, entry))
    elif kind == "another header":
        changed = bytearray(_with_another_header(rng, data, entry))
    else:
        changed[8:12] = rng.randrange(2, 2**32).to_bytes(4, "little")
        changed[-32:] = hashlib.sha256(changed[:-32]).digest()
    return kind, bytes(changed)


def _of_another_type(rng: random.Random, entry: Entry) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("code", entry.code)
    fields = {name: value for name, value in vars(entry).items() if name != "code"}
    return rng.choice(
        [
            b"",
            entry.code,
            pickle.dumps(Executed()),
            pickle.dumps(fields),
            b"import sys; sys.modules['fuzz_entries'].Executed.happened = True\n",
            json.dumps({**fields, "launch": dict(entry.launch)}).encode(),
            archive.getvalue(),
            rng.randbytes(rng.randrange(1, 5000)),
        ]
    )


def _with_another_header(rng: random.Random, data: bytes, entry: Entry) -> bytes:
    """With a right checksum: a field is missing, new, of another type, twice there, or the text is no JSON."""
    length = int.from_bytes(data[12:16], "little")
    fields = json.loads(data[24 : 24 + length])
    name = rng.choice(sorted(fields))
    kind = rng.randrange(5)
    if kind == 0:
        del fields[name]
    elif kind == 1:
        fields[rng.choice(["code", "more", ""])] = fields[name]
    elif kind == 2:
        fields[name] = rng.choice([None, 1, 1.5, True, [1], [[]], [None]])
    header = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    if kind == 3:
        header = header.replace(b"{", b'{"arch":"x",', 1)
    elif kind == 4:
        header = rng.choice([b"", b"null", b"[" * 9999, header + b" ", header[:-1], b"\xff\xfe" + header, b"1e999"])
    body = data[:12] + len(header).to_bytes(4, "little") + len(entry.code).to_bytes(8, "little") + header + entry.code
    return body + hashlib.sha256(body).digest()


def refusals(rng: random.Random, target: str, count: int, directory: Path) -> collections.Counter:
    """Ask the loader for a variant whose file was changed, so many times: what was done to how many files."""
    entry, others = example(target), [example(name, name == target) for name in EXAMPLES]
    key, versions = cache.Key.of(entry), entry.compiler
    path, good = directory / cache.file_name(key, versions), entries.encode(entry)
    done: collections.Counter = collections.Counter()
    handed_out: list[Entry] = []

    def hand_out(got: Entry) -> Entry:
        handed_out.append(got)
        return got

    for _ in range(count):
        kind, data = mutated(rng, entry, others)
        if data == good:  # zeros over zeros, say
            kind = "unchanged"
        path.write_bytes(data)
        path.chmod(0o600)
        handed_out.clear()
        cache.obtain(key, lambda: versions, lambda: entry, hand_out)
        if handed_out != [entry] or path.read_bytes() != good or Executed.happened:
            raise AssertionError(f"{kind}: {len(data)} bytes were not refused: {data[:200]!r}")
        done[kind] += 1
    return done


def compiled_again(rng: random.Random, target: str, count: int, directory: Path) -> collections.Counter:
    """Launch with changed files, so many times: what was done to how many files, each compiled again, results right."""
    with rocmkern.using(target):
        first = current_target()

    def make() -> Any:
        return type(first)(*([first.device] if first.device else []))

    x = np.random.default_rng(1).standard_normal((1, 1, 5, 67), dtype=np.float32)
    _launch(make(), x)
    (path,) = (path for path in directory.iterdir() if path.suffix == cache.SUFFIX)
    good = entries.decode(path.read_bytes())
    others = [example(name, name == target) for name in EXAMPLES]
    done: collections.Counter = collections.Counter()
    while sum(done.values()) < count:
        kind, data = mutated(rng, good, others)
        if data == entries.encode(good):
            continue
        path.write_bytes(data)
        compilations, result = _launch(make(), x)
        if compilations != 1 or not np.array_equal(result, x * np.float32(FACTOR)):
            raise AssertionError(f"{kind}: {compilations} compilations; right: {np.array_equal(result, x * FACTOR)}")
        entries.load(path, good.key, good.compiler, lambda status: None)
        if _launch(make(), x)[0]:
            raise AssertionError(f"{kind}: what was compiled again is not used")
        done[kind] += 1
    return done


def _launch(target: Any, x: np.ndarray) -> tuple[int, np.ndarray]:
    """Launch the kernel on a target object: how often it compiled, and the result."""
    compilations: list[str] = []
    with _counting(target, compilations):
        cfg, grid = Config(arch=target.arch), (1, 1, 1)
        if target.device is None:
            out = np.full_like(x, np.nan)
            target.launch(scale, cfg, grid, [x, out, FACTOR])
            return len(compilations), out
        from rocmkern.calls.view import view_of
        from rocmkern.runtime import default_manager

        manager = default_manager(target.device)
        with manager.from_numpy(x) as source, manager.empty(x.shape, x.dtype) as out:
            target.launch(scale, cfg, grid, [view_of(source), view_of(out), FACTOR])
            return len(compilations), out.to_numpy()


class _counting:
    """Note what a target compiles, within the block."""

    def __init__(self, target: Any, compilations: list[str]):
        self._owner = sys.modules[type(target).__module__] if target.device is None else target
        self._right, self._compilations = self._owner.compile_entry, compilations

    def __enter__(self) -> None:
        def compile_entry(*arguments: Any) -> Entry:
            self._compilations.append("")
            return self._right(*arguments)

        self._owner.compile_entry = compile_entry

    def __exit__(self, *error: object) -> None:
        self._owner.compile_entry = self._right


def main(arguments: list[str] | None = None) -> int:
    """Count, and print one line for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=sorted(EXAMPLES), default="cpu")
    parser.add_argument(
        "--mutants", type=int, default=10_000, metavar="N", help="for the loader (default: %(default)d)"
    )
    parser.add_argument("--again", type=int, default=50, metavar="N", help="to compile again (default: %(default)d)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="default: by the clock")
    options = parser.parse_args(arguments)
    sys.modules["fuzz_entries"] = sys.modules[__name__]
    os.environ["ROCMKERN_QUIET"] = "1"
    words = f"{options.target}, seed {options.seed}:"
    with tempfile.TemporaryDirectory() as root:
        for part, count, what in (
            (refusals, options.mutants, "refused"),
            (compiled_again, options.again, "compiled again to the right result"),
        ):
            os.environ["ROCMKERN_CACHE_DIR"] = directory = tempfile.mkdtemp(dir=root)
            try:
                done = part(random.Random(options.seed), options.target, count, Path(directory)) if count else {}
            except AssertionError as error:
                print(words, f"FAILED: {error}", flush=True)
                return 1
            except RocmkernError as error:
                print(words, f"not run here: {error}", flush=True)
                continue
            unchanged = done.pop("unchanged", 0)
            print(words, f"{sum(done.values())} {what} ({unchanged} were not changed): {dict(done)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
