"""Operations that move elements, in the dtype of what they move."""

from __future__ import annotations

from rocmkern.ops.rows import reference as _gather


def embedding(table, indices):
    """`rocmkern.reference.embedding`, in the dtype of the table."""
    return _gather.embedding(table, indices).astype(table.dtype)


def transpose(x, axes=None):
    """`rocmkern.reference.transpose`, in the dtype of x."""
    return _gather.transpose(x, axes).astype(x.dtype)
