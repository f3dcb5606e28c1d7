"""Matrix files with damage of every kind, drawn from a seed: what a slip of the hand, a broken disk or malice makes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

FRAGMENTS = [
    "{", "}", "[", "]", ":", ",", "-", "\n", "\t", "  ", "#", "&a", "*a", "*first", "<<:", "!!set", "!x", "|", ">",
    "'", '"', "?", "~", "null", "yes", "010", "1e-3", "1:2", ".inf", "2001-01-01", "\x00", "\ufeff", "é", "%", "@", "`",
    "---", "...", "rows", "shape", "kind: sin", "[1, 2]", "{a: 1}", "0x1F", "=", "\u2028", "\\U", "!!binary a",
    "99999999999", "\r", "\x85", "𝕏", "- - - - -", "<<: *first", "&first", "!!float", "%YAML 2.0\n---", "\U0010ffff",
]  # fmt: skip
# What may stand where something else belongs.
VALUES: list[Any] = [
    None, True, 0, -1, 1, 10**9, 10**29, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "x", "rows", "1e3",
    "é" * 500, [], {}, [[]], [None], {"a": {}}, [1, 2, 3], {"rows": 2}, {"kind": "normal"}, {"kind": 3}, ["f32"] * 300,
    {"reason": "why"}, "../../etc/passwd", "os", "a.b.c", ".", "json:loads", list(range(2000)), {"1": 1}, "2001-01-01",
]  # fmt: skip


def damaged_files(texts: list[str], count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """The name of the damage and the file, `count` times, made from sound files."""
    rng = random.Random(seed)
    kinds = list(KINDS.items())
    for index in range(count):
        name, damage = kinds[index % len(kinds)]
        yield name, damage(rng.choice(texts), rng)


def fragments(text: str, rng: random.Random) -> str:
    """A few stretches of text replaced by pieces of YAML, by nothing, or by their neighbours."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(text) + 1)
        stop = min(len(text), start + rng.choice([0, 0, 1, 3, 12]))
        text = text[:start] + rng.choice([*FRAGMENTS, "", text[start : start + 20] * 2]) + text[stop:]
    return text


def _bytes(text: str, rng: random.Random) -> bytes:
    raw = bytearray(text.encode())
    for _ in range(rng.choice([1, 1, 2, 5, 50])):
        position = rng.randrange(len(raw))
        change = rng.choice(("flip", "set", "delete", "insert"))
        if change == "flip":
            raw[position] ^= 1 << rng.randrange(8)
        elif change == "set":
            raw[position] = rng.randrange(256)
        elif change == "delete" and len(raw) > 1:
            del raw[position]
        else:
            raw.insert(position, rng.randrange(256))
    return bytes(raw)


def _truncated(text: str, rng: random.Random) -> bytes:
    raw = text.encode()
    start = rng.choice([0, 0, 0, rng.randrange(len(raw))])
    return raw[start : rng.randrange(start, len(raw) + 1)]


def _lines(text: str, rng: random.Random) -> bytes:
    """Lines in another order, twice, indented otherwise, or gone."""
    lines = text.splitlines(keepends=True)
    for _ in range(rng.randint(1, 3)):
        a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
        change = rng.choice(("swap", "again", "indent", "tab", "gone", "windows", "join"))
        if change == "swap":
            lines[a], lines[b] = lines[b], lines[a]
        elif change == "again":
            lines.insert(b, lines[a])
        elif change == "indent":
            lines[a] = " " * rng.randint(1, 9) + lines[a]
        elif change == "tab":
            lines[a] = "\t" + lines[a].lstrip(" ")
        elif change == "gone" and len(lines) > 1:
            del lines[a]
        elif change == "windows":
            lines[a] = lines[a].rstrip("\n") + "\r\n"
        else:
            lines[a] = lines[a].rstrip("\n")
    return "".join(lines).encode()


