"""The public operations as operators of PyTorch, ``torch.ops.rocmkern.NAME``, and the way of a public call to them.

The schema of an operator follows from the signature of the operation (`signatures`), what it gives from `results`:

    NAME                     one result (two of `merge_attention` and `linear_cross_entropy`)
    NAME.lse, NAME.residual  two results: of attention with ``return_lse=True``, of `rms_norm` with a residual
    NAME.out, NAME.lse_out   the same, written to ``out`` (and ``out_second``); they return nothing

Where it depends on the arguments how many results there are, `NAME` gives a list of them, and takes one as ``out``.

`rope_append_kv` writes to the caches, and returns nothing. Each overload has one kernel for all devices, which is the
public function; a fake kernel, which gives empty tensors of the right shape; where PyTorch has such rules a kernel for
autocast (`autocast`); and, where there is one, a formula for gradients (`gradients`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from rocmkern.calls import invariance
from rocmkern.calls.adapters.to_torch import as_torch
from rocmkern.calls.notes import thread
from rocmkern.calls.routing import OPERATIONS
from rocmkern.ops.places import modules
from rocmkern.runtime.errors import ArgumentError
from rocmkern.torch import autocast, gradients
from rocmkern.torch.results import RESULTS, Results
from rocmkern.torch.signatures import NoTensorError, Parameter, declared, decoded, encoded, parameters_of

_NOT_IN_A_GRAPH = (
    "an argument that no graph can hold: inside torch.compile arrays are tensors of PyTorch (no NumPy arrays, no "
    "DeviceTensor such as a KVCache has, no tensors of a checkpoint), and there is no stream="
)
#: Element types of NumPy arrays that PyTorch has.
_DTYPES = frozenset(["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
#: Names of the parameters of overloads that write their results.
OUTS = ("out", "out_second")

LIBRARY = torch.library.Library("rocmkern", "DEF")


class Overload(NamedTuple):
    """One schema of an operator.

    Attributes
    ----------
    name : str
        As PyTorch has it, such as ``"rocmkern::flash_attention.lse"``.
    op : torch._ops.OpOverload
    outs : tuple of str
        Names of the parameters that results are written to.
    """

    name: str
    op: Any
    outs: tuple[str, ...]


class Operator(NamedTuple):
    """The overloads of a public operation.

    Attributes
    ----------
    parameters : tuple of Parameter
    results : Results
    overloads : dict
        By (whether the second result is asked for, whether ``out`` is given).
    """

    parameters: tuple[Parameter, ...]
    results: Results
    overloads: dict[tuple[bool, bool], Overload]


# From a public call to an operator. PyTorch's tracer looks into these functions, so they are plain.


def call(operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a public operation through its operator; directly where an argument is none that operators take.

    Raises
    ------
    ArgumentError
        A tensor asks for a gradient, and there is none.
    """
    operator = OPERATORS.get(operation.__name__)
    if operator is None:
        return _directly(operation, args, kwargs)
    try:
        given = _by_name(operator, args, kwargs)
        outs, second = _outs(kwargs), _second(operator, kwargs)
        if not second and operator.results.second in given:
            del given[operator.results.second]  # None
        values = encoded(operator.parameters, given)
        overload = operator.overloads.get((second, bool(outs)))
        if overload is None:
            raise NoTensorError
        if outs and len(outs) < len(overload.outs):
            outs += _others(operator, given, len(outs))
        if outs and len(outs) != len(overload.outs) and not operator.results.many:
            raise NoTensorError
    except NoTensorError:
        return _directly(operation, args, kwargs)
    if outs and operator.results.many:
        values["out"] = list(outs)
    else:
        for name, out in zip(overload.outs, outs):  # noqa: B905
            values[name] = out
    gradients.refuse(overload.name, values)
    _check_block()
    if not torch.compiler.is_dynamo_compiling() and gradients.is_plain(values):
        result = gradients.called_directly(overload.name, values)
    else:
        result = overload.op(**values)
    if operator.results.written:
        return tuple([values[name] for name in operator.results.written])
    if outs or operator.results.many:
        found = outs or tuple(result)
        return found if len(found) > 1 else found[0]
    return result


def _check_block() -> None:
    """Refuse to export a call within `batch_invariant`: operators ask for the block when they run."""
    if _is_exporting() and invariance.active():
        allowed = "an export outside of it, and calls of what was exported within it"
        raise ArgumentError("batch_invariant", "a block that is not part of an exported graph", allowed)


