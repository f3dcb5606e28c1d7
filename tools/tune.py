"""Find block sizes for an architecture, by measuring candidates here or by what the compiler makes of them.

    python tools/tune.py rms_norm                              # on this processor, or card
    python tools/tune.py flash_attention --case '*llama3*' --write
    python tools/tune.py flash_attention --arch gfx1103        # AMD without a card: by registers, scratch, occupancy

Sizes are records in tables by architecture or family, looked up by `rocmkern.architectures.tuned`. `SPACES` has the
knobs of each operation: numbers of its record. For one knob after the other the numbers are halved and doubled, and
each of these candidates is put into effect as an entry for the architecture itself, which wins over those of families.
Rows of the matrix are then called with all candidates of a knob in turns:

    time        of a row the median, of a candidate the geometric mean over the rows, relative to the present record
    counters    of the compiled kernels of all rows, the first that differs decides: scratch memory, spilled registers,
                waves a SIMD holds (of each kernel, on average), instructions per matrix instruction of the main loop
                (per FMA, or per access to memory, where there are none)

The best candidate is taken if it is better, by time twice in a row and by the margin; otherwise the present sizes stay.
What was found is printed as a change of the table, and with --write made. It is an entry for the architecture alone.
Afterwards format the file, and run the operation's rows, which say whether its results are right
(`python -m pytest matrix.yaml -k NAME`).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rocmkern.architectures import architecture, tuned
from rocmkern.runtime.errors import ArgumentError, RocmkernError

FACTORS = (0.25, 0.5, 2.0, 4.0)
#: A candidate that is faster by less may be so by chance.
MARGIN = 0.03
ROUNDS = 9
#: A row that is shorter is called more than once a round, but not more often than this.
SECONDS_PER_ROUND, MOST_CALLS = 0.01, 20


@dataclass(frozen=True)
class Knob:
    """Numbers of a record that are halved and doubled together.

    Attributes
    ----------
    path : str
        Where they are: names of fields, keys of mappings or ``*`` for all of them, positions in tuples, with dots.
    least, most : int
        What each of them may be.
    family : str
        Of what architectures (see `Architecture.families`); all if empty.
    """

    path: str
    least: int
    most: int
    family: str = ""

    def concerns(self, arch: str) -> bool:
        """Whether the numbers mean something on an architecture."""
        return not self.family or self.family in architecture(arch).families


@dataclass(frozen=True)
class Space:
    """What can be tuned of an operation.

    Attributes
    ----------
    table : str
        Module and name of the table of its sizes.
    knobs : tuple of Knob
        In the order in which they are tried.
    """

    table: str
    knobs: tuple[Knob, ...]

    @property
    def module(self) -> Any:
        """The module of the table."""
        return importlib.import_module(self.table.partition(":")[0])

    @property
    def name(self) -> str:
        """The table's name in the module."""
        return self.table.partition(":")[2]

    @property
    def entries(self) -> MutableMapping[str, Any]:
        """The table."""
        return getattr(self.module, self.name)


_PRODUCTS = tuple(
    knob
    for kind in ("half", "single")
    for knob in (
        Knob(f"{kind}.*.columns", 16, 512),
        Knob(f"{kind}.*.block_k", 16, 2048),
        Knob(f"{kind}.*.waves", 1, 8, "gpu"),
    )
)
_WHOLE_ROWS = Space(
    "rocmkern.ops.streaming:SIZES",
    (Knob("whole_by_width.*.rows", 1, 32), Knob("whole_by_width.*.waves", 1, 8, "gpu"), Knob("block.rows", 1, 128),
     Knob("block.columns", 16, 1024)),
)  # fmt: skip
SPACES = {
    "decode_attention": Space(
        "rocmkern.ops.attention.tuning:_TABLE",
        (Knob("blocks.keys.*", 16, 256), Knob("blocks.few_rows_keys", 16, 256, "cpu"),
         Knob("decode.*.keys", 16, 256, "nvidia"), Knob("decode.*.waves", 1, 8, "nvidia"),
         Knob("joining.splits", 2, 16), Knob("joining.waves", 1, 8, "gpu")),
    ),
    "flash_attention": Space(
        "rocmkern.ops.attention.tuning:_TABLE",
        (Knob("blocks.keys.*", 16, 256), Knob("blocks.rows.64", 1, 8, "gpu"), Knob("resident.*.blocks", 1, 8, "nvidia"),
         Knob("resident.*.keys", 16, 256, "nvidia"), Knob("tall.waves", 1, 8, "nvidia")),
    ),
    "layer_norm": _WHOLE_ROWS,
    "matmul": Space("rocmkern.ops.linear.tuning:SIZES", _PRODUCTS),
    "mlp": Space("rocmkern.ops.mlp.tuning:SIZES", _PRODUCTS),
    "rms_norm": _WHOLE_ROWS,
    "softmax": _WHOLE_ROWS,
}  # fmt: skip


