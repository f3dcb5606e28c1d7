"""The types of the tile language for numba, and what the rules of operations say of them.

A numba type of the tile language is a kind (`language.kinds`) too, so the rules look at it as it is; numba's own types
are described to them (`plain`). What a rule makes anew becomes a numba type; an argument's kind that it returns stays
the type that it was, whatever a target added to it. How a type is stored and how an operation is computed is the
business of the targets.

Numba's own types come in two incompatible sets (``numba.core.types``, and ``numba.cuda.types`` of numba-cuda), so
everything here is made by `make_types` for one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rocmkern.runtime.errors import TileError
from rocmkern.tile import entry
from rocmkern.tile.language import kinds
from rocmkern.tile.language.kinds import Kind, NoneKind, OtherKind, ScalarKind
from rocmkern.tile.language.operation import OF_FUNCTION, OPERATORS

#: The kinds that are numba types, by the name of the type.
TYPES: dict[str, type[Kind]] = {
    "Config": kinds.ConfigKind, "Tensor": kinds.TensorKind, "Quantized": kinds.QuantizedKind, "Rows": kinds.RowsKind,
    "Tile": kinds.TileKind, "Operand": kinds.OperandKind, "Stage": kinds.StageKind, "Function": kinds.FunctionKind,
}  # fmt: skip


def make_types(types: Any, error: type[Exception], prefix: str) -> SimpleNamespace:
    """Make the tile types and typing rules over one set of numba types.

    Parameters
    ----------
    types : module
        ``numba.core.types`` or ``numba.cuda.types``.
    error : type
        The matching ``TypingError``.
    prefix : str
        Target name, part of every type's name, so that two targets never share a type.

    Returns
    -------
    types.SimpleNamespace
        The classes ``Config, Tensor, Quantized, Rows, Tile, Operand, Stage, Function`` and ``rules``, a dict from an
        operation (a function that kernels call, or an operator, or one of `entry`) to a function of argument types that
        returns the result type, or None where the operator is not one of the tile language.
    """
    made = {name: _numba_type(types, name, kind, prefix) for name, kind in TYPES.items()}

    def plain(ty: Any) -> Any:
        """A numba type as the rules see it."""
        if isinstance(ty, Kind):
            return ty
        if isinstance(ty, types.BaseTuple):
            return tuple(map(plain, ty))
        if isinstance(ty, types.Literal):
            value = ty.literal_value
            return ScalarKind({bool: "bool", str: "str"}.get(type(value), "int64"), value)
        if isinstance(ty, types.Boolean | types.Integer | types.Float):
            return ScalarKind(str(ty))
        return kinds.NONE if isinstance(ty, types.NoneType) else OtherKind(str(ty))

    def numba_type(kind: Any) -> Any:
        """The numba type of what a rule returned."""
        if isinstance(kind, types.Type):
            return kind
        if isinstance(kind, tuple):
            return types.Tuple(tuple(map(numba_type, kind)))
        if isinstance(kind, ScalarKind):
            return types.boolean if kind.dtype == "bool" else getattr(types, kind.dtype)
        if isinstance(kind, NoneKind):
            return types.none
        (name,) = (name for name, cls in TYPES.items() if cls is type(kind))
        return made[name](*kind.fields())

    def of_numba(rule: Callable, is_operator: bool) -> Callable:
        def typed(*args: Any) -> Any:
            if is_operator and not any(isinstance(ty, Kind) for ty in args):
                return None
            try:
                return numba_type(rule(tuple(map(plain, args))))
            except TileError as e:
                raise error(str(e)) from None

        return typed

    rules: dict[Callable, Callable] = {}
    for declared, is_operator in ((entry.OF_FUNCTION, False), (OF_FUNCTION, False), (OPERATORS, True)):
        for function, operation in declared.items():
            rules[function] = of_numba(operation.typed, is_operator)
            rules[function].__name__ = operation.name
    return SimpleNamespace(**made, rules=rules)


def _numba_type(types: Any, name: str, kind: type[Kind], prefix: str) -> type:
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        kind.__init__(self, *values, **named)
        types.Type.__init__(self, name=f"{prefix}.{name}({','.join(map(str, self.fields()))})")

    return type(types.Type)(name, (types.Type, kind), {"__init__": __init__, "__doc__": kind.__doc__})
