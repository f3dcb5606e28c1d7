"""What goes into the public operations and comes out of them, for type checkers and editors.

An operation is generic in `Array`, the argument whose kind its result has: NumPy arrays give NumPy arrays, a
`rocmkern.DeviceTensor` gives one, a ``torch.Tensor`` gives one. Other arrays are `ArrayLike`, of any library each.
Options are literals, so that a misspelt one is an error before the program runs.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from numpy.typing import DTypeLike


class SupportsDLPack(Protocol):
    """An array that lends its memory by DLPack: NumPy, `rocmkern.DeviceTensor`, PyTorch, CuPy, JAX."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class SupportsCudaArrayInterface(Protocol):
    """An array in device memory that lends it by the CUDA array interface: Numba."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class CudaStream(Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> int: ...


class PtrStream(Protocol):
    """A stream of CuPy."""

    @property
    def ptr(self) -> int: ...


class HandleStream(Protocol):
    """A stream of Numba, whose handle is a ctypes object."""

    @property
    def handle(self) -> Any: ...


class TorchDType(Protocol):
    """A dtype of PyTorch."""

    @property
    def is_floating_point(self) -> bool: ...


ArrayLike: TypeAlias = SupportsDLPack | SupportsCudaArrayInterface
Array = TypeVar("Array", bound=ArrayLike)
#: A stream, the handle of one, or None for the one that the arrays' library goes on with.
Stream: TypeAlias = CudaStream | PtrStream | HandleStream | int | None

#: Order of the axes of queries, keys and values: ``[B, H, S, D]`` or ``[B, S, H, D]``.
Layout = Literal["bhsd", "bshd"]
#: Whether keys after a query are hidden, and where the diagonal ends.
Causal = bool | Literal["bottom_right", "top_left"]
#: Keys on either side of the diagonal; None is no limit.
Window: TypeAlias = tuple[int | None, int | None] | None
#: Function of a product; None is none.
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"] | None
#: dtype of a result: float32, float16 or bfloat16, as NumPy's or PyTorch's.
FloatDType: TypeAlias = DTypeLike | TorchDType
#: Formats of quantized blocks, and the order of the codes within them.
QuantizedFormat = Literal[
    "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2",
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k",
]  # fmt: skip
BlockOrder = Literal["ggml", "ocp"]
#: Which numbers a rotation pairs: halves of a head, or neighbours.
RopeVariant = Literal["half", "interleaved"]