@functools.total_ordering
@dataclass(frozen=True)
class Score:
    """How good a candidate is: less is better.

    Attributes
    ----------
    rank : tuple of float
        The first number that differs decides.
    text : str
        For people.
    """

    rank: tuple[float, ...]
    text: str

    def __lt__(self, other: Score) -> bool:
        return self.rank < other.rank

    def by(self, margin: float) -> Score:
        """What a candidate has to be better than, to be better than this one by a margin."""
        return Score(tuple(number * (1 - margin) for number in self.rank), self.text)


#: A record in effect while a block of code runs; what is made of several records, a text where one cannot be used.
Effect = Callable[[Any], AbstractContextManager[None]]
Measure = Callable[[Sequence[Any], Effect], list[Score | str]]


def why(error: object) -> str:
    """Why a candidate cannot be used, in a line without the configuration that an error begins with."""
    return str(error).splitlines()[0].rpartition("): ")[2]


def scaled(value: Any, path: Sequence[str], change: Callable[[int], int]) -> Any:
    """A value with the numbers at a path changed; None where nothing is there."""
    if value is None:
        return None
    if value is None:
        return None
    if not path:
        return change(value)
    head, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        return {k: scaled(v, rest, change) if head in ("*", str(k)) else v for k, v in value.items()}
    if isinstance(value, tuple):
        return tuple(scaled(v, rest, change) if head in ("*", str(i)) else v for i, v in enumerate(value))
    return replace(value, **{head: scaled(getattr(value, head), rest, change)})


def candidates(record: Any, knob: Knob) -> Iterator[tuple[float, Any]]:
    """Records that differ in the numbers of a knob, with their factor; numbers that are 0 stay so."""
    for factor in FACTORS:

        def change(number: int, factor: float = factor) -> int:
            changed = number * factor
            if number and not (changed == int(changed) and knob.least <= changed <= knob.most):
                raise ValueError
            return int(changed)

        try:
            found = scaled(record, knob.path.split("."), change)
        except ValueError:
            continue
        if found != record:
            yield factor, found


@contextmanager
def in_effect(table: MutableMapping[str, Any], arch: str, record: Any) -> Iterator[None]:
    """Let calls on an architecture use a record."""
    from rocmkern.calls import plan

    before = dict(table)
    table[arch] = record
    plan.forget_all()
    try:
        yield
    finally:
        table.clear()
        table.update(before)
        plan.forget_all()


def search(space: Space, arch: str, measure: Measure, margin: float, say: Callable[[str], None]) -> Any:
    """The best record for an architecture: the present one, unless another one is better by the margin."""
    table = space.entries
    best, effect = tuned(table, arch), functools.partial(in_effect, table, arch)
    for knob in space.knobs:
        found = list(candidates(best, knob))
        if not found:
            say(f"{knob.path:<20} as it is: there is nothing to try")
            continue
        present, *scores = measure([best, *(r for _, r in found)], effect)
        if isinstance(present, str):
            raise ArgumentError("operation", f"one whose present sizes cannot be used ({present})", "another one")
        say(f"{knob.path:<20} as it is: {present.text}")
        usable = {i: score for i, score in enumerate(scores) if isinstance(score, Score)}
        first = min(usable, key=lambda i: usable[i], default=None)
        taken = first if first is not None and usable[first] < present.by(margin) else None
        if taken is not None and margin:
            again, once_more = measure([best, found[taken][1]], effect)
            assert isinstance(again, Score) and isinstance(once_more, Score)
            taken = taken if once_more < again.by(margin) else None
        for i, ((factor, _), score) in enumerate(zip(found, scores, strict=True)):
            text = score.text if isinstance(score, Score) else f"cannot be used: {score}"
            say(f"{'':<20}{factor:>6g} x: {text}{'  <- taken' if i == taken else ''}")
        best = best if taken is None else found[taken][1]
    return best


