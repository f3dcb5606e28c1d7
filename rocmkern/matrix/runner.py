"""Runs one case on one target and checks everything that must hold of a call.

* every output against its float64 reference, under the tolerance rule;
* outputs given with ``out=`` hold the same bits, are written everywhere and nowhere else;
* the same call twice gives the same bits;
* inputs, and the buffers around them, are unchanged to the byte;
* on a GPU, arrays in device memory, in the same layouts, give such results too, and a second call on others, by a plan,
  the same bits;
* the guard bands of every buffer of the runtime are as they were, after each launch;
* nothing is left in the ledger of buffers;
* in rows with ``invariant: true`` every row of the result is the same bits in other batches;
* float error handling of NumPy, working directory and environment of the process are as they were.

A row with ``expect_error`` must raise that error, name that argument, and write nothing.

What goes wrong in a kernel is found after the call, so a failure names the kernels that were launched up to then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

import rocmkern
from rocmkern.calls import results as _results
from rocmkern.matrix import inputs as _inputs
from rocmkern.matrix.case import Case
from rocmkern.matrix.device_memory import PlacedArray
from rocmkern.matrix.excerpts import difference
from rocmkern.matrix.expand import error_type
from rocmkern.matrix.process_state import ProcessState
from rocmkern.matrix.registry import Call, resolve
from rocmkern.matrix.tolerance import Comparison, compare
from rocmkern.runtime.errors import GuardBandError
from rocmkern.runtime.leaks import live_in_process
from rocmkern.runtime.manager import default_manager
from rocmkern.runtime.settings import MemorySettings
from rocmkern.targets import current_target
from rocmkern.targets.launches import Watcher, watching


class CaseFailure(AssertionError):
    """A case does not hold; the message says what was measured and how to reproduce it.

    Attributes
    ----------
    check : str
        Which check failed: ``parity``, ``type``, ``unwritten``, ``outside``, ``determinism``, ``out``, ``in_place``,
        ``inputs``, ``device``, ``invariance``, ``ledger``,
        ``process``, ``lock``, ``error``, ``speed`` or ``known_failure``.
    comparisons : tuple of Comparison
        What was measured, as far as it was.
    kernels : tuple of str
        The kernels that were launched before, each once; the last one launched comes last.
    """

    check: str
    comparisons: tuple[Comparison, ...]
    kernels: tuple[str, ...]

    def __init__(
        self,
        check: str,
        message: str,
        comparisons: tuple[Comparison, ...] = (),
        kernels: tuple[str, ...] = (),
    ):
        super().__init__(message)
        self.check, self.comparisons, self.kernels = check, comparisons, kernels

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\nkernels launched: {', '.join(self.kernels)}" if self.kernels else message

    def __reduce__(self) -> tuple[type[CaseFailure], tuple[Any, ...]]:
        return type(self), (self.check, self.args[0], self.comparisons, self.kernels)


@dataclass(frozen=True)
class CaseResult:
    """What was measured in a case that holds.

    Attributes
    ----------
    case, target : str
        Which case, where.
    comparisons : tuple of Comparison
        One per output.
    digests : tuple of str
        A hash of the bits of each output: equal where the bits are.
    code : tuple of str
        sha256 of each piece of machine code that ran, as the driver was given it; empty where there is no driver.
    """

    case: str
    target: str
    comparisons: tuple[Comparison, ...] = field(default=())
    digests: tuple[str, ...] = field(default=())
    code: tuple[str, ...] = field(default=())

    def record(self) -> dict[str, Any]:
        """Plain data for reports: what was measured of each output."""
        names = ("output", "error", "bound", "share", "parts", "e", "ulp")
        outputs = [{name: asdict(comparison)[name] for name in names} for comparison in self.comparisons]
        return {"case": self.case, "target": self.target, "outputs": outputs, "code": list(self.code)}


def reproduce(case: Case, target: str) -> str:
    """Five lines of Python that run a case again."""
    return "\n".join(
        (
            "import rocmkern",
            "from rocmkern.matrix import find_case, make_call, run_case",
            f"case = find_case({case.facts.file!r}, {case.id!r})",
            "arguments = make_call(case).arguments  # q=..., k=...: what the function is called with",
            f"print(run_case(case, {target!r}))",
        )
    )


def run_case(case: Case, target: str, *, poison: bool = True) -> CaseResult:
    """Run a case and check everything that must hold.

    Parameters
    ----------
    case : Case
    target : str
        ``"python"``, ``"cpu"``, ``"hip"`` or ``"cuda"``.
    poison : bool
        Fill new results and buffers with NaN and put guard bands around buffers; without it, memory is handed out as
        it lies in the pool.

    Raises
    ------
    CaseFailure
        Something does not hold.
    """
    with on_target(target, poison) as launched:
        try:
            return replace(_leaving_the_process(case, target), code=tuple(launched.code))
        except CaseFailure as failure:
            # Each once, where it was launched last.
            failure.kernels = tuple(reversed(dict.fromkeys(reversed(launched.kernels))))
            raise


def _leaving_the_process(case: Case, target: str) -> CaseResult:
    """Check a case, and that it leaves its process as it was; what it changed is undone for those that follow."""
    before = ProcessState()
    try:
        result = _check(case, target)
        if not before.changes():
            return result
        # A library that is loaded on the way may set something for itself, once. A call that does will do it again.
        after = ProcessState()
        before.restore()
        _check(case, target)
        changes = before.changes()
        if changes:
            raise CaseFailure("process", f"the call changed the process: {'; '.join(changes)}", result.comparisons)
    except BaseException:
        before.restore()
        raise
    after.restore()
    return result


def _check(case: Case, target: str) -> CaseResult:
    if case.facts.expect_error is not None:
        _check_error(case)
        return CaseResult(case.id, target)
    return CaseResult(case.id, target, *_check_call(case))


@dataclass(frozen=True)
class Launched:
    """The names of the kernels that were launched, and the sha256 of each piece of code, in order."""

    kernels: list[str] = field(default_factory=list)
    code: dict[str, None] = field(default_factory=dict)


@contextmanager
def on_target(target: str, poison: bool) -> Iterator[Launched]:
    """Choose the target, and let what goes wrong show; gives what is launched.

    With `poison`, new results and buffers are filled with NaN, and buffers have guard bands, which are looked at after
    each launch.
    """
    launched = Launched()
    with rocmkern.use(target), _results.poison_outputs(_inputs.fill_with_poison) if poison else nullcontext():
        manager = default_manager(current_target().device)
        before, manager.settings = manager.settings, MemorySettings(poison=poison, guard=poison)

        def look_at_guards(kernel: str) -> None:
            try:
                manager.check_guards(kernel)
            except GuardBandError as error:
                raise CaseFailure("outside", str(error)) from error

        try:
            watcher = Watcher(launched.kernels.append, look_at_guards, lambda code: launched.code.setdefault(code))
            with watching(watcher):
                yield launched
        finally:
            manager.settings = before


def rounding_costs(case: Case, call: Call) -> tuple[np.ndarray, ...] | None:
    """What roundings cost in every output, where the declaration says so."""
    if case.operation.roundings is None:
        return None
    with np.errstate(all="ignore"):
        return _as_tuple(resolve(case.operation.roundings)(**call.arguments))


def expected_outputs(case: Case, call: Call) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...] | None]:
    """float64 reference of every output, and the outputs of the baseline where there is one."""
    widened = {
        name: array.astype(np.float64) if _inputs.is_float(array) and array.itemsize > 1 else array
        for name, array in call.arrays.items()
        if array is not None
    }
    with np.errstate(all="ignore"):
        reference = _as_tuple(resolve(case.operation.reference)(**widened, **call.options))
        if case.operation.baseline is None:
            return reference, None
        return reference, _as_tuple(resolve(case.operation.baseline)(**call.arguments))


def compare_outputs(case: Case, call: Call, outputs: tuple[np.ndarray, ...]) -> tuple[Comparison, ...]:
    """Every output of a call against its reference, under the case's tolerance."""
    references, baselines = expected_outputs(case, call)
    costs = rounding_costs(case, call)
    declared = case.operation.outputs_of(case.features)
    return tuple(
        compare(
            out,
            np.asarray(reference, np.float64),
            None if baselines is None else baselines[index],
            None if costs is None else costs[index],
            tolerance=case.facts.tolerance,
            exact=case.operation.is_exact(case.features),
            name=declared[index].name,
        )
        for index, (out, reference) in enumerate(zip(outputs, references, strict=True))
    )


