"""What the CPU and numba-hip take from ``numba.core`` alike; numba-cuda brings its own copies of all of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, make_overload_template
from numba.extending import typeof_impl

from rocmkern.tile import entry


def numba_core(
    typing_registry: Any, lowering_registry: Any, register_model: Callable, **function_options: Any
) -> SimpleNamespace:
    """The pieces that `binding.bind` asks for, with a target's own registries, data models and options of functions."""
    return SimpleNamespace(
        types=types,
        signature=signature,
        AbstractTemplate=AbstractTemplate,
        AttributeTemplate=AttributeTemplate,
        make_overload_template=make_overload_template,
        function_options=function_options,
        typing_registry=typing_registry,
        lowering_registry=lowering_registry,
        register_model=register_model,
        models=models,
        cgutils=cgutils,
        TypingError=TypingError,
    )


@typeof_impl.register(entry.BoundConfig)
def _typeof_bound_config(value: entry.BoundConfig, c: Any) -> Any:
    return value.numba_type