class Timed:
    """Measures records by running rows of the matrix."""

    def __init__(self, cases: Sequence[Any], target: str, rounds: int, say: Callable[[str], None]):
        from rocmkern.matrix import make_call
        from rocmkern.testing.bench import place_of

        self.rounds, self.say = rounds, say
        self.places = [place_of(case, target) for case in cases]
        calls = map(make_call, cases)
        self.functions = [place.kernel(call).function for place, call in zip(self.places, calls, strict=True)]

    def __call__(self, records: Sequence[Any], effect: Effect) -> list[Score | str]:
        self.say(f"compiling {len(records)} candidates")
        refusals = [self._refusal(record, effect) for record in records]
        if refusals[0]:
            return [reason or "the present sizes cannot be used" for reason in refusals]
        clocks = {
            i: [place.clock(function) for place, function in zip(self.places, self.functions, strict=True)]
            for i, reason in enumerate(refusals)
            if not reason
        }
        calls = [1] * len(self.functions)
        for number in range(1, self.rounds + 1):
            self.say(f"round {number} of {self.rounds}")
            for i, own in clocks.items():
                with effect(records[i]):
                    for clock, count in zip(own, calls, strict=True):
                        for _ in range(count):
                            clock()
            if number == 1:
                calls = [self._calls(clock) for clock in clocks[0]]
        return [reason or self._score(clocks[i], clocks[0]) for i, reason in enumerate(refusals)]

    def _refusal(self, record: Any, effect: Effect) -> str:
        """Why rows cannot be called with a record; they are compiled on the way."""
        try:
            with effect(record):
                for function in self.functions:
                    function()
        except RocmkernError as error:
            return why(error)
        return ""

    @staticmethod
    def _calls(clock: Any) -> int:
        """How often a row is called in a round, by what it took in the first one."""
        return max(1, min(MOST_CALLS, int(SECONDS_PER_ROUND / max(clock.medians()[clock.counts], 1e-9))))

    @staticmethod
    def _score(clocks: Sequence[Any], present: Sequence[Any]) -> Score:
        seconds, before = ([clock.medians()[clock.counts] for clock in each] for each in (clocks, present))
        mean = math.exp(sum(math.log(a / b) for a, b in zip(seconds, before, strict=True)) / len(seconds))
        times = ", ".join(f"{s * 1e3:.3f}" for s in seconds)
        return Score((mean,), f"{mean:5.2f} of the present time; {times} ms")


class Counted:
    """Judges records by the code that is compiled for an AMD architecture."""

    def __init__(self, cases: Sequence[Any], arch: str, say: Callable[[str], None]):
        from rocmkern.cli.isa import examine, require_compiler

        if architecture(arch).target != "hip":
            raise ArgumentError("--arch", arch, "an AMD architecture; others are measured on a device")
        require_compiler()
        self.cases, self.arch, self.say = cases, arch, say
        self.examine = functools.cache(examine)

    def __call__(self, records: Sequence[Any], effect: Effect) -> list[Score | str]:
        scores: list[Score | str] = []
        for number, record in enumerate(records, 1):
            self.say(f"compiling candidate {number} of {len(records)}")
            try:
                with effect(record):
                    scores.append(counters([self.examine(variant) for variant in self._variants()]))
            except RocmkernError as error:
                scores.append(why(error))
        return scores

    def _variants(self) -> list[Any]:
        """What the rows launch with the record that is in effect."""
        from rocmkern.cli._variants import ShapeDraw, VariantRecorder
        from rocmkern.matrix.registry import resolve
        from rocmkern.targets import launching_on

        recorder = VariantRecorder(self.arch)
        with launching_on(recorder):
            for case in self.cases:
                resolve(case.operation.function)(**case.operation.call(ShapeDraw(case)).arguments)
        return list(recorder.found)


def counters(rows: Sequence[Any]) -> Score | str:
    """The score of compiled variants (`rocmkern.cli.isa.Row`)."""
    failed = next((row.error for row in rows if row.error), None)
    if failed is not None:
        return why(failed)
    scratch = sum(row.resources["scratch"] for row in rows)
    spills = sum(row.resources["vgpr_spills"] + row.resources["sgpr_spills"] for row in rows)
    waves = sum(min(row.waves_by_registers, row.waves_by_lds) for row in rows) / len(rows)
    work = [row.loop["matrix"] or row.loop["fma"] or row.loop["global"] or 1 for row in rows]
    counted = ("matrix", "vector", "transcendental", "lds", "scratch", "flat", "global", "scalar")
    mix = sum(sum(row.loop[n] for n in counted) / w for row, w in zip(rows, work, strict=True)) / len(rows)
    text = f"{scratch} bytes of scratch, {spills} spills, {waves:.3g} waves, {mix:.3g} instructions per product"
    return Score((scratch, spills, -waves, mix), text)


def spelled(value: Any) -> str:
    """A record as it is written in a table: without the fields that are as they are by default."""
    if is_dataclass(value):
        given = [(f.name, getattr(value, f.name)) for f in fields(value) if getattr(value, f.name) != _default(f)]
        return f"{type(value).__name__}({', '.join(f'{name}={spelled(each)}' for name, each in given)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {spelled(each)}" for key, each in value.items()) + "}"
    return repr(value)


