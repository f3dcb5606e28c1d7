"""Faults of operations that every target lowers, and of what the targets' lowerings share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rocmkern.matrix.faults.anchors import argument, compared, instead, plus, swapped, within
from rocmkern.matrix.faults.lowering import LoweringFault


def _decoding(format: str, wrong: Callable[[Any, Any, Callable[[Any], Any]], Any]) -> Callable[[Any], Any]:
    """A change of the table of formats: ``wrong(builder, first, run_from)`` makes the run of one of them."""

    def make(formats: Any) -> Any:
        kind = formats[format]

        def emit(b: Any, reader: Any, first: Any, count: int) -> Any:
            return wrong(b, first, lambda place: kind.emit(b, reader, place, count))

        return {**formats, format: dataclasses.replace(kind, emit=emit)}

    return make


def _other_half(b: Any, first: Any, run_from: Callable[[Any], Any]) -> Any:
    return run_from(_flipped(b, first, 16))


def _flipped(b: Any, place: Any, bit: int) -> Any:
    # deferred: start-up
    from llvmlite import ir

    if isinstance(place, ir.Constant):
        return ir.Constant(place.type, place.constant ^ bit)
    return b.xor(place, ir.Constant(place.type, bit))


def _without_minimum(b: Any, first: Any, run_from: Callable[[Any], Any]) -> Any:
    return dataclasses.replace(run_from(first), minimum=None)


def _scale_of_the_neighbour(b: Any, first: Any, run_from: Callable[[Any], Any]) -> Any:
    return dataclasses.replace(run_from(first), scale=run_from(_flipped(b, first, 16)).scale)


def _scale_is_never_nan(b: Any, first: Any, run_from: Callable[[Any], Any]) -> Any:
    # deferred: start-up
    from llvmlite import ir

    run = run_from(first)
    one = ir.Constant(run.scale.type, 1.0)
    return dataclasses.replace(run, scale=b.select(b.fcmp_unordered("uno", run.scale, run.scale), one, run.scale))


def _first_of_all(folded: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, b, sig, x, combine: folded(self, b, sig, x, lambda first, second: first)


def _plain_product(dot_nn_where: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *given: self.dot_nn(*given)


def _always(is_plain: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, squares: Any, scale: Any) -> Any:
        return b.fcmp_unordered("ueq", scale, scale)

    return faulty


def _more_by_a_quarter(to_byte: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(b: Any, value: Any, dtype: str) -> Any:
        # deferred: start-up
        from llvmlite import ir

        ty = value.type
        quarter = ir.Constant(ty, [0.25] * ty.count if isinstance(ty, ir.VectorType) else 0.25)
        return to_byte(b, b.fadd(value, quarter), dtype)

    return faulty


def _never(method: Callable[..., Any]) -> Callable[..., Any]:
    """Comparisons for equality fail."""

    def wrong(self: Any, symbol: str, x: Any, y: Any, *others: Any, **options: Any) -> Any:
        return method(self, "<" if symbol == "==" else symbol, x, x if symbol == "==" else y, *others, **options)

    return wrong


def _one_less(udiv: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Any, x: Any, y: Any, *others: Any, **options: Any) -> Any:
        quotient = udiv(self, x, y, *others, **options)
        return self.sub(quotient, quotient.type(1))

    return wrong


FAULTS = (
    LoweringFault(
        "mask_border_hides_one_more",
        "the last key that a mask allows is hidden",
        ("causal_mask-*s33k17-f32-causal", "flash_attention-plain*f32-causal*"),
        {"mask_outside": argument(3, plus(-1))},
    ),
    LoweringFault(
        "window_border_hides_one_more",
        "the first key of a window is hidden",
        ("flash_attention-windows-b1h2s20k23d8-f32-*",),
        {"mask_outside": argument(2, plus(1))},
    ),
    LoweringFault(
        "mask_upside_down",
        "what a mask hides is what it lets through",
        ("apply_mask-applied_masks-kinds-*mask_boolean",),
        {"elementwise": within(**compared(eq="ne", ne="eq"))},
    ),
    LoweringFault(
        "first_column_beyond_kept",
        "the first column beyond the end counts",
        ("softmax-row_lengths-n3x65-f32", "layer_norm-layer_norms-n*-f32"),
        {"pad_columns": argument(2, plus(1))},
    ),
    LoweringFault(
        "cosine_and_sine_swapped",
        "points turn by the complement of their angle",
        ("rope-rotated-*f32*",),
        {"rotate": swapped(2, 3)},
    ),
    LoweringFault(
        "sine_of_fewer_terms",
        "sine and cosine lose the last term of their polynomials",
        ("rope-rotated-*f32*",),
        {"angles:_polynomial": lambda right: lambda name: (0.0, *right(name)[1:])},
    ),
    LoweringFault(
        "distance_of_the_next_key",
        "distances are those of the neighbour",
        ("flash_attention-*f32*alibi*",),
        {"distance": argument(2, plus(1))},
    ),
    LoweringFault(
        "gelu_by_tanh",
        "gelu is computed by tanh",
        ("geglu-*f32*",),
        {"Activations.gelu": lambda right: lambda self, b, x: self.gelu_tanh(b, x)},
    ),
    LoweringFault(
        "silu_as_gelu",
        "silu is gelu",
        ("swiglu-swiglus-n3x33-f32", "swiglu-swiglus-n4x8-f32"),
        {"Activations.silu": lambda right: lambda self, b, x: self.gelu(b, x)},
    ),
    LoweringFault(
        "squares_are_always_plain",
        "squares overflow and vanish",
        ("rms_norm-rms_norms-huge-*f32*", "rms_norm-rms_norms-tiny-*f32*"),
        {"is_plain": _always},
    ),
    LoweringFault(
        "squares_keep_their_unit",
        "sums of squares are not rescaled when a larger value comes",
        ("rms_norm-rms_norms-rising-*f32*",),
        {"rescale": lambda right: lambda b, total, old, new: total},
    ),
    LoweringFault(
        "halves_of_bytes_swapped",
        "the first sixteen elements of a block are its last",
        ("dequantize-*codes-r3b20-f32-content_codes", "quantized_linear-*formats-r3n17b3-f32"),
        {"FORMATS": _decoding("q4_0", _other_half)},
    ),
    LoweringFault(
        "minimum_left_out",
        "Q4_K without its minima",
        ("dequantize-*r3b20-f32-format_q4_k*", "quantized_linear-*r3n17b3-f32-format_q4_k"),
        {"FORMATS": _decoding("q4_k", _without_minimum)},
    ),
    LoweringFault(
        "scales_of_neighbours",
        "groups of Q6_K take each other's scale",
        ("dequantize-*r3b20-f32-format_q6_k*", "quantized_linear-*r3n17b3-f32-format_q6_k"),
        {"FORMATS": _decoding("q6_k", _scale_of_the_neighbour)},
    ),
    LoweringFault(
        "scale_without_nan",
        "a scale of 255 is 1 instead of NaN",
        ("dequantize-*special*format_mxfp4*", "dequantize_rms_norm-*special*format_mxfp4*"),
        {"FORMATS": _decoding("mxfp4", _scale_is_never_nan)},
    ),
    LoweringFault(
        "last_block_left_out",
        "a row of blocks is one block shorter",
        ("dequantize-*codes-r3b20-f32-content_codes", "quantized_linear-*formats-r3n17b3-f32"),
        {"quantized": within(udiv=_one_less)},
    ),
    LoweringFault(
        "bytes_without_sign",
        "int8 keys and values are unsigned",
        ("paged_attention-*-f32-cache_int8*", "paged_attention-*cache_int8*"),
        {"from_byte": within(sitofp=instead("uitofp"))},
    ),
    LoweringFault(
        "codes_rounded_upwards",
        "numbers grow by a quarter of a code before they are rounded",
        ("rope_append_kv_codes-appended_codes-s9*f32-padding", "rope_append_kv_codes-*between_codes*f32*"),
        {"to_byte": _more_by_a_quarter},
    ),
    LoweringFault(
        "values_of_weight_zero_multiplied",
        "a NaN behind a mask reaches the result",
        ("flash_attention-hidden_values*f32*", "flash_attention-hidden_values*f16*"),
        {"dot_nn_where": _plain_product},
    ),
    LoweringFault(
        "window_one_row_on",
        "a stage brings the window that begins a row later",
        ("matmul-products-m7n13k11-f32*", "flash_attention-plain*f32*"),
        {"fetch": argument(1, plus(1))},
    ),
    LoweringFault(
        "last_key_of_pages_left_out",
        "the last key of a paged sequence does not exist",
        ("paged_attention-pages-*-f32-return_lse", "paged_attention-*f32*"),
        {"paged": argument(4, plus(-1))},
    ),
    LoweringFault(
        "equal_is_not_at_least",
        "a number is not at least itself",
        ("sample-*f32*top_k*",),
        {"elementwise": within(**compared(ge="gt"))},
    ),
    LoweringFault(
        "first_split_for_all",
        "of rows that are folded only the first counts",
        ("decode_attention-*f32-num_splits3*",),
        {"folded": _first_of_all},
    ),
    LoweringFault(
        "reciprocal_of_zero",
        "rows that see nothing are divided by zero",
        ("flash_attention-*f32-*mask_nothing_visible*", "softmax-*hidden_rows*"),
        {"ExpressionEmitter.reciprocal_or_zero": within(fcmp_ordered=_never, fcmp_unordered=_never)},
    ),
    LoweringFault(
        "sequence_begins_one_key_on",
        "rows that are cut out of a tensor begin one further",
        ("flash_attention_packed-packed-*-f32-return_lse", "flash_attention-plain*f32*"),
        {"rows": argument(1, plus(1))},
    ),
)