def _check_call(case: Case) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    call = _inputs.make_call(case)
    function = resolve(case.operation.function)
    before, live = _snapshot(call.arguments), len(live_in_process())

    given = None
    if case.operation.out:
        # First, because these outputs are poisoned and have something around them: a function that allocates may do
        # that where a write past the end hits something else.
        given = _check_out(case, call, function)
        _check_inputs(before, "the call with out=")
    outputs = _as_tuple(function(**call.arguments))
    _check_types(case, call, outputs)
    _check_inputs(before, "the call")
    comparisons = compare_outputs(case, call, outputs)
    if not all(comparison.ok for comparison in comparisons):
        text = "\n".join(comparison.describe() for comparison in comparisons if not comparison.ok)
        raise CaseFailure("parity", text, comparisons)

    again = _as_tuple(function(**call.arguments)) if given is None else given
    _check_same(case, call, function, outputs, again)
    if case.operation.in_place is not None:
        _check_in_place(case, call, function, outputs)
    _check_inputs(before, "another call")
    if case.operation.out and case.operation.on_device:
        _check_device_memory(case, call, function)

    if case.facts.invariant:
        _check_invariance(case, call, function)
        _check_inputs(before, "a batch-invariant call")

    del again, given
    left = len(live_in_process()) - live
    if left > 0:
        raise CaseFailure("ledger", f"{left} buffers are alive after the call", comparisons)
    return comparisons, tuple(hashlib.sha256(out.tobytes()).hexdigest() for out in outputs)