def _default(each: Any) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def edited(text: str, table: str, arch: str, record: Any) -> str:
    """The text of a module with a record as the entry for an architecture in a table of it."""
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.Assign | ast.AnnAssign)]
    named = {ast.unparse(n.targets[0] if isinstance(n, ast.Assign) else n.target): n.value for n in nodes}
    found, lines, new = named[table], text.splitlines(keepends=True), spelled(record)
    assert isinstance(found, ast.Dict)
    for key, value in zip(found.keys, found.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == arch:
            return text[: _offset(lines, value, "")] + new + text[_offset(lines, value, "end_") :]
    end = _offset(lines, found, "end_") - 1
    return f'{text[:end]}    "{arch}": {new},\n{text[end:]}'


def _offset(lines: Sequence[str], node: ast.AST, which: str) -> int:
    """Where a node starts, or ends, in the text."""
    line, column = getattr(node, f"{which}lineno") - 1, getattr(node, f"{which}col_offset")
    return sum(map(len, lines[:line])) + len(lines[line].encode()[:column].decode())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("operation", choices=sorted(SPACES))
    found.add_argument("--target", choices=("cpu", "hip", "cuda"), help="default: the one that is used here")
    found.add_argument("--arch", metavar="NAME", help="judge the code for an AMD architecture; nothing is run")
    found.add_argument("--case", action="append", metavar="PATTERN", help="of these rows (default: its benchmarks)")
    found.add_argument("--knob", action="append", metavar="PATTERN", help="of these knobs (default: all)")
    found.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help="calls of each (default: %(default)s)")
    found.add_argument("--margin", type=float, default=MARGIN, metavar="SHARE", help="default: %(default)s")
    found.add_argument("--matrix", type=Path, metavar="FILE", help="matrix file (default: that of `rocmkern matrix`)")
    found.add_argument("--write", action="store_true", help="change the table")
    return found


def cases_of(arguments: argparse.Namespace, target: str) -> list[Any]:
    """The rows that the command line means."""
    from rocmkern.cli._matrix_file import default_matrix
    from rocmkern.matrix import load_cases

    of_operation = [
        case
        for case in load_cases(arguments.matrix or default_matrix())[1]
        if case.operation.name == arguments.operation
        and case.facts.expect_error is None
        and case.skip_reason(target) is None
    ]
    wanted = [
        case
        for case in of_operation
        if (any(fnmatch(case.id, p) for p in arguments.case) if arguments.case else case.category == "benchmark")
    ]
    if not wanted:
        raise ArgumentError("--case", str(arguments.case), f"ids such as {', '.join(c.id for c in of_operation[:3])}")
    return wanted


def space_of(arguments: argparse.Namespace, arch: str) -> Space:
    """The space that the command line means."""
    space = SPACES[arguments.operation]
    patterns = arguments.knob or ["*"]
    knobs = tuple(k for k in space.knobs if k.concerns(arch) and any(fnmatch(k.path, p) for p in patterns))
    if not knobs:
        raise ArgumentError("--knob", str(arguments.knob), ", ".join(knob.path for knob in space.knobs))
    return replace(space, knobs=knobs)


def main(words: Sequence[str] | None = None) -> int:
    """Search, print, write."""
    import rocmkern

    arguments = parser().parse_args(words)
    progress = functools.partial(print, file=sys.stderr, flush=True)
    try:
        if arguments.rounds < 1:
            raise ArgumentError("--rounds", str(arguments.rounds), "1 or more")
        if arguments.arch:
            arch, space = arguments.arch, space_of(arguments, arguments.arch)
            record = search(space, arch, Counted(cases_of(arguments, "hip"), arch, progress), 0.0, print)
        else:
            with rocmkern.use(arguments.target):
                chosen = rocmkern.target()
                arch, cases = chosen.arch, cases_of(arguments, chosen.name)
                space = space_of(arguments, arch)
                print(f"{arguments.operation} on {arch}: {', '.join(case.id for case in cases)}")
                timed = Timed(cases, chosen.name, arguments.rounds, progress)
                record = search(space, arch, timed, arguments.margin, print)
    except RocmkernError as error:
        print(f"tune: {error}", file=sys.stderr)
        return 2
    present = tuned(space.entries, arch)
    if record == present:
        print(f"the sizes of {arguments.operation} for {arch} stay as they are")
        return 0
    path = Path(inspect.getfile(space.module))
    text = path.read_text(encoding="utf-8")
    changed = edited(text, space.name, arch, record)
    before, after = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    sys.stdout.writelines(difflib.unified_diff(before, after, path.name, path.name))
    if arguments.write:
        path.write_text(changed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
