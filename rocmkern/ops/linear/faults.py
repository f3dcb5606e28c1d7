"""Faults of matrix products, of which an MLP is made too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern import tile as T
from rocmkern.matrix.faults.engine import Edit, Fault

PRODUCTS = ("matmul", "linear")
ALL = (*PRODUCTS, "mlp")


def _matmul(name: str, description: str, old: str, new: str, operations: tuple[str, ...] = ALL) -> Fault:
    return Fault(name, description, operations, edits=(Edit("matmul", old, new),))


def _other_orientation(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, transposed, acc: right(a, b, not transposed, acc)


def _half_sums(right: Callable[..., Any]) -> Callable[..., Any]:
    def dot(a: Any, b: Any, transposed: bool, acc: Any) -> Any:
        total = right(a, b, transposed, acc).data
        with np.errstate(over="ignore", invalid="ignore"):
            return T.Tile(total.astype(b.source.dtype).astype(np.float32))

    return dot


def _gelu_by_tanh(right: Callable[..., Any]) -> Callable[..., Any]:
    return T.gelu_tanh


FAULTS = (
    _matmul(
        "last_step_dropped",
        "what K has beyond the last whole step is left out",
        "steps = (source.shape[1] + cfg.block_k - 1) // cfg.block_k",
        "steps = source.shape[1] // cfg.block_k",
    ),
    _matmul(
        "split_shares_too_short",
        "the shares of K are rounded down, so the last step belongs to nobody",
        "share = (steps + splits - 1) // splits * cfg.block_k",
        "share = steps // splits * cfg.block_k",
        ("matmul",),
    ),
    _matmul("bias_missing", "the bias is not added", "bias.shape[0] > 0", "bias.shape[0] > 1"),
    _matmul(
        "activated_before_bias",
        "the activation comes before the bias",
        "acc + T.load_tile(...)",
        "activate(acc, activation) + T.load_tile(...)",
        PRODUCTS,
    ),
    _matmul(
        "first_matrix_for_all",
        "every product of a batch uses the first matrix b",
        "T.quantized(b[outer, inner], cfg.format, a)",
        "T.quantized(b[outer, 0], cfg.format, a)",
        ("matmul",),
    ),
    _matmul(
        "windows_of_b_mirrored",
        "rows and columns of the windows of a transposed b are confused",
        "right = T.fetch(right, col0, k0)",
        "right = T.fetch(right, k0, col0)",
    ),
    _matmul(
        "rows_by_column_blocks",
        "the row block is taken from the wrong part of the block's number",
        "product_block(cfg, T.block_id(cfg, 0), row_blocks, column_blocks)",
        "product_block(cfg, T.block_id(cfg, 0), column_blocks, row_blocks)",
    ),
    Fault("b_transposed", "b is multiplied as its transpose", ALL, replace={"dot": _other_orientation}),
    Fault("sums_in_half", "sums are kept in the dtype of the inputs", ("matmul",), replace={"dot": _half_sums}),
    Fault("gelu_is_approximate", "gelu is computed by tanh", ALL, replace={"gelu": _gelu_by_tanh}),
    Fault(
        "last_split_not_summed",
        "one of the partial sums of a split product is left out",
        ("matmul",),
        edits=(Edit("sum_splits", "range(parts.shape[0])", "range(parts.shape[0] - 1)"),),
    ),
)