def _check_types(case: Case, call: Call, outputs: tuple[Any, ...]) -> None:
    declared = case.operation.outputs_of(case.features)
    if len(outputs) != len(declared):
        raise CaseFailure("type", f"returned {len(outputs)} outputs, declared are {len(declared)}")
    for index, (output, out) in enumerate(zip(declared, outputs, strict=True)):
        dtype, shape = _inputs.output_dtype(case, index), tuple(call.out_shapes[index])
        if not isinstance(out, np.ndarray) or out.dtype != dtype or out.shape != shape:
            given = f"{getattr(out, 'dtype', type(out).__name__)}{list(getattr(out, 'shape', ()))}"
            raise CaseFailure("type", f"output {output.name} is {given}, expected {dtype}{list(shape)}")
        _check_written(output.name, out)


def _check_written(name: str, out: np.ndarray) -> None:
    untouched, alternative = _inputs.is_poison(out), ""
    if current_target().device is not None and not untouched.any():
        # A GPU writes to buffers of the runtime, whose poison is also what lies around the inputs.
        untouched, alternative = _inputs.is_poison_of_runtime(out), " (or were computed from memory beside an input)"
    if untouched.any():
        first = tuple(int(part) for part in np.argwhere(untouched)[0])
        message = f"output {name}: {untouched.sum()} elements were not written{alternative}, first {first}"
        raise CaseFailure("unwritten", message)


def _check_out(case: Case, call: Call, function: Callable[..., Any]) -> tuple[np.ndarray, ...]:
    """The call with poisoned outputs given to it; returns them after checking what was written."""
    out_argument = _poisoned_outputs(case, call)
    given = _as_tuple(out_argument)
    around = [_Surroundings(out) for out in given]
    returned = _as_tuple(function(**call.arguments, out=out_argument))
    if len(returned) != len(given) or any(a is not b for a, b in zip(returned, given, strict=True)):
        _check_types(case, call, returned)
        raise CaseFailure("out", "a call with out= must return the arrays that it was given")
    for output, out, surroundings in zip(case.operation.outputs_of(case.features), given, around, strict=True):
        _check_written(output.name, out)
        if not surroundings.unchanged():
            where = surroundings.describe()
            raise CaseFailure(
                "outside", f"output {output.name}: memory beside the array given with out= was written, {where}"
            )
    return given


