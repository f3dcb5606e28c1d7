"""From the signature of a public operation to the schema of its operator.

A schema knows tensors, numbers, strings and lists of these, so what is a union in Python has an encoding in it:

    causal       str         "none" for False, "bottom_right" for True, "top_left"
    window       SymInt[]?   [left, right], -1 for a side without limit
    scaling      str?        JSON of the dict that Hugging Face's configurations have
    dtype        ScalarType? None is float32
    a number or an array     two parameters, the number NAME and the tensor NAME_tensor, of which one is given

Everything else is itself. There is no ``stream``: operators use PyTorch's current stream. `KINDS` is the only table:
from the annotation of a parameter to the type in the schema, and to the two functions that encode and decode.
Functions that encode are looked into by PyTorch's tracer, so they keep to plain Python.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

_ABSENT = inspect.Parameter.empty


class NoTensorError(Exception):
    """An argument that no operator takes: the call goes directly, which says what is wrong or does it."""


class Kind(NamedTuple):
    """How an argument is in a schema.

    Attributes
    ----------
    schema : str
        Its type.
    encode : callable
        From the public value to the value in the schema.
    decode : callable, optional
        Back again; None where they are the same.
    numbers : bool
        Whether the public value is a number or an array. ``schema`` is that of the number.
    """

    schema: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any] | None = None
    numbers: bool = False


class Parameter(NamedTuple):
    """A parameter of a public operation.

    Attributes
    ----------
    name : str
    kind : Kind
    default : object
        ``inspect.Parameter.empty`` where there is none.
    keyword : bool
        Whether it is given by name only.
    """

    name: str
    kind: Kind
    default: Any
    keyword: bool

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is _ABSENT


def parameters_of(operation: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of an operation that its operator has too: all but ``out``, ``stream`` and ``return_lse``."""
    return tuple(
        Parameter(p.name, _kind_of(p.annotation), p.default, p.kind is p.KEYWORD_ONLY)
        for p in inspect.signature(operation).parameters.values()
        if p.name not in ("out", "stream", "return_lse")
    )


def declared(parameter: Parameter, *, needed: bool = False, written: str = "") -> list[str]:
    """The declaration of a parameter in a schema; two where it is a number or a tensor.

    Parameters
    ----------
    parameter : Parameter
    needed : bool
        Whether None is not allowed here, though the operation has it as a default.
    written : str
        The alias set of a tensor that is written, such as ``"a"``.
    """
    name, kind = parameter.name, parameter.kind
    if kind.numbers:
        return [f"{kind.schema}? {name}=None", f"Tensor? {name}_tensor=None"]
    if needed or written:
        return [f"Tensor({written}!) {name}" if written else f"{kind.schema.rstrip('?')} {name}"]
    if parameter.required:
        return [f"{kind.schema} {name}"]
    default = kind.encode(parameter.default)
    return [f"{kind.schema} {name}={json.dumps(default) if isinstance(default, str) else default}"]


def encoded(parameters: Sequence[Parameter], given: dict[str, Any]) -> dict[str, Any]:
    """The values of a schema by their names, for the public arguments that are given; PyTorch's tracer looks into it.

    Raises
    ------
    NoTensorError
        An argument that no operator takes, or none of this name.
    """
    values: dict[str, Any] = {}
    rest = dict(given)
    for name, kind, default, _ in parameters:
        if name not in rest:
            if default is _ABSENT:
                raise NoTensorError
            continue
        value = rest.pop(name)
        if kind.numbers and isinstance(value, torch.Tensor):
            values[name + "_tensor"] = value
        elif not kind.numbers or value is not None:
            values[name] = kind.encode(value)
    if rest:
        raise NoTensorError
    return values


def decoded(parameters: Sequence[Parameter], values: dict[str, Any]) -> dict[str, Any]:
    """The public arguments for the values of a schema, in the order of the signature."""
    given = {}
    for name, kind, _, _ in parameters:
        if kind.numbers:
            number = values.get(name)
            number = values.get(name + "_tensor") if number is None else number
            if number is not None:
                given[name] = number
        elif name in values:
            given[name] = values[name] if kind.decode is None else kind.decode(values[name])
    return given


# Encodings. What is no value of the kind raises `NoTensorError`.


def _tensor(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        raise NoTensorError
    return value


def _factors(value: Any) -> Any:
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, tuple) else _tensor(value)


def _real(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        raise NoTensorError
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)) or value >= 1 << 63:
        raise NoTensorError
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise NoTensorError
    return value


def _word(value: Any) -> Any:
    if not isinstance(value, str):
        raise NoTensorError
    return value


