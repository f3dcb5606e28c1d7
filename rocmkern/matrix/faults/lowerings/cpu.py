"""Faults of what the CPU's lowering has for itself: vectors, transposes, micro-kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.matrix.faults.anchors import FaultError, constant, find, first_operand, instead, within
from rocmkern.matrix.faults.lowering import LoweringFault


def _one_column_less(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, w: int, m: int, n: Any, k: Any, *others: Any) -> Any:
        return right(b, w, m, b.sub(n, n.type(1)), k, *others)

    return faulty


def _half_of_the_lanes(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, x: Any, combine: Callable[..., Any]) -> Any:
        # deferred: start-up
        from llvmlite import ir

        half = x.type.count // 2
        if half == 0:
            return right(b, x, combine)
        order = ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(half)))
        return right(b, b.shuffle_vector(x, x, order), combine)

    return faulty


def _halves_exchanged(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, rows: list[Any]) -> list[Any]:
        turned = right(b, rows)
        return turned[len(rows) // 2 :] + turned[: len(rows) // 2]

    return faulty


def _without_the_rest(right: Callable[..., Any]) -> Callable[..., Any]:
    """Loops over single numbers, behind those over whole vectors, do not run."""

    def faulty(b: Any, *given: Any) -> Any:
        # deferred: start-up
        from llvmlite import ir

        (module, *_), name, loop = find("cpu", "k_loop")

        def over_vectors(b: Any, count: Any, initial: list[Any], body: Callable[..., Any]) -> list[Any]:
            if isinstance(initial[0].type, ir.VectorType):
                return loop(b, count, initial, body)
            return initial

        if loop is over_vectors:
            raise FaultError("the loop of a product is replaced already")
        setattr(module, name, over_vectors)
        try:
            return right(b, *given)
        finally:
            setattr(module, name, loop)

    return faulty


def _true(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, *given: Any) -> Any:
        # deferred: start-up
        from llvmlite import ir

        return ir.Constant(ir.IntType(1), 1)

    return faulty


FAULTS = (
    LoweringFault(
        "cpu_half_of_the_lanes",
        "a vector's sum and maximum leave out half of its lanes",
        ("decode_attention-decoding-b1h2k17d16-f32*", "softmax-*n1x4-f32*", "rms_norm-*f32"),
        {"reduced": _half_of_the_lanes},
        ("cpu",),
    ),
    LoweringFault(
        "cpu_halves_of_a_transpose_exchanged",
        "columns of a block that is transposed on its way change places by halves",
        ("flash_attention-plain*f32*", "softmax-row_lengths-n3x65-f32", "layer_norm-*f32"),
        {"transpose": _halves_exchanged},
        ("cpu",),
    ),
    LoweringFault(
        "cpu_last_column_of_a_product",
        "a product of many rows leaves out its last column",
        ("matmul-products-m17n31k67-f32", "flash_attention-plain*f32*"),
        {"multiply_lanes": _one_column_less},
        ("cpu",),
    ),
    LoweringFault(
        "cpu_rest_of_a_dot_product",
        "a product of few rows leaves out what lies behind the last whole vector",
        ("decode_attention-*d*-f32*", "matmul-products-vectors-*f32*", "linear-*one_row*f32*", "matmul-products-*f32"),
        {"multiply_rows_nt": _without_the_rest},
        ("cpu",),
    ),
    LoweringFault(
        "cpu_window_counts_as_finite",
        "nobody looks for NaN among the values",
        ("flash_attention-hidden_values*f32*",),
        {"window_is_finite": _true},
        ("cpu",),
    ),
    LoweringFault(
        "cpu_bfloat16_truncated",
        "bfloat16 is rounded to zero",
        ("scale-scaling-nearest-*bf16*", "softmax-*nearest*bf16*", "swiglu-*nearest*bf16"),
        {"to_memory": within(add=first_operand)},
        ("cpu",),
    ),
    LoweringFault(
        "cpu_power_of_fewer_terms",
        "2 ** x loses the last term of its polynomial",
        ("softmax-row_lengths-*f32", "flash_attention-plain*f32*"),
        {"emit:_polynomial": lambda right: lambda name: (0.0, *right(name)[1:])},
        ("cpu",),
    ),
    LoweringFault(
        "cpu_page_by_line",
        "the page of a key is looked up by its number within the page",
        ("paged_attention-pages-*-f32-return_lse",),
        {"page": within(sdiv=instead("srem"))},
        ("cpu",),
    ),
    LoweringFault(
        "cpu_lazy_for_ever",
        "a running maximum may lag behind by any amount",
        ("flash_attention-rising_logits-*f32*",),
        {"LAZY_EXPONENT": constant(1.0e30)},
        ("cpu",),
    ),
)
