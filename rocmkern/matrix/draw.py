"""The arrays of a case, drawn from its id alone.

Each array is seeded by a hash of the case id and its own name, so a case has the same inputs on every machine, in every
order, alone or among others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from rocmkern.matrix.schema import (
    MAX_ELEMENTS,
    Constant,
    Denormal,
    Generator,
    Large,
    Normal,
    Ramp,
    Uniform,
    Values,
    Wave,
)
from rocmkern.runtime.errors import MatrixError

#: The name that stands for all arrays of an operation.
ALL_ARRAYS = "all"


class DrawnRow(Protocol):
    """What a row says about the arrays of its cases, and where it stands."""

    @property
    def inputs(self) -> Mapping[str, Generator]: ...

    @property
    def file(self) -> str: ...

    @property
    def line(self) -> int: ...


class Drawable(Protocol):
    """What arrays are drawn for: a case (`rocmkern.matrix.case.Case`)."""

    @property
    def id(self) -> str: ...

    @property
    def dims(self) -> Mapping[str, Any]: ...

    @property
    def features(self) -> Mapping[str, Any]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def facts(self) -> DrawnRow: ...

    def memory_of(self, array: str) -> str: ...


def numpy_dtype(name: str) -> np.dtype:
    """NumPy dtype of ``"f32"``, ``"f16"``, ``"bf16"``, ``"f64"`` or, for outputs, ``"u8"`` or ``"i32"``."""
    if name == "bf16":
        return np.dtype(ml_dtypes.bfloat16)
    names = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "u8": np.uint8, "i32": np.int32}
    return np.dtype(names[name])


class Draw:
    """What a declaration's ``call(draw)`` makes a `Call` from.

    Attributes
    ----------
    dims, features : dict
        Dimensions and features of the case.
    dtype : numpy.dtype
        dtype of the row.
    """

    def __init__(self, case: Drawable):
        self.case = case
        self.dims: Mapping[str, Any] = case.dims
        self.features: Mapping[str, Any] = case.features
        self.dtype: np.dtype = numpy_dtype(case.dtype)

    def rng(self, name: str) -> np.random.Generator:
        """Random numbers that depend on the case id and `name` only."""
        digest = hashlib.sha256(f"{self.case.id}:{name}".encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))

    def array(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        """An array of the row's dtype (or `dtype`), filled by the generator that the row names for it."""
        check_elements(self.case, shape)
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        inputs = self.case.facts.inputs
        generator = inputs.get(name) or inputs.get(ALL_ARRAYS) or Normal(kind="normal")
        with np.errstate(over="ignore"):
            return generate(generator, shape, dtype, self.rng(name))

    def made(self, shape: tuple[int, ...], dtype: Any, make: Callable[[], np.ndarray]) -> np.ndarray:
        """``make()``, an array of this shape and dtype. Whoever wants no contents does not call it."""
        check_elements(self.case, shape)
        return make()


class Undrawn(Draw):
    """Arrays of the shapes and dtypes of a case that hold nothing but zeros, and that nobody may write to."""

    def array(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        return self.made(shape, self.dtype if dtype is None else dtype, lambda: np.empty(0))

    def made(self, shape: tuple[int, ...], dtype: Any, make: Callable[[], np.ndarray]) -> np.ndarray:
        check_elements(self.case, shape)
        return np.broadcast_to(np.zeros((), dtype), shape)


def check_elements(case: Drawable, shape: Iterable[int]) -> None:
    """Raise a `MatrixError` with the row's position for an array that is larger than the schema allows."""
    count = math.prod(map(int, shape))
    if count > MAX_ELEMENTS:
        raise MatrixError(
            f"case {case.id} needs an array of {count} elements; at most {MAX_ELEMENTS} are allowed",
            file=case.facts.file,
            line=case.facts.line,
            column=1,
        )


def generate(generator: Generator, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Values of one array.

    Parameters
    ----------
    generator : Generator
        One of the models of `rocmkern.matrix.schema`.
    shape : tuple of int
    dtype : numpy.dtype
    rng : numpy.random.Generator

    Returns
    -------
    ndarray
        Contiguous, of `shape` and `dtype`.
    """
    if isinstance(generator, Normal):
        return (generator.mean + generator.std * rng.standard_normal(shape)).astype(dtype)
    if isinstance(generator, Uniform):
        return rng.uniform(generator.low, generator.high, shape).astype(dtype)
    if isinstance(generator, Large):
        return rng.uniform(-generator.amplitude, generator.amplitude, shape).astype(dtype)
    if isinstance(generator, Constant):
        return np.full(shape, generator.value, dtype)
    if isinstance(generator, Denormal):
        tiny = float(ml_dtypes.finfo(dtype).smallest_normal)
        return (rng.uniform(-1.0, 1.0, shape) * tiny).astype(dtype)
    flat = np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape)
    if isinstance(generator, Ramp):
        return (generator.a * flat + generator.b).astype(dtype)
    if isinstance(generator, Wave):
        wave = {"sin": np.sin, "cos": np.cos, "tan": np.tan}[generator.kind]
        return (generator.factor * wave(generator.step * flat)).astype(dtype)
    assert isinstance(generator, Values)
    values = np.asarray(generator.values, np.float64)
    return values[flat.astype(np.int64) % len(values)].astype(dtype)