def _causal(value: Any) -> Any:
    if isinstance(value, bool):
        return "bottom_right" if value else "none"
    return _word(value)


def _causal_of(value: str) -> bool | str:
    return False if value == "none" else value


def _window(value: Any) -> Any:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise NoTensorError
    for side in value:
        if side is not None and _whole(side) < 0:
            raise NoTensorError
    return [-1 if side is None else side for side in value]


def _window_of(value: list[int]) -> tuple[int | None, ...]:
    return tuple(None if side == -1 else side for side in value)


def _axes(value: Any) -> Any:
    if not isinstance(value, (tuple, list)):
        raise NoTensorError
    return [_whole(axis) for axis in value]


def _names(value: Any) -> Any:
    if not isinstance(value, (tuple, list)):
        raise NoTensorError
    return [_word(name) for name in value]


def _dtype(value: Any) -> Any:
    if value is np.float32:
        return None
    if not isinstance(value, torch.dtype):
        raise NoTensorError
    return value


def _dtype_of(value: Any) -> Any:
    return torch.float32 if value is None else value


def _scaling(value: Any) -> str:
    fields = value
    if not isinstance(value, dict):
        kind = type(value).__name__
        if kind not in _SCALINGS:
            raise NoTensorError
        rope_type, names = _SCALINGS[kind]
        fields = {"rope_type": rope_type}
        for name in names:
            fields[name] = getattr(value, name)
    return "{" + ", ".join([f"{_json(name)}: {_json(number)}" for name, number in fields.items()]) + "}"


def _json(value: Any) -> str:
    """A value of a configuration; `json.dumps` is not for the tracer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if isinstance(value, (int, float)) and value - value == 0:  # finite
        return repr(_constant(value))
    raise NoTensorError


def _constant(value: Any) -> Any:
    """The value itself: to PyTorch's tracer a constant, where with ``dynamic=True`` a float is a symbol.

    Keys of groups are among the few symbols that it takes for what they are, and compiles anew where they differ.
    """
    ((key, _),) = itertools.groupby([value])
    return key


#: Names in Hugging Face's configurations, of the classes and of their fields.
_SCALINGS = {
    "LinearScaling": ("linear", ("factor",)),
    "YarnScaling": (
        "yarn",
        (
            "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
            "mscale_all_dim", "truncate",
        ),
    ),
    "Llama3Scaling": ("llama3", ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")),
}  # fmt: skip


def _optional(kind: Kind) -> Kind:
    """The same, or None."""
    encode, decode = kind.encode, kind.decode
    return Kind(
        kind.schema + "?",
        lambda value: None if value is None else encode(value),
        None if decode is None else lambda value: None if value is None else decode(value),
    )


_TENSOR, _WORD = Kind("Tensor", _tensor), Kind("str", _word)
_REAL, _WHOLE = Kind("float", _real), Kind("SymInt", _whole)
_REAL_OR_TENSOR, _WHOLE_OR_TENSOR = Kind("float", _real, numbers=True), Kind("SymInt", _whole, numbers=True)

#: By the annotation of a public parameter.
KINDS: dict[str, Kind] = {
    "Array": _TENSOR,
    "ArrayLike": _TENSOR,
    "ArrayLike | None": _optional(_TENSOR),
    "ArrayLike | tuple[float, ...] | None": _optional(Kind("Tensor", _factors)),
    "float": _REAL,
    "float | None": _optional(_REAL),
    "int": _WHOLE,
    "int | None": _optional(_WHOLE),
    **dict.fromkeys(("float | ArrayLike", "float | ArrayLike | None"), _REAL_OR_TENSOR),
    **dict.fromkeys(("int | ArrayLike", "int | ArrayLike | None"), _WHOLE_OR_TENSOR),
    "bool": Kind("bool", _flag),
    "Activation": _optional(_WORD),
    **dict.fromkeys(("Layout", "QuantizedFormat", "BlockOrder", "RopeVariant"), _WORD),
    "Causal": Kind("str", _causal, _causal_of),
    "Window": _optional(Kind("SymInt[]", _window, _window_of)),
    "Sequence[int] | None": _optional(Kind("int[]", _axes)),
    "Sequence[str] | None": _optional(Kind("str[]", _names, tuple)),
    "FloatDType": Kind("ScalarType?", _dtype, _dtype_of),
    "Scaling | dict[str, Any] | None": _optional(Kind("str", _scaling, json.loads)),
}


def _kind_of(annotation: str) -> Kind:
    """The kind of an annotation; a new one gets an entry in `KINDS`."""
    return _WORD if annotation.startswith("Literal[") else KINDS[annotation]
