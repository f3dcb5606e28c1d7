"""Samples of other projects' tests, and what is reported of them: what `flash_attn_tests` and `liger_tests` share."""

from __future__ import annotations

import argparse
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

Row = TypeVar("Row")


def add_arguments(parser: argparse.ArgumentParser, rows: int) -> None:
    """What both can be told; ``rows`` is how many are drawn unless told."""
    parser.add_argument("--device", default="cuda", help="where tensors lie: cuda (ROCm's too) or cpu")
    parser.add_argument("--rows", type=int, default=rows, help="how many sets of parameters are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--test", default="", help="only tests whose name, as it is reported, contains this")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no row after so many (default: all)")


def drawn(tests: Iterable[list[Row]], seed: int, count: int) -> list[Row]:
    """So many of the rows of tests, which are shuffled, from each test as many as from the others."""
    draw, shuffled = random.Random(seed), []
    for rows in tests:
        draw.shuffle(rows)
        shuffled.append(rows)
    return [row for turn in itertools.zip_longest(*shuffled) for row in turn if row is not None][:count]


def report(
    options: argparse.Namespace,
    count: int,
    outcomes: Mapping[str, Counter[str]],
    notes: Mapping[str, Counter[str]],
) -> Counter[str]:
    """Print what came of so many rows, by tests, and ``notes`` by what is said of them; how many came to what."""
    print(f"\n{options.device}, seed {options.seed}: {count} sets of parameters drawn")
    for name, numbers in outcomes.items():
        print(f"  {name}: {', '.join(f'{number} {outcome}' for outcome, number in sorted(numbers.items()))}")
    for words, numbers in notes.items():
        for reason, number in numbers.most_common():
            print(f"  {words}: {reason} ({number})")
    total = sum(outcomes.values(), Counter[str]())
    print(f"  in all: {dict(total)}")
    return total