def _values(text: str, rng: random.Random) -> bytes:
    """Wrong types, huge numbers, and keys that are gone, new or misspelled, somewhere in the data."""
    data = yaml.safe_load(text)
    for _ in range(rng.randint(1, 3)):
        parent, key = rng.choice(list(_places(data)))
        change = rng.choice(("value", "value", "value", "gone", "key", "wrap", "elsewhere"))
        if change == "gone":
            del parent[key]
        elif change == "key" and isinstance(parent, dict):
            parent[rng.choice([str(key) + "s", str(key)[1:], str(key).upper(), "<<", "é", "kind", "x" * 3000])] = (
                parent.pop(key)
            )
        elif change == "wrap":
            parent[key] = rng.choice([[parent[key]], {"a": parent[key]}, str(parent[key]), [parent[key]] * 3])
        elif change == "elsewhere":
            other, place = rng.choice(list(_places(data)))
            parent[key] = copy.deepcopy(other[place])
        else:
            parent[key] = copy.deepcopy(rng.choice(VALUES))
        if not isinstance(data, (dict, list)) or not data:
            break
    style = rng.choice([None, True, False])
    return yaml.safe_dump(data, default_flow_style=style, allow_unicode=True, sort_keys=False).encode()


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key in data if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], (dict, list)):
            yield from _places(data[key])


def _duplicates(text: str, rng: random.Random) -> bytes:
    """A key twice in a mapping: of block style, of flow style, or through a merge key."""
    lines = text.splitlines(keepends=True)
    keyed = [index for index, line in enumerate(lines) if ":" in line and line.strip()[:1] not in ("#", "-", "{")]
    index = rng.choice(keyed)
    return "".join([*lines[:index], lines[index], *lines[index:]]).encode()


def _anchors(text: str, rng: random.Random) -> bytes:
    """Values that contain themselves, or that expand to billions."""
    width, depth = rng.choice([2, 9, 40]), rng.choice([3, 9, 30, 200])
    laugh = [f"  a0: &a0 [{', '.join(['1'] * width)}]"]
    laugh += [f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, depth)]
    merged = ["  m0: &m0 {rows: 1}"] + [
        f"  m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * width)}]}}" for i in range(1, depth)
    ]
    addition = rng.choice(
        [
            "x: &x [*x]\n",
            "x: &x {rows: *x}\n",
            "x: &x {<<: *x}\n",
            "x: &x {<<: [*x, *x], a: &y {<<: *y}}\n",
            "operations: &o {row_stats: *o}\n",
            "defaults:\n" + "\n".join(laugh) + "\n",
            "defaults:\n" + "\n".join(merged) + "\n",
            "groups: &g\n  sums: *g\n",
        ]
    )
    return (addition + text if rng.random() < 0.5 else text + addition).encode()


def _depths(text: str, rng: random.Random) -> bytes:
    """Nesting of thousands of levels, of each of YAML's ways to nest."""
    levels = rng.choice([38, 41, 60, 1000, 20_000])
    nested = rng.choice(["[" * levels, "{a: " * levels, "- " * levels, "? " * levels, "[" * levels + "]" * levels,
                         "\n".join(" " * i + "a:" for i in range(min(levels, 1000))), "&a [" * levels,
                         "!!seq [" * levels])  # fmt: skip
    start = rng.choice([0, len(text), text.index("groups:"), text.index("rows:") + 5])
    return (text[:start] + nested + rng.choice(["", "\n", "\n\n" + text[start:]])).encode()


