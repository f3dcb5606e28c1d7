"""Faults of what the lowering for AMD GPUs has for itself: shared memory, exchanges between lanes and waves, votes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.matrix.faults.anchors import compared, first_operand, instead, within
from rocmkern.matrix.faults.lowering import LoweringFault

PRODUCTS = ("matmul-products-m17n31k67-f16", "flash_attention-plain*f16*", "flash_attention-plain*f32*")
ROWS_ALONG_LANES = ("softmax-row_lengths-n3x257-f32", "rms_norm-rms_norms-n3x257-f32", "sample-tokens_drawn-b3v256-f32")


def _no_instructions(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, *given: []


def _value_only(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, atom, join, value: value


def _half_as_far(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, atom, join, value, first, end: right(b, atom, join, value, first, end // 2)


def _first_wave_only(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, atom: Any, join: Any, value: Any, count: int, step: int = 1) -> Any:
        return right(b, atom, lambda x, y: x, value, count, step)

    return faulty


def _one_more(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, first: Any, columns: Any, most: int) -> Any:
        return tuple(b.add(x, x.type(1)) for x in right(b, first, columns, most))

    return faulty


def _nothing_special(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, window: Any, local: Any) -> Any:
        # deferred: start-up
        from llvmlite import ir

        return ir.Constant(ir.IntType(1), 0)

    return faulty


def _unmoved(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, atom, value, distance: value


FAULTS = (
    LoweringFault(
        "hip_barrier_lost",
        "waves do not wait for each other before they read shared memory",
        (*PRODUCTS, *ROWS_ALONG_LANES),
        {"local_barrier": _no_instructions},
        ("hip",),
    ),
    LoweringFault(
        "hip_groups_not_joined",
        "a row's sum and maximum leave out the lanes of the other groups",
        ("softmax-row_lengths-n3x65-f32", "flash_attention-plain*f32*", "flash_attention-plain*f16*"),
        {"over_groups": _value_only},
        ("hip",),
    ),
    LoweringFault(
        "hip_half_of_the_lanes",
        "rows along lanes are joined over half of their lanes",
        ROWS_ALONG_LANES,
        {"emit:over_lanes": _half_as_far},
        ("hip",),
    ),
    LoweringFault(
        "hip_first_wave_only",
        "what the other waves have of a row is left out",
        ("rms_norm-*n2x4096*", "layer_norm-*f32", "sample-tokens_drawn-*v1000-f32*", "add_residual-*f32"),
        {"over_waves": _first_wave_only},
        ("hip",),
    ),
    LoweringFault(
        "hip_halves_exchanged",
        "an operand has the columns of the other half of the wave where its own belong",
        ("flash_attention-plain*f16*", "flash_attention-plain*bf16*"),
        {"exchange_halves": within(**compared(ne="eq"))},
        ("hip",),
    ),
    LoweringFault(
        "hip_lanes_keep_their_value",
        "an exchange between groups gives every lane what it had",
        PRODUCTS,
        {"from_group": _unmoved},
        ("hip",),
    ),
    LoweringFault(
        "hip_bfloat16_truncated",
        "bfloat16 is rounded to zero",
        ("scale-scaling-nearest-*bf16*", "softmax-*nearest*bf16*", "swiglu-*nearest*bf16"),
        {"bfloat16_bits": within(add=first_operand)},
        ("hip",),
    ),
    LoweringFault(
        "hip_window_counts_as_finite",
        "nobody looks for NaN among the values",
        ("flash_attention-hidden_values*f32*",),
        {"any_special": _nothing_special},
        ("hip",),
    ),
    LoweringFault(
        "hip_border_one_further",
        "a row has one column more than it has",
        ("softmax-row_lengths-n3x65-f32", "rms_norm-rms_norms-n3x65-f32", "layer_norm-layer_norms-n3x65-f32"),
        {"remaining": _one_more},
        ("hip",),
    ),
    LoweringFault(
        "hip_page_by_line",
        "the page of a key is looked up by its number within the page",
        ("paged_attention-pages-*-f32-return_lse",),
        {"Pages.line": within(udiv=instead("urem"))},
        ("hip",),
    ),
)
