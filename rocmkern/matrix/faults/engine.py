"""Seeded faults: kernels and tile operations that are wrong on purpose, to prove that the matrix would notice.

A fault is a change of a kernel's text, or another function in place of a tile operation or of one of the runtime.
`inject` puts it in for a ``with`` block, on the python target, where a kernel is the function that one reads.
`caught_by` says which cases fail then, or which checks of the runtime; a fault that nothing catches means that a row is
missing.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from rocmkern.calls.plan import forget_all
from rocmkern.matrix.case import Case
from rocmkern.matrix.faults.anchors import FaultError
from rocmkern.matrix.faults.runtime import failing_checks
from rocmkern.matrix.faults.syntax import replaced
from rocmkern.matrix.registry import Edit, Fault
from rocmkern.matrix.runner import run_case
from rocmkern.tile.language.kernel import DEVICE_FUNCTIONS

__all__ = ["Edit", "Fault", "FaultError", "caught_by", "inject"]

# Where kernels find the names of the tile language.
TILE = "rocmkern.tile"


@contextmanager
def inject(fault: Fault) -> Iterator[None]:
    """Put a fault in for the ``with`` block.

    Raises
    ------
    FaultError
        When the text that it changes is not in the kernel, or not once, or what it puts there is no Python, or a name
        that it gives does not exist.
    """
    with ExitStack() as stack:
        try:
            for edit in fault.edits:
                module = importlib.import_module(edit.place[0])
                stack.enter_context(_attribute(module, edit.place[1], _edited(module, edit, fault.name)))
            tile = importlib.import_module(TILE)
            for name, make in fault.replace.items():
                stack.enter_context(_attribute(tile, name, make(getattr(tile, name))))
            for place, make in fault.patches.items():
                owner, name = _owner_of(place)
                stack.enter_context(_attribute(owner, name, make(getattr(owner, name))))
            # Nothing is launched again that was launched without the fault, and later nothing with it.
            forget_all()
            stack.callback(forget_all)
        except (ImportError, AttributeError, NameError, SyntaxError, OSError) as error:
            raise FaultError(f"fault {fault.name} cannot be put in: {type(error).__name__}: {error}") from error
        yield


def caught_by(
    fault: Fault, cases: Iterable[Case], at_most: int | None = None, sound: dict[str, bool] | None = None
) -> list[str]:
    """Ids of the cases that fail with a fault put in; for a fault of the runtime, names of the checks that fail.

    What fails without the fault as well proves nothing and does not count.

    Parameters
    ----------
    fault : Fault
    cases : iterable of Case
        Those of other operations, those that do not run on the python target, and those that are known to fail there,
        are passed over.
    at_most : int, optional
        Stop after so many, whichever these are.
    sound : dict, optional
        Whether cases pass without a fault, by id; what is found out is put in, for the next fault.

    Raises
    ------
    FaultError
        The fault does not fit the kernels, or its text is no Python that runs.
    """
    if fault.patches:
        with inject(fault):
            failing = list(failing_checks())
        unsound = failing_checks() if failing else {}
        return [f"runtime check {name}" for name in failing if name not in unsound][:at_most]
    known = {} if sound is None else sound
    usable = [
        case
        for case in cases
        if case.operation.name in fault.operations
        and case.skip_reason("python") is None
        and case.known_failure("python") is None
    ]
    candidates = iter(usable if at_most is None else _in_turns(usable))
    caught: list[str] = []
    while at_most is None or len(caught) < at_most:
        failing = _failing(fault, candidates, None if at_most is None else at_most - len(caught))
        if not failing:
            break
        for case in failing:
            if case.id not in known:
                known[case.id] = not _fails(case)
            if known[case.id]:
                caught.append(case.id)
    return caught


def _in_turns(cases: Iterable[Case]) -> list[Case]:
    """The first case of each row, then the second of each: some of them notice a fault sooner than those of one row.

    Behind them come those that are called several times.
    """
    seen: Counter[int] = Counter()
    turns = []
    for case in cases:
        row = id(case.facts)
        turns.append((case.facts.invariant, seen[row], case))
        seen[row] += 1
    return [case for *_, case in sorted(turns, key=lambda turn: turn[:2])]


def _failing(fault: Fault, cases: Iterator[Case], at_most: int | None) -> list[Case]:
    """The next cases that fail with a fault put in, at most so many; takes from the iterator what it needs."""
    failing: list[Case] = []
    with inject(fault):
        for case in cases:
            try:
                run_case(case, "python")
            except (NameError, SyntaxError) as error:
                # Whatever the kernel computes, this would fail: the mistake is the fault's own.
                raise FaultError(
                    f"fault {fault.name}: its text does not run: {type(error).__name__}: {error}"
                ) from error
            except (Exception, SystemExit):
                failing.append(case)
            if at_most is not None and len(failing) >= at_most:
                break
    return failing


def _fails(case: Case) -> bool:
    try:
        run_case(case, "python")
    except (Exception, SystemExit):
        return True
    return False


def _owner_of(place: str) -> tuple[Any, str]:
    """The object that has the attribute ``"package.module:Class.name"``, and its name."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


@contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _edited(module: types.ModuleType, edit: Edit, fault: str) -> Callable[..., Any]:
    """The kernel of a copy of its module, and of copies of those whose device functions it calls.

    The edit is one of the kernel's module or, where that has nothing of the kind, of one of the others.
    """
    modules = _with_helpers(module)
    edits = {module.__name__: replaced(inspect.getsource(module), edit.old, edit.new)}
    if not edits[module.__name__][1]:
        edits = {each.__name__: replaced(inspect.getsource(each), edit.old, edit.new) for each in modules}
    found = sum(count for _, count in edits.values())
    if found != 1:
        raise FaultError(f"fault {fault}: {edit.old!r} occurs {found} times in kernel {edit.kernel}")
    copies: dict[str, types.ModuleType] = {}
    registered = len(DEVICE_FUNCTIONS)
    try:
        for each in modules:
            text, count = edits.get(each.__name__, ("", 0))
            copy = copies[each.__name__] = types.ModuleType(each.__name__)
            copy.__file__ = f"<{each.__name__} of {edit.kernel} with the fault {fault}>"
            text = text if count else inspect.getsource(each)
            # Tracebacks, and whoever else asks for the source, get the text that runs.
            linecache.cache[copy.__file__] = (len(text), None, text.splitlines(keepends=True), copy.__file__)
            exec(compile(text, copy.__file__, "exec"), copy.__dict__)
    finally:
        # The wrong device functions are reached through the wrong kernel only.
        del DEVICE_FUNCTIONS[registered:]
    for copy in copies.values():
        for name, value in list(vars(copy).items()):
            home = copies.get(getattr(value, "__module__", None) or "")
            if home is not None and home is not copy and inspect.isfunction(value):
                setattr(copy, name, getattr(home, value.__name__))
    return getattr(copies[module.__name__], edit.place[1])


def _with_helpers(module: types.ModuleType) -> list[types.ModuleType]:
    """A module with a kernel, and the modules whose device functions it calls, each once."""
    found = [module]
    for each in found:
        for value in vars(each).values():
            if inspect.isfunction(value) and value in DEVICE_FUNCTIONS:
                home = importlib.import_module(value.__module__)
                if home not in found:
                    found.append(home)
    return found