_check_block._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)  # PyTorch 2.7


def _by_name(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that are parameters of its operator, by their names."""
    if len(args) > len(operator.parameters) or kwargs.get("stream") is not None:
        raise NoTensorError
    given = {}
    for i in range(len(args)):
        name, _, _, keyword = operator.parameters[i]
        if keyword or name in kwargs:
            raise NoTensorError
        given[name] = args[i]
    for name, value in kwargs.items():
        if name not in ("stream", "out", "return_lse"):
            given[name] = value
    return given


def _second(operator: Operator, kwargs: dict[str, Any]) -> bool:
    """Whether a call asks for the second result."""
    asked = kwargs.get(operator.results.second)
    if operator.results.second == "return_lse" and asked is not None and not isinstance(asked, bool):
        raise NoTensorError
    return asked is not None and asked is not False


def _outs(kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What the results are written to; nothing where that is not given."""
    out = kwargs.get("out")
    if out is None:
        return ()
    outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    for each in outs:
        if not isinstance(each, torch.Tensor):
            raise NoTensorError
    return outs


def _others(operator: Operator, given: dict[str, Any], first: int) -> tuple[Any, ...]:
    """New tensors for the results of which the caller gives no ``out``."""
    if operator.results.second == "residual":
        raise NoTensorError  # `rms_norm` wants both
    return _empty(operator.results.rule(**given)[first:], given)


def _empty(results: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, ...]:
    """New tensors beside the first argument, which says where results lie."""
    beside = next(iter(given.values()))
    return tuple([beside.new_empty(shape, dtype=dtype) for shape, dtype in results])


def _directly(operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    operator = OPERATORS.get(operation.__name__)
    if operator is not None:
        names = [parameter.name for parameter in operator.parameters]
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        beside_tensor = isinstance(named.get(names[0]), torch.Tensor)
        converted = {name: _as_torch_has_it(name, x, beside_tensor) for name, x in named.items()}
        if len(args) <= len(names) and any(converted[name] is not x for name, x in named.items()):
            return call(operation, tuple([converted[name] for name in names[: len(args)]]),
                        {name: converted[name] for name in kwargs})  # fmt: skip
        if torch.is_grad_enabled():
            _refuse_what_no_operator_takes(operation, operator, named)
    return operation(*args, **kwargs)


def _as_torch_has_it(name: str, x: Any, beside_tensor: bool) -> Any:
    """Numbers of NumPy as Python's, and arrays, where results are tensors, as tensors of the same memory; else x."""
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, np.ndarray):
        return as_torch(name, x, (x.dtype,)) if beside_tensor and x.dtype.name in _DTYPES else x
    if type(x) is tuple and any(isinstance(each, np.generic) for each in x):
        return tuple([_as_torch_has_it(name, each, False) for each in x])
    if type(x) is dict and any(isinstance(each, np.generic) for each in x.values()):
        return {key: _as_torch_has_it(name, each, False) for key, each in x.items()}
    return x


def _refuse_what_no_operator_takes(operation: Callable[..., Any], operator: Operator, named: dict[str, Any]) -> None:
    """Raise what is wrong with a call that asks for a gradient, and has an argument that its operator does not take."""
    with_gradient = gradients.with_gradient(operation.__name__)
    asking = [n for n, x in named.items() if n in with_gradient and isinstance(x, torch.Tensor) and x.requires_grad]
    if not asking or operator.results.written or named.get("out") is not None:
        return
    with torch.no_grad():
        operation(**named)  # the ordinary way knows what may be wrong with it
    for parameter in operator.parameters:
        if parameter.name in named:
            try:
                encoded((parameter,), {parameter.name: named[parameter.name]})
            except NoTensorError:
                given = f"{type(named[parameter.name]).__name__}, beside {asking[0]}, which requires a gradient"
                raise ArgumentError(parameter.name, given, "a tensor of PyTorch; or gradients off") from None


def _end_graphs_before(function: Any) -> None:
    """What `torch.compiler.disable` does to a function, without its import of some seconds."""
    function._torchdynamo_disable, function._torchdynamo_disable_msg = True, _NOT_IN_A_GRAPH


def _run_as_it_is(function: Any) -> None:
    """Let the tracer leave a public function alone, and all that it calls, where it is called outside of a graph.

    ``torch.compile`` of the function itself gets the way to the operator.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    operation = function.__wrapped__

    def in_graph(*args: Any, **kwargs: Any) -> Any:
        return call(operation, args, kwargs)

    function._torchdynamo_orig_callable, function._torchdynamo_wrapper_id = in_graph, id(function)


_end_graphs_before(_directly)


# Definitions.


def _schema(parameters: tuple[Parameter, ...], results: Results, second: bool, outs: tuple[str, ...]) -> str:
    """Parameters and results of an overload."""
    letters = iter("abcdefgh")
    positional: list[str] = []
    keyword: list[str] = []
    for parameter in parameters:
        is_second = parameter.name == results.second
        if is_second and not second:
            continue
        written = next(letters) if parameter.name in results.written else ""
        (keyword if parameter.keyword else positional).extend(declared(parameter, needed=is_second, written=written))
    lists = "[]" if results.many else ""
    keyword += [f"Tensor({next(letters)}!){lists} {name}" for name in outs]
    count = 0 if outs else _count(results, second)
    returned = "Tensor" + lists if count == 1 else f"({', '.join(['Tensor'] * count)})"
    return f"({', '.join([*positional, *(['*'] if keyword else []), *keyword])}) -> {returned}"


def _count(results: Results, second: bool) -> int:
    """How many results a call gives; a list of them is one."""
    if results.written:
        return 0
    return 2 if second or results.pair else 1


def _kernel(function: Callable[..., Any], decode: Callable[..., Any], outs: tuple[str, ...], results: Results) -> Any:
    """The kernel of an overload for all devices."""
    into_caller = bool(outs or results.written)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values, given = decode(args, kwargs)
        if outs and results.many:
            given["out"] = tuple(values["out"]) if len(values["out"]) > 1 else values["out"][0]
        elif outs:
            given["out"] = values[outs[0]] if len(outs) == 1 else tuple([values[name] for name in outs])
        before, thread.in_operator = thread.in_operator, True
        try:
            result = function(**given)
        finally:
            thread.in_operator = before
        if results.many and not into_caller:
            return list(result) if isinstance(result, tuple) else [result]
        return None if into_caller else result

    return kernel


def _fake(decode: Callable[..., Any], outs: tuple[str, ...], results: Results, count: int) -> Any:
    """The kernel of an overload that computes shapes only."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        _, given = decode(args, kwargs)
        if outs or results.written:
            return None
        made = _empty(results.rule(**given)[: None if results.many else count], given)
        return list(made) if results.many else made if count > 1 else made[0]

    return fake


def _decoder(parameters: tuple[Parameter, ...], op: Any, fixed: dict[str, Any]) -> Callable[..., Any]:
    """From what PyTorch gives a kernel to the values of the schema and the public arguments."""
    names = [argument.name for argument in op._schema.arguments]

    def decode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        values = dict(zip(names, args, strict=False), **kwargs)
        return values, {**decoded(parameters, values), **fixed}

    return decode


def _define(name: str, function: Callable[..., Any], parameters: tuple[Parameter, ...]) -> Operator:
    results = RESULTS[name]
    overloads = {}
    for second in (False, True) if results.second else (False,):
        for into in (False,) if results.written else (True,) if results.always_into else (False, True):
            outs = OUTS[: _count(results, second)] if into else ()
            words = [results.second.removeprefix("return_") if second else "", "out" if into else ""]
            overload = "_".join(filter(None, words))
            full = f"rocmkern::{name}.{overload}".rstrip(".")
            LIBRARY.define(full.partition("::")[2] + _schema(parameters, results, second, outs))
            op = getattr(getattr(torch.ops.rocmkern, name), overload or "default")
            fixed = {"return_lse": True} if second and results.second == "return_lse" else {}
            decode = _decoder(parameters, op, fixed)
            kernel = _kernel(function, decode, outs, results)
            LIBRARY.impl(op, kernel, "CompositeExplicitAutograd")
            torch.library.register_fake(op, _fake(decode, outs, results, _count(results, second)), lib=LIBRARY)
            gradients.register(LIBRARY, full, op, kernel)
            if not into:
                autocast.register(LIBRARY, name, op)
            overloads[second, into] = Overload(full, op, outs)
    return Operator(parameters, results, overloads)


def _define_all() -> Iterator[tuple[str, Operator]]:
    for module in modules("api"):
        importlib.import_module(module)
    for name, function in sorted(OPERATIONS.items()):
        if name in RESULTS:
            yield name, _define(name, function, parameters_of(function))


#: By the names of the public operations.
OPERATORS: dict[str, Operator] = dict(_define_all())

for _function in OPERATIONS.values():
    _run_as_it_is(_function)