def _poisoned_outputs(case: Case, call: Call) -> Any:
    """What ``out=`` is given: one array, or a tuple where the operation has several outputs."""
    given = tuple(
        _inputs.poisoned(tuple(shape), _inputs.output_dtype(case, index), case.memory_of("out"))
        for index, shape in enumerate(call.out_shapes)
    )
    return given if len(given) > 1 else given[0]


class _Surroundings:
    """The bytes of a buffer that do not belong to a view of it."""

    def __init__(self, view: np.ndarray):
        self.buffer = _inputs.owner(view)
        # Marking the elements in a copy of the buffer tells which bytes are the view's.
        offset = view.__array_interface__["data"][0] - self.buffer.__array_interface__["data"][0]
        marks = np.zeros(self.buffer.shape, np.uint8)
        if view.size:
            word = f"u{view.itemsize}"
            np.ndarray(view.shape, word, marks, offset, view.strides)[...] = np.iinfo(word).max
        self.mask = marks == 0
        self.before = self.buffer[self.mask].copy()

    def unchanged(self) -> bool:
        return bool((self.buffer[self.mask] == self.before).all())

    def describe(self) -> str:
        """How many bytes changed, and how near to the view the nearest one is."""
        changed = np.flatnonzero(self.mask)[self.buffer[self.mask] != self.before]
        own = np.flatnonzero(~self.mask)
        if not own.size:
            return f"{changed.size} bytes"
        before, behind = changed[changed < own[0]], changed[changed > own[-1]]
        if before.size:
            return f"{changed.size} bytes, the nearest {own[0] - before[-1]} bytes before its start"
        if behind.size:
            return f"{changed.size} bytes, the nearest {behind[0] - own[-1] - 1} bytes past its end"
        return f"{changed.size} bytes between its elements"


def _check_same(
    case: Case,
    call: Call,
    function: Callable[..., Any],
    outputs: tuple[np.ndarray, ...],
    again: tuple[np.ndarray, ...],
) -> None:
    """Both calls must give the same bits; if not, a third tells chance from a difference of the two ways."""
    for index, output in enumerate(case.operation.outputs_of(case.features)):
        if _same_bits(outputs[index], again[index]):
            continue
        third = _as_tuple(function(**call.arguments))[index]
        differing = int((_bits(outputs[index]) != _bits(again[index])).sum())
        if case.operation.out and _same_bits(outputs[index], third):
            message = f"output {output.name}: a call with out= differs from one without in {differing} bytes"
            raise CaseFailure("out", message)
        raise CaseFailure("determinism", f"output {output.name}: two calls differ in {differing} bytes")


def _check_device_memory(case: Case, call: Call, function: Callable[..., Any]) -> None:
    """Two calls on tensors of the GPU that the target runs on, at different addresses."""
    device = current_target().device
    if device is None:
        return
    if any(_inner_step(call.arrays.get(name)) for name in case.operation.dense_on_device):
        return  # refused, which rows of bad arguments show
    manager, results = default_manager(device), []
    declared = case.operation.outputs_of(case.features)
    with ExitStack() as alive:
        for _ in range(2):
            arrays = {name: PlacedArray(x, manager, alive) for name, x in call.arguments.items() if _is_array(x)}
            given = [PlacedArray(out, manager, alive) for out in _as_tuple(_poisoned_outputs(case, call))]
            tensors = tuple(out.tensor for out in given)
            arguments = call.arguments | {name: array.tensor for name, array in arrays.items()}
            function(**arguments, out=tensors if len(tensors) > 1 else tensors[0])
            manager.wait()
            results.append(tuple(np.array(out.to_numpy()) for out in given))
            for name, array in arrays.items():
                if array.changed():
                    raise CaseFailure("inputs", f"a call on arrays in device memory changed the buffer of {name}")
            for output, out, array in zip(declared, results[-1], given, strict=True):
                _check_written(output.name, out)
                if beside := array.changed_beside():
                    message = f"output {output.name}: {beside} bytes beside an array in device memory were written"
                    raise CaseFailure("outside", message)
    first, second = results
    comparisons = compare_outputs(case, call, first)
    if not all(comparison.ok for comparison in comparisons):
        text = "\n".join(comparison.describe() for comparison in comparisons if not comparison.ok)
        raise CaseFailure("device", f"arrays in device memory:\n{text}", comparisons)
    for index, output in enumerate(declared):
        if not _same_bits(first[index], second[index]):
            differing = int((_bits(first[index]) != _bits(second[index])).sum())
            message = f"output {output.name}: two calls on arrays in device memory differ in {differing} bytes"
            raise CaseFailure("device", message)


