"""Kernels, what they are configured by, and what they are called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, NoReturn, Protocol, TypeVar, cast

from rocmkern.architectures import architecture
from rocmkern.runtime.errors import TileError

R = TypeVar("R")

NEG_INF = float("-inf")
#: Columns side by side in a lane where rows lie along lanes: 16 bytes of a half type.
VECTOR_WIDTH = 8


@dataclass(frozen=True)
class Config:
    """What is fixed when a kernel is compiled; every kernel derives its own from this.

    Attributes
    ----------
    arch : str
        Architecture: ``"python"``, ``"cpu"``, ``"gfx1100"``, ``"sm_90"``, ...
    waves : int
        Waves (warps) per block; 1 where a block is one thread.
    threads_per_row : int
        For kernels without products: on a GPU a tile row lies along so many lanes, ``vector_width`` columns side by
        side in each, so that loads and stores are as wide as they can be. It is a power of two, and the lanes are a
        part of a wave, a wave, or all waves of the block; a tile has a multiple of the rows that the lanes of the block
        hold, and of the columns that those of a row hold. 0: rows lie as products need them.
    vector_width : int
        Columns side by side in a lane where rows lie along lanes: 8, or a multiple of it; on NVIDIA GPUs also 4.
    split_kv : bool
        On an NVIDIA GPU all waves of a block have all of its rows: for few rows in an online softmax over many keys, of
        which each wave has its own until `softmax_end`; and for `matvec`, where each has columns of its own.
    wave_rows : int
        Tile rows that lie side by side in a wave: 16, or 8 on AMD GPUs with waves of 32 for products by FMAs.
    resident : int
        Blocks that a multiprocessor should hold at once, which bounds the registers of a lane on NVIDIA GPUs; 0: the
        compiler chooses.
    shared_operands : bool
        On an NVIDIA GPU left operands that are loaded lie in shared memory, which leaves registers to accumulators;
        otherwise only those that would take many.
    num_stages : int
        Windows of a stage that may be on their way at once. A target may allow only 1.
    overlaps : bool
        On an NVIDIA GPU that can (sm_90 and later), blocks may be brought in while the launch before this one on its
        stream still runs, for whose end they then wait first of all. So a launch that needs the results of the one
        before it starts sooner.
    """

    arch: str = "python"
    waves: int = 1
    threads_per_row: int = 0
    vector_width: int = VECTOR_WIDTH
    split_kv: bool = False
    wave_rows: int = 16
    resident: int = 0
    shared_operands: bool = False
    num_stages: int = 1
    overlaps: bool = False

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cfg has no attribute {name!r}; it has: {', '.join(self.__dataclass_fields__)}")


def rows_at_once(cfg: Config) -> int:
    """Rows that lie side by side in a block where they lie along lanes; elsewhere one for each wave."""
    return max(1, cfg.waves * architecture(cfg.arch).wave // cfg.threads_per_row) if cfg.threads_per_row else cfg.waves


@dataclass(frozen=True)
class Parameter:
    """Kind of a kernel argument: a tensor of ``ndim`` axes, a 64-bit integer, or a float32.

    ``output`` says that the kernel writes the tensor: all of it, and does not read what was there, unless ``partial``
    says that it does or writes parts of it only. ``absent`` is set where a launch may leave the tensor out: see
    `optional`.
    """

    kind: str
    ndim: int = 0
    output: bool = False
    partial: bool = False
    absent: str = ""

    def optional(self, dtype: str) -> Parameter:
        """The same for a tensor that a launch may leave out: then all its axes have length 0, and so have its parts.

        Parameters
        ----------
        dtype : str
            Element type that it has then: a name, or that of another tensor argument, which has the same.
        """
        return replace(self, absent=dtype)


@dataclass(frozen=True)
class _TensorParameters:
    output: bool
    partial: bool = False

    def __getitem__(self, ndim: int) -> Parameter:
        return Parameter("tensor", ndim, self.output, self.partial)


Tensor: _TensorParameters = _TensorParameters(output=False)
Out: _TensorParameters = _TensorParameters(output=True)
InOut: _TensorParameters = _TensorParameters(output=True, partial=True)
Int: Parameter = Parameter("int")
Float: Parameter = Parameter("float")

#: Functions that kernels may call, in the order of their definition.
DEVICE_FUNCTIONS: list[Callable[..., Any]] = []


class Kernel(Protocol):
    """What `kernel` returns: a function with the declarations of its parameters, without the configuration."""

    __name__: str
    __qualname__: str
    __module__: str
    __code__: CodeType
    parameters: tuple[tuple[str, Parameter], ...]

    def __call__(self, cfg: Config, *arguments: Any) -> None: ...

    def __hash__(self) -> int: ...


def kernel(fn: Callable[..., None]) -> Kernel:
    """Mark a function as a kernel: ``fn(cfg, *arguments)``, arguments annotated by `Tensor`, `Out`, `Int`, `Float`.

    The function itself is returned: it stays a plain Python function.
    """
    parameters = list(inspect.signature(fn, eval_str=True).parameters.values())[1:]
    for p in parameters:
        if not isinstance(p.annotation, Parameter):
            raise TileError(
                f"kernel {fn.__name__}: argument {p.name} needs an annotation T.Tensor[ndim], T.Int, T.Float"
            )
    marked = cast("Kernel", fn)
    marked.parameters = tuple((p.name, p.annotation) for p in parameters)
    return marked


def device(fn: Callable[..., R]) -> Callable[..., R]:
    """Mark a function on tiles as callable from kernels. It stays a plain Python function."""
    DEVICE_FUNCTIONS.append(fn)
    return fn
