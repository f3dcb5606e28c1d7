"""Quantized sources: tensors of bytes that are read as rows of elements."""

from __future__ import annotations

from typing import Any

from rocmkern.tile.formats import FORMATS
from rocmkern.tile.language.kinds import STORABLE, QuantizedKind, TensorKind, literal, refuse, show, want
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.values import Quantized, Tensor


def _quantized(x: Any, format: Any, like: Any, alignment: Any = None) -> Any:
    name = getattr(format, "value", None)
    if name == "":
        return want(TensorKind, x, "the tensor")
    if name not in FORMATS:
        refuse(f"the format must be one of {', '.join(FORMATS)}, known when the kernel is compiled")
    if not isinstance(x, TensorKind) or x.dtype != "uint8" or x.ndim != 2:
        refuse(f"blocks must be a tensor of uint8 with 2 axes, got {show(x)}")
    if want(TensorKind, like, "like").dtype not in STORABLE:
        refuse(f"elements can be {', '.join(STORABLE)}, not {like.dtype}")
    bytes_of_start = 1 if alignment is None else literal(alignment, "alignment")
    if bytes_of_start not in (1, 2, 4, 8, 16):
        refuse(f"the alignment must be 1, 2, 4, 8 or 16, got {bytes_of_start}")
    return QuantizedKind(name, like.dtype, bytes_of_start)


@operation(_quantized)
def quantized(x: Tensor, format: str, like: Tensor, alignment: int = 1) -> Tensor | Quantized:
    """Read a tensor of bytes as rows of elements.

    Parameters
    ----------
    x : tensor, uint8 [R, bytes]
        Rows of whole blocks; bytes of a row lie side by side. What is left after the last whole block is not read.
    format : str
        One of `formats.FORMATS`, known when the kernel is compiled. ``""``: x is returned as it is, so that one kernel
        text serves quantized and plain matrices.
    like : tensor
        Products with a stage of the result, `load_rowdot` and `matvec` take elements of this tensor's dtype; a target
        may round to it there. `load_tile` gives them exactly.
    alignment : int
        Rows start at addresses that are multiples of so many bytes, which a target may rely on: 1, 2, 4, 8 or 16, known
        when the kernel is compiled.

    Returns
    -------
    quantized source, [R, elements]
        For `load_tile` and `stage`, in widths that are multiples of `formats.RUN`, from columns that are multiples of
        the width.
    """
    return Quantized(x, format, like.dtype, alignment) if format else x
