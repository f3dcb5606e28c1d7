"""A part of the quick rows that stands for all of them, and stays the same when rows are added."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from rocmkern.matrix.case import Case


def in_fixed_order(cases: Iterable[Case], target: str) -> list[Case]:
    """The quick cases that a target runs, by the SHA-256 of their ids.

    The first N of them are a sample of all operations, and a new row changes it by one.
    """
    quick = [case for case in cases if case.category == "quick" and case.skip_reason(target) is None]
    return sorted(quick, key=lambda case: hashlib.sha256(case.id.encode()).hexdigest())