def _is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def _inner_step(array: np.ndarray | None) -> bool:
    """Whether the elements of a row do not lie side by side."""
    return array is not None and array.ndim > 0 and array.shape[-1] > 1 and array.strides[-1] != array.itemsize


def _check_in_place(case: Case, call: Call, function: Callable[..., Any], outputs: tuple[np.ndarray, ...]) -> None:
    name = case.operation.in_place
    assert name is not None
    arguments = dict(call.arguments)
    arguments[name] = np.array(arguments[name])
    returned = _as_tuple(function(**arguments, out=arguments[name]))
    if returned[0] is not arguments[name] or not _same_bits(arguments[name], outputs[0]):
        raise CaseFailure("in_place", f"a call with out={name} differs from one with an output of its own")


def _check_invariance(case: Case, call: Call, function: Callable[..., Any]) -> None:
    """The call within `rocmkern.batch_invariant` is right, and so are the bits of its excerpts."""
    with rocmkern.batch_invariant():
        outputs = _as_tuple(function(**call.arguments))
    comparisons = compare_outputs(case, call, outputs)
    if not all(comparison.ok for comparison in comparisons):
        text = "\n".join(comparison.describe() for comparison in comparisons if not comparison.ok)
        raise CaseFailure("invariance", f"a batch-invariant call:\n{text}", comparisons)
    assert case.operation.excerpts is not None
    message = difference(case.operation.function, case.operation.excerpts, call, outputs)
    if message is not None:
        raise CaseFailure("invariance", message, comparisons)


def _check_error(case: Case) -> None:
    expected = case.facts.expect_error
    assert expected is not None
    arguments = _inputs.make_bad_call(case)
    if "out" not in arguments and case.operation.out:
        arguments["out"] = _poisoned_outputs(case, _inputs.make_call(case))
    before, live = _snapshot(arguments), len(live_in_process())
    wanted = error_type(expected.type)
    try:
        resolve(case.operation.function)(**arguments)
    except wanted as error:
        named = getattr(error, "argument", None)
        if named != expected.argument:
            raise CaseFailure(
                "error", f"the error names the argument {named!r}, expected {expected.argument!r}: {error}"
            ) from error
        if str(error) == "" or expected.argument not in str(error):
            raise CaseFailure("error", f"the message does not name {expected.argument!r}: {error}") from error
    except Exception as error:
        raise CaseFailure(
            "error", f"expected {expected.type} for {expected.argument!r}, got {type(error).__name__}: {error}"
        ) from error
    else:
        raise CaseFailure("error", f"nothing was raised; expected {expected.type} for {expected.argument!r}")
    _check_inputs(before, "the refused call")
    left = len(live_in_process()) - live
    if left > 0:
        raise CaseFailure("ledger", f"the refused call left {left} buffers")


def _snapshot(arguments: Mapping[str, Any]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The buffers behind the array arguments, and copies of their bytes."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in arguments.items():
        for index, item in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(item, np.ndarray) and item.dtype != object:
                arrays[f"{name}[{index}]" if isinstance(value, tuple) else name] = _inputs.owner(item)
    return {name: (array, _bits(array)) for name, array in arrays.items()}


def _check_inputs(before: Mapping[str, tuple[np.ndarray, np.ndarray]], what: str) -> None:
    for name, (array, bits) in before.items():
        now = _bits(array)
        if not np.array_equal(now, bits):
            raise CaseFailure("inputs", f"{what} changed {int((now != bits).sum())} bytes of the buffer of {name}")


def _bits(array: np.ndarray) -> np.ndarray:
    """A copy of the bytes of an array, in logical order."""
    return np.frombuffer(array.tobytes(), np.uint8)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
