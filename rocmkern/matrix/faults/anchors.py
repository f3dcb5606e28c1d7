"""Where a fault of a lowering is put in: names that a refactoring keeps, and what may be changed there.

An anchor is one of

* the name of a tile operation or of another method of the target's lowering class: ``"mask_outside"``;
* the name of a function or a constant of the target's lowering, whichever file defines it: ``"over_lanes"``;
* the same of what all targets share, after the name of the file: ``"angles:_polynomial"``;
* a method of a class there: ``"Activations.silu"``.

A name that is gone, or that two different things have, is a `FaultError`. Whoever imported a function by name gets the
wrong one too. What is emitted by a function is changed by `within`: while it runs, the IR builder does one kind of
instruction differently.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from rocmkern.runtime.errors import RocmkernError

#: Modules that hold all of a target's lowering when they are imported.
ROOTS = {target: f"rocmkern.tile._lowering.{target}.install" for target in ("cpu", "hip", "cuda")}
TILE, LOWERING = "rocmkern.tile.", "rocmkern.tile._lowering."


class FaultError(RocmkernError):
    """A fault cannot be put in: what it changes is not there, or what it puts there does not run."""


@contextmanager
def changed(target: str, changes: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Put other things in the place of what anchors name, within the block.

    Parameters
    ----------
    target : {"cpu", "hip", "cuda"}
    changes : dict
        Anchors, and functions that make the wrong thing from the right one.

    Raises
    ------
    FaultError
        For a name that does not stand for one thing.
    """
    with ExitStack() as stack:
        for anchor, make in changes.items():
            owners, name, right = find(target, anchor)
            wrong = staticmethod(make(right.__func__)) if isinstance(right, staticmethod) else make(right)
            for owner in owners:
                stack.callback(setattr, owner, name, vars(owner)[name])
                setattr(owner, name, wrong)
        yield


def find(target: str, anchor: str) -> tuple[list[Any], str, Any]:
    """The modules or the class that have what an anchor names, its name there, and the thing itself."""
    lowering = lowering_class(target)
    file, _, name = anchor.rpartition(":")
    if "." in name:
        class_name, _, name = name.partition(".")
        (_, _, cls) = _global(target, file, class_name)
        if name not in vars(cls):
            raise FaultError(f"anchor {anchor!r}: class {class_name} has no {name!r}")
        return [cls], name, vars(cls)[name]
    if not file:
        for cls in lowering.__mro__:
            if name in vars(cls):
                return [cls], name, vars(cls)[name]
    return _global(target, file, name)


def lowering_class(target: str) -> type:
    """The class whose methods lower the operations of a target."""
    importlib.import_module(ROOTS[target])
    # deferred: start-up
    from rocmkern.tile._lowering.shared.tensors import TensorLowering

    def leaves(cls: type) -> set[type]:
        return set.union(set(), *(leaves(each) for each in cls.__subclasses__())) or {cls}

    found = [cls for cls in leaves(TensorLowering) if _belongs(cls.__module__, target)]
    if len(found) != 1:
        raise FaultError(f"target {target} has {len(found)} lowering classes, not one: {found}")
    return found[0]


def _global(target: str, file: str, name: str) -> tuple[list[Any], str, Any]:
    """`find` among the names of modules; without a file those of the target come before what is shared."""
    modules = [module for path, module in sorted(sys.modules.items()) if path.startswith(TILE)]
    own = [module for module in modules if _belongs(module.__name__, target)]
    shared = [module for module in modules if not any(_belongs(module.__name__, other) for other in ROOTS)]
    for group in (own, shared):
        having = [m for m in group if name in vars(m) and (not file or m.__name__.rpartition(".")[2] == file)]
        defined = {id(vars(m)[name]): vars(m)[name] for m in having}
        if len(defined) > 1:
            raise FaultError(f"anchor {name!r}: several things have this name, in {[m.__name__ for m in having]}")
        if defined:
            (thing,) = defined.values()
            owners = [m for m in (*own, *shared) if vars(m).get(name) is thing]
            return owners, name, thing
    raise FaultError(f"anchor {name!r}: nothing in the lowering of {target} has this name")


def _belongs(module: str, target: str) -> bool:
    return module.startswith(f"{LOWERING}{target}.")


# -------------------------------------------------------------------------------------------------- what may be changed


def within(**instructions: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[Any], Any]:
    """A change of a function: while it emits, methods of the IR builder are others.

    Parameters
    ----------
    **instructions
        For a method's name a function that makes the wrong method from the right one; both take the builder first.
    """

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*args: Any, **options: Any) -> Any:
            # deferred: start-up
            from llvmlite import ir

            with ExitStack() as stack:
                for name, wrong in instructions.items():
                    method = inspect.getattr_static(ir.IRBuilder, name)
                    stack.callback(setattr, ir.IRBuilder, name, method)
                    setattr(ir.IRBuilder, name, wrong(method))
                return right(*args, **options)

        return faulty

    return make


def compared(**others: str) -> dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Instructions for `within`: comparisons take another relation; ``lt``, ``le``, ``gt``, ``ge``, ``eq``, ``ne``."""
    symbols = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
    table = {symbols[x]: symbols[y] for x, y in others.items()}

    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, symbol, *args, **options: method(self, table.get(symbol, symbol), *args, **options)

    return dict.fromkeys(("icmp_signed", "icmp_unsigned", "fcmp_ordered", "fcmp_unordered"), make)


def first_operand(method: Callable[..., Any]) -> Callable[..., Any]:
    """For `within`: an instruction of two operands gives the first one."""
    return lambda self, x, y, *args, **options: x


def instead(method_name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For `within`: another instruction with the same operands."""

    def make(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *args, **options: getattr(self, method_name)(*args, **options)

    return make


def argument(number: int, change: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A change of an operation: ``change(builder, value)`` in place of a value that it gets, counted from 0.

    An operation is a method with ``(self, context, builder, signature, *values)``.
    """

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(self: Any, context: Any, b: Any, sig: Any, *values: Any) -> Any:
            new = list(values)
            new[number] = change(b, new[number])
            return right(self, context, b, sig, *new)

        return faulty

    return make


def plus(number: int) -> Callable[[Any, Any], Any]:
    """For `argument`: an integer, or rows of integers as any target holds them, and so many more."""

    def change(b: Any, value: Any) -> Any:
        # deferred: start-up
        from llvmlite import ir

        ty = value.type
        if isinstance(ty, ir.ArrayType):
            for i in range(ty.count):
                value = b.insert_value(value, change(b, b.extract_value(value, i)), i)
            return value
        constant = ir.Constant(ty, [number] * ty.count if isinstance(ty, ir.VectorType) else number)
        return b.add(value, constant)

    return change


def swapped(first: int, second: int) -> Callable[[Any], Any]:
    """A change of an operation: two of its values, counted from 0, change places."""

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(self: Any, context: Any, b: Any, sig: Any, *values: Any) -> Any:
            new = list(values)
            new[first], new[second] = new[second], new[first]
            return right(self, context, b, sig, *new)

        return faulty

    return make


def constant(value: Any) -> Callable[[Any], Any]:
    """A change of a constant."""
    return lambda right: value
