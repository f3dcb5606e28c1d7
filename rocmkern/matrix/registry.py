"""How a project declares its operations to the matrix.

A declaration says what the matrix cannot know: the function, its float64 reference, how arguments are made from a
row's dimensions, and what a call costs. Everything else (shapes, dtypes, inputs, tolerances) is data in the YAML file::

    from rocmkern.matrix import Call, Dim, Operation, Registry

    def double_call(draw):
        shape = (draw.dims["rows"], draw.dims["columns"])
        return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))

    OPERATIONS = Registry(
        Operation("double", function="mine:double", reference=lambda x: 2 * x, call=double_call,
                  dims=(Dim("rows", "r"), Dim("columns", "c")), arrays=("x",), exact=True)
    )
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rocmkern.matrix.draw import Draw
from rocmkern.ops.places import kernel_module

# A callable, or "module:attribute", which is imported when it is first called.
Function = Callable[..., Any] | str


@dataclass(frozen=True)
class Dim:
    """A dimension that rows of an operation give.

    Attributes
    ----------
    name : str
        Key in the row's ``shape``.
    label : str
        Short form in case ids.
    default : int, str or None
        Value, or the name of the dimension whose value is taken, when the row does not give it; None: required.
        A value that equals its default is left out of the case id.
    many : bool
        The value is a list of integers (an array's shape, or the lengths of packed sequences).
    """

    name: str
    label: str
    default: int | str | tuple[int, ...] | None = None
    many: bool = False


@dataclass(frozen=True)
class Feature:
    """An option that rows of an operation may set.

    Attributes
    ----------
    name : str
        Key in the row's ``features``.
    allowed : tuple
        Allowed values; a type stands for every value of that type, ``list`` for a list of numbers and nulls.
    default : object
        Value when the row does not set it; it is left out of the case id.
    """

    name: str
    allowed: tuple[Any, ...]
    default: Any = None

    def accepts(self, value: Any) -> bool:
        """Whether `value` is allowed."""
        if type(value) is type(self.default) and value == self.default:
            return True
        for choice in self.allowed:
            if choice is list:
                if isinstance(value, list) and all(type(item) in (int, float, type(None)) for item in value):
                    return True
            elif isinstance(choice, type):
                if type(value) is choice or (choice is float and type(value) is int):
                    return True
            elif type(choice) is type(value) and choice == value:
                return True
        return False

    def describe(self) -> str:
        """The allowed values in words."""
        words = {list: "a list of numbers and nulls", float: "a number", int: "an integer", str: "a string"}
        choices = (self.default, *self.allowed)
        return ", ".join(words.get(choice) or _yaml_text(choice) for choice in choices)


def _yaml_text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Output:
    """One output of an operation.

    Attributes
    ----------
    name : str
        Name in reports.
    dtype : str
        ``"input"`` (the row's dtype), the name of a dtype such as ``"f32"``, or that of a feature whose value is the
        name of a dtype, or None for the row's.
    feature : str, optional
        The output exists only when this feature is true.
    """

    name: str
    dtype: str = "input"
    feature: str | None = None

    def dtype_of(self, row: str, features: Mapping[str, Any]) -> str:
        """The name of its dtype in a case with these features of a row of this dtype."""
        if self.dtype in features:
            return features[self.dtype] or row
        return row if self.dtype == "input" else self.dtype


@dataclass
class Call:
    """Arguments of one call.

    Attributes
    ----------
    arrays : dict
        Array arguments by name; None for one that is left out.
    options : dict
        The other keyword arguments.
    out_shapes : tuple
        Shape of each output.
    """

    arrays: Mapping[str, np.ndarray | None]
    options: dict[str, Any] = field(default_factory=dict)
    out_shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """All keyword arguments."""
        return {**{name: array for name, array in self.arrays.items() if array is not None}, **self.options}


@dataclass(frozen=True)
class Peer:
    """Another implementation, to compare speed with.

    Attributes
    ----------
    name : str
        Name in rows and tables.
    prepare : callable
        ``prepare(call, case, target)`` returns a function of no arguments that does the same work once, on the device
        of the target, and returns the first output, or raises `PeerUnavailable` with the reason. On a GPU the work goes
        to the default stream.
    """

    name: str
    prepare: Callable[..., Callable[[], Any]]


class PeerUnavailable(Exception):
    """A peer is not installed or has no such feature; the message is the reason."""


@dataclass(frozen=True)
class Domain:
    """What fuzzing may draw for an operation: every row in it must hold.

    Attributes
    ----------
    dims : dict
        Smallest and largest size by dimension; 0 and 70 for one that is not named.
    features : dict
        Values by feature, for features that are numbers, or of which not every value is drawn.
    dtypes : tuple of str, optional
        All by default.
    accepts : callable, optional
        ``accepts(dims, features)``: whether these fit together.
    plain : tuple of str
        Arrays in whose drawn layouts nothing is repeated: repeated numbers would mean something else.
    """

    dims: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    features: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] | None = None
    accepts: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] | None = None
    plain: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """The declaration of one operation.

    Attributes
    ----------
    name : str
        Name in the YAML file and in case ids.
    function : callable or str
        The public function, ``function(**arrays, **options)``.
    reference : callable or str
        The same in float64 NumPy: arrays of floats arrive as float64, but those of 8 bits as they are.
    call : callable
        ``call(draw)`` makes the `Call` of a case; see `rocmkern.matrix.draw.Draw`.
    dims, features : tuple
        What a row may give.
    arrays : tuple of str
        Names of the arrays that ``inputs`` and ``memory`` of a row may name.
    outputs : tuple of Output
        Outputs in the order in which the function returns them.
    baseline : callable or str, optional
        The straightforward algorithm in the compute dtype, with the same arguments, rounded to the output dtypes; its
        error is the e of the tolerance rule. Without one, e is the rounding of the reference to the output dtype.
    roundings : callable or str, optional
        What roundings inside the operation cost, for each element of each output, with the same arguments; see
        `rocmkern.reference.roundings`. The e of the tolerance rule is at least that.
    exact : bool or callable
        Tolerance 0; a callable says so from the features of a case.
    out : bool
        The function takes ``out=`` (a tuple where it has several outputs).
    in_place : str, optional
        The array argument that ``out=`` may be.
    flops, nbytes : callable, optional
        Cost of a call from the case: ``flops(case)`` and ``nbytes(case)``.
    probabilities : callable, optional
        ``probabilities(call)`` returns float64 softmax weights of which the last axis is summed over, and the number
        of visible keys of each row; used to refuse one-hot inputs.
    hidden : callable, optional
        ``hidden(call, where)`` returns, by array name, a boolean array of elements that the mask hides (broadcast
        against the array).
    peers : tuple of Peer
        Other implementations for benchmark rows.
    on_device : bool
        The function takes arrays in the memory of a GPU.
    dense_on_device : tuple of str
        Arrays whose last axis must be contiguous there.
    only_on_device : callable, optional
        ``only_on_device(arrays)`` makes the launches that only arrays in the memory of a GPU lead to, on these arrays
        wherever they lie: so that their kernels are found without one.
    distinct : tuple of str
        Arrays of which no layout repeats elements: they are written, or repeated numbers would mean something else.
    domain : Domain, optional
        What fuzzing draws; an operation without one is not fuzzed.
    excerpts : callable or str, optional
        ``excerpts(call)`` gives calls that have some of its rows (`rocmkern.matrix.excerpts.Excerpt`), for rows of the
        table with ``invariant: true``.
    needs : tuple of str
        Modules without which its cases are skipped.
    gradient_of : str, optional
        The operation whose gradient it is: what rows of that one with ``direction: backward`` or ``both`` run.
    """

    name: str
    function: Function
    reference: Function
    call: Callable[[Draw], Call]
    dims: tuple[Dim, ...]
    arrays: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    outputs: tuple[Output, ...] = (Output("out"),)
    baseline: Function | None = None
    roundings: Function | None = None
    exact: bool | Callable[[Mapping[str, Any]], bool] = False
    out: bool = True
    in_place: str | None = None
    flops: Callable[..., float] | None = None
    nbytes: Callable[..., float] | None = None
    probabilities: Callable[[Call], tuple[np.ndarray, np.ndarray]] | None = None
    hidden: Callable[[Call, str], Mapping[str, np.ndarray]] | None = None
    peers: tuple[Peer, ...] = ()
    on_device: bool = True
    dense_on_device: tuple[str, ...] = ()
    only_on_device: Callable[[Mapping[str, Any]], None] | None = None
    distinct: tuple[str, ...] = ()
    domain: Domain | None = None
    excerpts: Function | None = None
    needs: tuple[str, ...] = ()
    gradient_of: str | None = None

    @cached_property
    def dim_table(self) -> dict[str, Dim]:
        """Dimensions by name."""
        return {dim.name: dim for dim in self.dims}

    @cached_property
    def feature_table(self) -> dict[str, Feature]:
        """Features by name."""
        return {feature.name: feature for feature in self.features}

    @cached_property
    def peer_table(self) -> dict[str, Peer]:
        """Peers by name."""
        return {peer.name: peer for peer in self.peers}

    def is_exact(self, features: Mapping[str, Any]) -> bool:
        """Whether a call with these features has tolerance 0."""
        return self.exact(features) if callable(self.exact) else self.exact

    def outputs_of(self, features: Mapping[str, Any]) -> tuple[Output, ...]:
        """The outputs that a call with these features has."""
        return tuple(output for output in self.outputs if output.feature is None or features.get(output.feature))


@dataclass(frozen=True)
class Edit:
    """A change of a kernel's text.

    Attributes
    ----------
    kernel : str
        ``"package.module:function"``, or the name of a kernel of this library and of its module.
    old, new : str
        What is replaced by what: an expression or statements, whatever their formatting, with ``...`` for the arguments
        of a call from there on (see `rocmkern.matrix.faults.syntax`). `old` must occur exactly once.
    """

    kernel: str
    old: str
    new: str

    @property
    def place(self) -> tuple[str, str]:
        """Module and name of the kernel."""
        module, _, name = self.kernel.rpartition(":")
        return module or kernel_module(name), name


@dataclass(frozen=True)
class Fault:
    """A seeded fault.

    Attributes
    ----------
    name : str
        Name in tables.
    description : str
        What is wrong, in one sentence.
    operations : tuple of str
        Operations of the registry that it can make wrong.
    edits : tuple of Edit
        Changes of kernels.
    replace : dict
        Tile operations by name, and functions that make the wrong one from the right one.
    patches : dict
        The same for functions of the runtime, named ``"package.module:Class.method"``. Such a fault is looked for by
        the checks of the runtime (`rocmkern.matrix.faults.runtime`), not by rows.
    """

    name: str
    description: str
    operations: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    replace: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = field(default_factory=dict)
    patches: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = field(default_factory=dict)


class Registry:
    """The operations of a project.

    Parameters
    ----------
    *operations : Operation
        Declarations; names must be unique.
    faults : iterable of Fault
        Seeded faults that the matrix must notice (``rocmkern matrix mutate``).

    Attributes
    ----------
    faults : dict of str to Fault
    """

    def __init__(self, *operations: Operation, faults: Iterable[Fault] = ()):
        self.faults: dict[str, Fault] = {fault.name: fault for fault in faults}
        self._operations: dict[str, Operation] = {}
        for operation in operations:
            if operation.name in self._operations:
                raise ValueError(f"operation {operation.name!r} is declared twice")
            self._operations[operation.name] = operation
        for operation in operations:
            if operation.gradient_of is not None and operation.gradient_of not in self._operations:
                raise ValueError(
                    f"{operation.name!r} is the gradient of {operation.gradient_of!r}, which is not declared"
                )

    def __contains__(self, name: object) -> bool:
        return name in self._operations

    def __getitem__(self, name: str) -> Operation:
        return self._operations[name]

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations.values())

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operations."""
        return tuple(self._operations)

    def gradient(self, name: str) -> Operation | None:
        """The gradient of an operation, where one is declared."""
        return next((operation for operation in self if operation.gradient_of == name), None)


def resolve(function: Function) -> Callable[..., Any]:
    """The callable behind a declaration's function, imported now if it was given as ``"module:attribute"``."""
    if callable(function):
        return function
    module_name, _, attribute = function.partition(":")
    target: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        target = getattr(target, part)
    return target
