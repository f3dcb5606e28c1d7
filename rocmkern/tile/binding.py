"""Teach a numba target the tile language: one template per operation, typed by `types.py`, lowered by the target's
class.

`bind` is called once per target, when the first kernel is compiled for it. The caller hands over the pieces of numba
that differ between ``numba.core`` (CPU and numba-hip) and numba-cuda.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rocmkern.tile import api, entry


def bind(numba: SimpleNamespace, tile: SimpleNamespace, lowering: Any) -> None:
    """Register all operations of the tile language.

    Parameters
    ----------
    numba : SimpleNamespace
        ``types``, ``signature``, ``AbstractTemplate``, ``AttributeTemplate``, ``make_overload_template``,
        ``typing_registry``, ``lowering_registry``, ``cgutils``, ``TypingError``: from the target's numba.
    tile : SimpleNamespace
        The types and rules of `types.make_types`.
    lowering : object
        One method per operation, named like it (operators: ``operator_add``, ...), with signature
        ``(context, builder, signature, *values) -> value``; ``tensor_shape`` lowers ``x.shape``.
    """
    types, typing, lower = numba.types, numba.typing_registry, numba.lowering_registry

    for op, rule in tile.rules.items():
        name = op.__name__.rstrip("_")
        is_operation = op in api.OPERATIONS.values() or op in entry.ENTRY_OPERATIONS
        method = getattr(lowering, name if is_operation else f"operator_{name}")
        _register(numba, op, rule, method, tile, is_operation)

    bind_device_functions(numba)

    class ConfigAttributes(numba.AttributeTemplate):
        key = tile.Config

        def generic_resolve(self, cfg: Any, attr: str) -> Any:
            if not hasattr(cfg.cfg, attr):
                fields = ", ".join(cfg.cfg.__dataclass_fields__)
                raise numba.TypingError(f"cfg has no attribute {attr!r}; it has: {fields}")
            value = getattr(cfg.cfg, attr)
            return tile.Config(value) if isinstance(value, api.Config) else types.literal(value)

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
        if isinstance(literal, api.Config):
            return value  # of the same block
        if isinstance(literal, str):
            return context.get_dummy_value()
        return context.get_constant(types.boolean if isinstance(literal, bool) else types.intp, literal)

    def config_constant(context: Any, builder: Any, ty: Any, bound: Any) -> Any:
        return numba.cgutils.get_null_value(context.get_value_type(ty))

    lower.lower_constant(tile.Config)(config_constant)
    lower.lower_getattr_generic(tile.Config)(config_attribute)


def bind_device_functions(numba: SimpleNamespace) -> None:
    """Register the device functions that were defined since the last call; `bind` registers those that exist then.

    The caller installs the typing registry again afterwards.
    """
    known = vars(numba).setdefault("device_functions", set())
    for fn in api.DEVICE_FUNCTIONS:
        if fn not in known:
            known.add(fn)
            template = numba.make_overload_template(fn, _return_function(fn), {}, False, "never", True)
            numba.typing_registry.register_global(fn, numba.types.Function(template))


def _register(
    numba: SimpleNamespace, op: Callable, rule: Callable, method: Callable, tile: SimpleNamespace, is_operation: bool
) -> None:
    class Template(numba.AbstractTemplate):
        key = op
        prefer_literal = True

        def generic(self, args: tuple, kws: dict) -> Any:
            if kws:
                raise numba.TypingError(f"{op.__name__}: tile operations take positional arguments only")
            if is_operation:
                try:
                    inspect.signature(rule).bind(*args)
                except TypeError as e:
                    raise numba.TypingError(f"{op.__name__}: {e}") from None
            result = rule(*args)
            return None if result is None else numba.signature(result, *args)

    Template.__name__ = f"Tile_{op.__name__}"
    numba.typing_registry.register_global(op, numba.types.Function(Template))

    def impl(context: Any, builder: Any, sig: Any, args: tuple) -> Any:
        return method(context, builder, sig, *args)

    if is_operation:
        numba.lowering_registry.lower(op, numba.types.VarArg(numba.types.Any))(impl)
    else:
        # Every pair in full, because (Rows, Any) and (Any, Rows) alone would be ambiguous for two rows.
        left = (tile.Tensor,) if op is operator.getitem else (tile.Tile, tile.Rows, numba.types.Any)
        right = (numba.types.Any,) if op is operator.getitem else (tile.Tile, tile.Rows, numba.types.Any)
        for a, b in itertools.product(left, right):
            if (a, b) != (numba.types.Any, numba.types.Any):
                numba.lowering_registry.lower(op, a, b)(impl)


def _return_function(fn: Callable) -> Callable:
    def overload(*args: Any) -> Callable:
        return fn

    return overload