def _sizes(text: str, rng: random.Random) -> bytes:
    """Products of axes, long lists, long names and long numbers."""
    several = ", ".join(map(str, range(rng.choice([100, 400]))))
    row = rng.choice(
        [
            f"      - {{shape: {{rows: 1}}, axes: {{columns: [{several}], cap: [{several}], window: [{several}]}}}}\n",
            f"      - {{axes: {{rows: [{several}], columns: [{several}], cap: [{several}]}}}}\n",
            f"      - {{shape: {{rows: {'9' * rng.choice([20, 31, 5000])}}}}}\n",
            f"      - {{features: {{cap: {'1' * 400}.0}}}}\n",
            f"      - {{name: {'n' * 100_000}}}\n",
            f"      - {{{', '.join(f'k{i}: {i}' for i in range(5000))}}}\n",
            f"      - {{shape: {{{', '.join(f'k{i}: {i}' for i in range(5000))}}}}}\n",
            "".join(f"      - {{nam: r{i}}}\n" for i in range(3000)),
            f"      - {{inputs: {{all: {{kind: values, values: [{', '.join(['x'] * 5000)}]}}}}}}\n",
        ]
    )
    end = text.index("rows:\n") + 6
    return (text[:end] + row + text[end:]).encode()


def _encodings(text: str, rng: random.Random) -> bytes:
    """Byte-order marks, other encodings, control characters."""
    return rng.choice(
        [
            lambda: b"\xef\xbb\xbf" * rng.randint(1, 3) + text.encode(),
            lambda: text.encode("utf-16"),
            lambda: text.encode("utf-16-le"),
            lambda: text.encode("utf-32"),
            lambda: text.replace("o", "ö").encode("latin-1"),
            lambda: text.replace(" ", "\u00a0", rng.randint(1, 30)).encode(),
            lambda: text.replace(
                "\n", rng.choice(["\r", "\x85", "\u2028", "\x00", "\x0b"]), rng.randint(1, 30)
            ).encode(),
            lambda: text.encode() + b"\x1b[31m",
            lambda: b"",
            lambda: rng.randbytes(rng.choice([1, 10, 1000])),
        ]
    )()


def _tags(text: str, rng: random.Random) -> bytes:
    """Tags on values: those of Python objects, of YAML's own types, and unknown ones."""
    tags = ["!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!!python/tuple [1]", "!!set {a}",
            "!!binary aGFsbG8=", "!!timestamp 2001-01-01", "!!int '7'", "!!float 7", "!!str 7", "!!bool 'yes'",
            "!!null ''", "!!omap [a: 1]", "!!pairs [a: 1]", "!!merge <<", "!own 1", "!<tag:yaml.org,2002:int> 3",
            "! 12", "!!map {}", "!!seq []", "!%C3%A9 1", "!!int 0x_1", "!!int 1:60", "!!float 1e999",
            "!!float .NaN"]  # fmt: skip
    lines = text.splitlines(keepends=True)
    for _ in range(rng.randint(1, 3)):
        at = rng.choice([index for index, line in enumerate(lines) if ": " in line])
        lines[at] = lines[at].partition(": ")[0] + ": " + rng.choice(tags) + "\n"
    return "".join(lines).encode()


def _long(text: str, rng: random.Random) -> bytes:
    """Hundreds of thousands of lines: rows, scalars, comments, and nothing; some end in the middle of something."""
    count = rng.choice([1000, 30_000, 300_000])
    line = rng.choice(["      - {shape: {rows: 1}}\n", "- 1\n", "# nothing\n", "\n", "  x\n", "a: b\n", "- &a [*a]\n"])
    before = rng.choice([text, "x:\n", "x: |\n", 'x: "\n', "? \n", ""])
    return (before + line * count + rng.choice(["", "{", "'", "\t"])).encode()


KINDS: dict[str, Callable[[str, random.Random], bytes]] = {
    "bytes": _bytes,
    "truncated": _truncated,
    "fragments": lambda text, rng: fragments(text, rng).encode("utf-8", "surrogatepass"),
    "lines": _lines,
    "values": _values,
    "duplicates": _duplicates,
    "anchors": _anchors,
    "depths": _depths,
    "sizes": _sizes,
    "encodings": _encodings,
    "tags": _tags,
    "long": _long,
}
