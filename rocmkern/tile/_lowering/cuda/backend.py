"""numba-cuda's types and registries as the tile language takes them, and device functions that need no device."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from numba.cuda import cgutils, types
from numba.cuda.compiler import compile_cuda
from numba.cuda.core.errors import TypingError
from numba.cuda.core.imputils import Registry as LoweringRegistry
from numba.cuda.datamodel import models
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.extending import register_model
from numba.cuda.typing import signature
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, make_overload_template
from numba.cuda.typing.templates import Registry as TypingRegistry
from numba.cuda.typing.typeof import typeof_impl

from rocmkern.architectures import architecture
from rocmkern.tile import entry
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.types import make_types

#: Compute capability that is being compiled for, as numba-cuda takes it.
COMPUTE_CAPABILITY: ContextVar[tuple] = ContextVar("COMPUTE_CAPABILITY")


class _DeviceFunction(CUDADispatcher):
    """A function that is always inlined into its caller, compiled for `COMPUTE_CAPABILITY`: no device is needed."""

    def compile_device(self, args: tuple, return_type: Any = None) -> Any:
        if args not in self.overloads:
            compiled = compile_cuda(
                self.py_func,
                return_type,
                args,
                forceinline=True,
                nvvm_options={"opt": 3, "fastmath": False},
                cc=COMPUTE_CAPABILITY.get(),
            )
            self.overloads[args] = compiled
            compiled.target_context.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        return self.overloads[args]


def device_function(fn: Callable) -> Any:
    """A plain Python function on tiles as something that compiled code can call."""
    return _DeviceFunction(fn, targetoptions={"device": True, "opt": True, "fastmath": False})


def _inlined_overload_template(*args: Any) -> type:
    base = make_overload_template(*args)
    return type(base)(base.__name__, (base,), {"_get_jit_decorator": lambda self: lambda **_: device_function})


NUMBA = SimpleNamespace(
    types=types,
    signature=signature,
    AbstractTemplate=AbstractTemplate,
    AttributeTemplate=AttributeTemplate,
    make_overload_template=_inlined_overload_template,
    function_options={},
    typing_registry=TypingRegistry(),
    lowering_registry=LoweringRegistry(),
    register_model=register_model,
    models=models,
    cgutils=cgutils,
    TypingError=TypingError,
)
TILE = make_types(types, TypingError, "cuda")


def has_matrix_instructions(arch: str) -> bool:
    """Whether an architecture has the matrix instructions of this lowering."""
    return architecture(arch).target == "cuda"


def can_overlap(cfg: Config) -> bool:
    """Whether the blocks of a launch are brought in while the launch before it still runs."""
    return cfg.overlaps and architecture(cfg.arch).overlaps


def bound_config(cfg: Config) -> entry.BoundConfig:
    """The configuration as a constant of a generated module."""
    if not has_matrix_instructions(cfg.arch):
        raise TypingError(f"the CUDA lowering needs sm_80 or later, got {cfg.arch}")
    return entry.BoundConfig(TILE.Config(cfg))


@typeof_impl.register(entry.BoundConfig)
def _typeof_bound_config(value: entry.BoundConfig, c: Any) -> Any:
    return value.numba_type
