"""What a rule of ``known_failures`` makes of a case's outcome: the same for pytest and for the command line."""

from __future__ import annotations

from rocmkern.matrix.case import Case
from rocmkern.matrix.runner import CaseFailure


def tolerated(case: Case, target: str, error: BaseException | None) -> str | None:
    """Why a failure is tolerated; None for a case that passed and should.

    Parameters
    ----------
    case : Case
    target : str
    error : exception or None
        How the case failed on the target; None: it passed.

    Raises
    ------
    CaseFailure
        The case passes although a rule says that it fails, or the day is over up to which its failure is tolerated.
    BaseException
        `error`, where no rule fits.
    """
    rule = case.known_failure(target)
    if rule is None:
        if error is not None:
            raise error
        return None
    if error is None:
        message = f"passes, but {rule.cases!r} says that it fails: {rule.issue}; remove that rule"
        raise CaseFailure("known_failure", message)
    if rule.expired():
        raise CaseFailure("known_failure", f"tolerated until {rule.expires}: {rule.issue}\n{error}") from error
    return f"known failure until {rule.expires}: {rule.issue}"
