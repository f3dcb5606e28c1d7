"""Teach a numba target the tile language: one template per operation, typed by its rule, lowered by the target's class.

`bind` is called once per target, when the first kernel is compiled for it. The caller hands over the pieces of numba
that differ between ``numba.core`` (CPU and numba-hip) and numba-cuda.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rocmkern.tile.language.kernel import DEVICE_FUNCTIONS, Config
from rocmkern.tile.language.operation import KEYWORDS, OF_FUNCTION, OPERATORS
from rocmkern.tile.language.values import kind_of
from rocmkern.tile.reached import functions_of_numbers


def bind(numba: SimpleNamespace, tile: SimpleNamespace, lowering: Any) -> None:
    """Register all operations of the tile language.

    Parameters
    ----------
    numba : SimpleNamespace
        ``types``, ``signature``, ``AbstractTemplate``, ``AttributeTemplate``, ``make_overload_template``,
        ``function_options`` (of its ``jit``), ``typing_registry``, ``lowering_registry``, ``register_model``,
        ``models``, ``cgutils``, ``TypingError``: from the target's numba.
    tile : SimpleNamespace
        The types and rules of `types.make_types`.
    lowering : object
        One method per operation, named like it (operators: ``operator_add``, ...), with signature
        ``(context, builder, signature, *values) -> value``; ``tensor_shape`` lowers ``x.shape``. Elementwise operations
        need none: ``elementwise(context, builder, signature, expression, *values)`` lowers them all, and `map`.
    """
    for op, rule in tile.rules.items():
        _register(numba, op, rule, _method(numba, op, lowering), tile)
    _bind_attributes(numba, tile, lowering)
    numba.register_model(tile.Function)(numba.models.OpaqueModel)
    numba.lowering_registry.lower_constant(tile.Function)(lambda context, *_: context.get_dummy_value())


def bind_functions(numba: SimpleNamespace, tile: SimpleNamespace, kernel: Callable | None) -> None:
    """Register the device functions that were defined since the last call, and a kernel's functions of numbers.

    The caller installs the typing registry again afterwards.
    """
    known = vars(numba).setdefault("functions", set())
    for fn in DEVICE_FUNCTIONS:
        if fn not in known:
            known.add(fn)
            template = numba.make_overload_template(
                fn, _return_function(fn), numba.function_options, False, "never", True
            )
            numba.typing_registry.register_global(fn, numba.types.Function(template))
    for fn in functions_of_numbers(kernel) if kernel is not None else ():
        if fn not in known:
            known.add(fn)
            numba.typing_registry.register_global(fn, tile.Function(*kind_of(fn).fields()))


def _method(numba: SimpleNamespace, op: Callable, lowering: Any) -> Callable | None:
    """What lowers an operation: the target's method, or that of all elementwise operations."""
    operation = OPERATORS.get(op) or OF_FUNCTION.get(op)
    name = f"operator_{operation.name}" if op in OPERATORS else op.__name__
    if name == "map":

        def mapped(context: Any, builder: Any, sig: Any, fn: Any, *values: Any) -> Any:
            of_values = numba.signature(sig.return_type, *sig.args[1:])
            return lowering.elementwise(context, builder, of_values, sig.args[0].expression, *values)

        return mapped
    method = getattr(lowering, name, None)
    if method is None and operation is not None and operation.expression is not None:

        def elementwise(context: Any, builder: Any, sig: Any, *values: Any) -> Any:
            return lowering.elementwise(context, builder, sig, operation.expression, *values)

        return elementwise
    return method


def _register(
    numba: SimpleNamespace, op: Callable, rule: Callable, method: Callable | None, tile: SimpleNamespace
) -> None:
    class Template(numba.AbstractTemplate):
        key = op
        prefer_literal = True

        def generic(self, args: tuple, kws: dict) -> Any:
            if kws:
                raise numba.TypingError(f"{op.__name__}: {KEYWORDS}")
            result = rule(*args)
            return None if result is None else numba.signature(result, *args)

    Template.__name__ = f"Tile_{op.__name__}"
    numba.typing_registry.register_global(op, numba.types.Function(Template))
    if method is None:
        return  # an operator that is there to be refused

    def impl(context: Any, builder: Any, sig: Any, args: tuple) -> Any:
        return method(context, builder, sig, *args)

    if op not in OPERATORS:
        numba.lowering_registry.lower(op, numba.types.VarArg(numba.types.Any))(impl)
        return
    # Every pair in full, because (Rows, Any) and (Any, Rows) alone would be ambiguous for two rows.
    left = (tile.Tensor,) if op is operator.getitem else (tile.Tile, tile.Rows, numba.types.Any)
    right = (numba.types.Any,) if op is operator.getitem else (tile.Tile, tile.Rows, numba.types.Any)
    for a, b in itertools.product(left, right):
        if (a, b) != (numba.types.Any, numba.types.Any):
            numba.lowering_registry.lower(op, a, b)(impl)


def _bind_attributes(numba: SimpleNamespace, tile: SimpleNamespace, lowering: Any) -> None:
    """Attributes of the configuration, and the shape of tensors."""
    types, typing, lower = numba.types, numba.typing_registry, numba.lowering_registry

    class ConfigAttributes(numba.AttributeTemplate):
        key = tile.Config

        def generic_resolve(self, cfg: Any, attr: str) -> Any:
            try:
                value = getattr(cfg.cfg, attr)
            except AttributeError as error:
                raise numba.TypingError(str(error)) from None
            return tile.Config(value) if isinstance(value, Config) else types.literal(value)

    typing.register_attr(ConfigAttributes)
    for with_shape in (tile.Tensor, tile.Quantized):

        class ShapeAttribute(numba.AttributeTemplate):
            key = with_shape

            def resolve_shape(self, x: Any) -> Any:
                return types.UniTuple(types.int64, x.ndim)

        typing.register_attr(ShapeAttribute)
        lower.lower_getattr(with_shape, "shape")(lowering.tensor_shape)

    def config_attribute(context: Any, builder: Any, ty: Any, value: Any, attr: str) -> Any:
        literal = getattr(ty.cfg, attr)
        if isinstance(literal, Config):
            return value  # of the same block
        if isinstance(literal, str):
            return context.get_dummy_value()
        return context.get_constant(types.boolean if isinstance(literal, bool) else types.intp, literal)

    def config_constant(context: Any, builder: Any, ty: Any, bound: Any) -> Any:
        return numba.cgutils.get_null_value(context.get_value_type(ty))

    lower.lower_constant(tile.Config)(config_constant)
    lower.lower_getattr_generic(tile.Config)(config_attribute)


def _return_function(fn: Callable) -> Callable:
    def overload(*args: Any) -> Callable:
        return fn

    return overload
