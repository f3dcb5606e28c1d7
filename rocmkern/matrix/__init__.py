"""The declarative matrix: one table of cases from which tests and benchmarks come.

``load`` reads a file strictly, ``expand`` makes its cases, ``run_case`` runs one and checks everything that must hold.
A project declares its own operations with `Operation`, `Dim`, `Feature`, `Output`, `Domain`, `Call` and
`Registry`.
"""

from __future__ import annotations

from rocmkern.matrix.case import Case
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.expand import expand, load_cases
from rocmkern.matrix.inputs import make_call
from rocmkern.matrix.loader import Document, load, loads, nearest
from rocmkern.matrix.registry import (
    Call,
    Dim,
    Domain,
    Edit,
    Fault,
    Feature,
    Operation,
    Output,
    Peer,
    PeerUnavailable,
    Registry,
)
from rocmkern.matrix.runner import CaseFailure, CaseResult, reproduce, run_case
from rocmkern.matrix.tolerance import Comparison, compare
from rocmkern.runtime.errors import MatrixError

__all__ = [
    "Call",
    "Case",
    "CaseFailure",
    "CaseResult",
    "Comparison",
    "Dim",
    "Document",
    "Domain",
    "Draw",
    "Edit",
    "Fault",
    "Feature",
    "MatrixError",
    "Operation",
    "Output",
    "Peer",
    "PeerUnavailable",
    "Registry",
    "compare",
    "expand",
    "find_case",
    "load",
    "load_cases",
    "loads",
    "make_call",
    "nearest",
    "reproduce",
    "run_case",
]


def find_case(path: str, case_id: str) -> Case:
    """The case of a matrix file that has an id.

    Raises
    ------
    MatrixError
        When the file has a mistake, or no such case; the message names the nearest one.
    """
    cases = {case.id: case for case in load_cases(path)[1]}
    if case_id not in cases:
        raise MatrixError(f"unknown case {case_id!r};{nearest(case_id, cases)} {len(cases)} are known", file=str(path))
    return cases[case_id]
