"""Compile kernels ahead of time, so that the first call of a program compiles nothing.

What is compiled: every variant that the rows of a matrix file launch, of the operations and element types that are
named; or (--common) what a decoder and an encoder call. What is there already is left alone. Kernels of the cpu target
can be compiled for each of its architectures on any x86-64 machine; those of hip and cuda for the card of this machine,
or without one for the architectures that are named.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rocmkern.cli._matrix_file import default_matrix
from rocmkern.runtime.errors import ArgumentError, RocmkernError, TargetError
from rocmkern.targets import TargetName, launching_on, target, using

SUMMARY = "compile kernels ahead of time"

TARGETS = ("cpu", "hip", "cuda")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to compile, for which machine, and where it goes."""
    parser.add_argument("--ops", default="", metavar="LIST", help="operations, separated by commas (default: all)")
    parser.add_argument(
        "--dtypes", default="", metavar="LIST", help="float32, float16, bfloat16: of the first tensor (default: all)"
    )
    parser.add_argument(
        "--common", action="store_true", help="what a decoder and an encoder call, whatever the rows say"
    )
    parser.add_argument("--target", choices=TARGETS, help="default: the one that is used here")
    parser.add_argument("--arch", default="", metavar="LIST", help="architectures (default: that of this machine)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="kernels at a time")
    parser.add_argument("--matrix", type=Path, metavar="FILE", help="matrix file (default: that of `rocmkern matrix`)")
    parser.add_argument(
        "--into", type=Path, metavar="DIRECTORY", help="write what a wheel brings, there instead of into the cache"
    )
    parser.add_argument("--list", action="store_true", help="name the variants and compile nothing")


def run(arguments: argparse.Namespace) -> int:
    """Find the variants, compile what is missing, count."""
    # deferred: start-up
    from rocmkern.targets import cache

    if arguments.jobs < 1:
        raise ArgumentError("--jobs", str(arguments.jobs), "a number of processes, 1 or more")
    name = arguments.target or target().name
    if name not in TARGETS:
        raise TargetError(f"nothing is compiled for the {name} target; allowed: --target {', '.join(TARGETS)}")
    wanted = _variants(name, _words(arguments.arch) or [_architecture(name)], arguments)
    if arguments.list:
        for variant in wanted:
            print(f"{variant.cfg.arch:<12} {variant.name:<17} {','.join(variant.dtypes):<40} {variant.features}")
        return 0
    directory = arguments.into or cache.own_directory()
    if directory is None:
        raise TargetError("there is no cache directory to compile into: set ROCMKERN_CACHE_DIR to one of your own")
    missing = [each for each in wanted if not _is_there(name, each, directory, arguments.into is not None)]
    if arguments.into is not None:
        _remove_others(name, wanted, directory)
    print(f"{len(wanted)} variants, {len(wanted) - len(missing)} of them in {directory} already", flush=True)
    started, failures, nbytes = time.perf_counter(), 0, 0
    jobs = [(name, each, directory, arguments.into is not None) for each in missing]
    for number, (variant, (size, error)) in enumerate(zip(missing, _compiled(jobs, arguments.jobs), strict=True), 1):
        failures, nbytes = failures + bool(error), nbytes + size
        print(f"{number}/{len(missing)} {variant.cfg.arch} {variant.name} {','.join(variant.dtypes)}", flush=True)
        if error:
            print(f"  not compiled: {error}", file=sys.stderr)
    seconds = time.perf_counter() - started
    print(f"{len(missing) - failures} compiled in {seconds:.0f} s ({nbytes / 2**20:.1f} MiB), {failures} not")
    return 1 if failures else 0


def _architecture(name: TargetName) -> str:
    """That of this machine for a target."""
    if name == "cpu":
        # deferred: start-up
        from rocmkern.targets.host_cpu import host_architecture

        return host_architecture()
    with using(name):
        return target().arch


def _variants(name: str, archs: Sequence[str], arguments: argparse.Namespace) -> list[Any]:
    """What is to be compiled, in the order of the architectures."""
    # deferred: start-up
    from rocmkern.cli import _common_calls
    from rocmkern.cli._variants import VariantRecorder, check_archs, record
    from rocmkern.matrix import load

    check_archs(archs, name)
    operations, dtypes = _words(arguments.ops), _words(arguments.dtypes)
    if not set(dtypes) <= set(_common_calls.DTYPES):
        raise ArgumentError("--dtypes", arguments.dtypes, ", ".join(_common_calls.DTYPES))
    recorders = [VariantRecorder(arch, name) for arch in archs]
    if arguments.common:
        for recorder in recorders:
            with launching_on(recorder):
                for dtype in dtypes or _common_calls.DTYPES:
                    _common_calls.make_calls(dtype)
    else:
        matrix = load(arguments.matrix or default_matrix())
        known = sorted(operation.name for operation in matrix.registry)
        if not set(operations) <= set(known):
            raise ArgumentError("--ops", arguments.ops, ", ".join(known))
        record(recorders, matrix, operations)
    return [v for r in recorders for v in r.found if not dtypes or v.dtypes[0] in dtypes]


def _is_there(name: str, variant: Any, directory: Path, shipped: bool) -> bool:
    # deferred: start-up
    from rocmkern.targets import cache

    module = importlib.import_module(f"rocmkern.targets.{name}")
    key = module.variant_key(variant.kernel, variant.cfg, variant.dtypes)
    if shipped:
        return cache.is_kept(directory / cache.shipped_name(key), key, None)
    versions = module.versions()
    return versions is not None and cache.is_kept(directory / cache.file_name(key, versions), key, versions)


def _remove_others(name: str, wanted: Sequence[Any], directory: Path) -> None:
    """Leave nothing in a wheel's directory that the wheel does not need, such as variants of an older version."""
    # deferred: start-up
    from rocmkern.targets import cache

    module = importlib.import_module(f"rocmkern.targets.{name}")
    names = {cache.shipped_name(module.variant_key(v.kernel, v.cfg, v.dtypes)) for v in wanted}
    for path in directory.glob(f"*{cache.SUFFIX}"):
        if path.name not in names:
            path.unlink()


def _compile_one(job: tuple[str, Any, Path, bool]) -> tuple[int, str]:
    """Compile a variant and write it: its size in bytes, and what went wrong."""
    # deferred: start-up
    from rocmkern.targets import cache, entries
    from rocmkern.targets.apart import apart
    from rocmkern.targets.source import Key

    name, variant, directory, shipped = job
    module = importlib.import_module(f"rocmkern.targets.{name}")
    try:
        entry = apart(lambda: module.compile_entry(variant.kernel, variant.cfg, variant.dtypes))
    except (RocmkernError, RuntimeError) as error:  # the latter is a code generator's
        return 0, str(error)
    data = entries.encode(entry)
    if shipped:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / cache.shipped_name(Key.of(entry))
        cache.write_atomically(path, data)
        path.chmod(0o644)
    else:
        cache.store(directory, entry)
    return len(data), ""


def _compiled(jobs: Sequence[tuple[str, Any, Path, bool]], at_once: int) -> Iterable[tuple[int, str]]:
    """What `_compile_one` says of each, in order."""
    if at_once == 1 or len(jobs) < 2:
        yield from map(_compile_one, jobs)
        return

    # deferred: start-up
    from rocmkern.cli._processes import processes

    with processes(min(at_once, len(jobs))) as pool:
        yield from pool.map(_compile_one, jobs)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
