"""Faults of what the lowering for NVIDIA GPUs has for itself: shared memory, exchanges in a warp, tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.matrix.faults.lowering import LoweringFault

PRODUCTS = ("matmul-products-m17n31k67-f16", "flash_attention-plain*f16*", "flash_attention-plain*f32*")
ROWS_ALONG_LANES = ("softmax-row_lengths-n3x257-f32", "rms_norm-rms_norms-n3x257-f32", "sample-tokens_drawn-b3v256-f32")


def _nothing(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, *given: None


def _only_the_barrier(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, ty: Any) -> None:
        # deferred: start-up
        from rocmkern.tile._lowering.cuda.emit import barrier

        barrier(b)

    return faulty


def _half_of_the_lanes(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, x: Any, combine: Any, lanes: int = 4, first: int = 1) -> Any:
        return right(b, x, combine, lanes // 2, first)

    return faulty


def _first_warp_only(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, value: Any, combine: Any, count: int, step: int = 1) -> Any:
        return right(b, value, lambda x, y: x, count, step)

    return faulty


def _pairs_exchanged(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, low, high, dtype: right(b, high, low, dtype)


def _turned_otherwise(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda b, address, offset, transposed: right(b, address, offset, not transposed)


def _from_zero(right: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, left: list[Any], rights: list[Any], acc: list[Any], dtype: str) -> Any:
        return right(b, left, rights, [x.type(0.0) for x in acc], dtype)

    return faulty


FAULTS = (
    LoweringFault(
        "cuda_barrier_lost",
        "warps do not wait for each other before they read shared memory",
        (*PRODUCTS, *ROWS_ALONG_LANES),
        {"barrier": _nothing},
        ("cuda",),
    ),
    LoweringFault(
        "cuda_stale_window",
        "a window is read before its copies have arrived",
        ("matmul-products-whole_tiles-*", "flash_attention-plain-whole_tiles-*"),
        {"wait_for_fetches": _only_the_barrier},
        ("cuda",),
    ),
    LoweringFault(
        "cuda_half_of_the_lanes",
        "a row is joined over half of its lanes",
        ("softmax-row_lengths-n3x65-f32", *ROWS_ALONG_LANES, "flash_attention-plain*f32*"),
        {"emit:over_lanes": _half_of_the_lanes},
        ("cuda",),
    ),
    LoweringFault(
        "cuda_first_warp_only",
        "what the other warps have of a row is left out",
        ("rms_norm-*n2x4096*", "layer_norm-*f32", "sample-tokens_drawn-*v1000-f32*", "add_residual-*f32"),
        {"over_warps": _first_warp_only},
        ("cuda",),
    ),
    LoweringFault(
        "cuda_pairs_exchanged",
        "the two halves of a register change places",
        ("flash_attention-plain*f16*", "softmax-*f16", "scale-*f16*"),
        {"_pair": _pairs_exchanged},
        ("cuda",),
    ),
    LoweringFault(
        "cuda_fragments_turned",
        "matrices come from shared memory transposed where they should not be",
        ("matmul-products-m7n13k11-f16*", "paged_attention-pages-h6kv2*-f16-*", *PRODUCTS[:2]),
        {"ldmatrix": _turned_otherwise},
        ("cuda",),
    ),
    LoweringFault(
        "cuda_sums_forgotten",
        "a tensor core adds to zero instead of the sum so far",
        ("matmul-products-m17n31k67-f16", "matmul-products-*f16", "flash_attention-*d64-f16*"),
        {"mma": _from_zero},
        ("cuda",),
    ),
)
