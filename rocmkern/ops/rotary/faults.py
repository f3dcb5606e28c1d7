"""Faults of rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern import tile as T
from rocmkern.matrix.faults.engine import Edit, Fault

ROTARY = ("rope", "rope_append_kv")
APPENDED_CODES = ("rope_append_kv_codes",)


def _angles_in_float32(right: Callable[..., Any]) -> Callable[..., Any]:
    def rotations(cfg: Any, position: Any, frequencies: Any, col0: int, n: int) -> Any:
        turns = np.zeros(n, np.uint64)
        part = frequencies.view(np.ndarray)[col0 : col0 + n].astype(np.uint64)
        turns[: len(part)] = part
        step = (turns.astype(np.float64) * (2 * np.pi / 2.0**64)).astype(np.float32)
        angle = position.astype(np.float32)[:, None] * step
        return T.Tile(np.cos(angle)), T.Tile(np.sin(angle))

    return rotations


def _of_first_pair(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda cfg, position, frequencies, col0, n: right(
        cfg, position, np.broadcast_to(frequencies.view(np.ndarray)[:1], frequencies.shape), col0, n
    )


def _turned_back(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, cos, sin: right(a, b, cos, T.Tile(-sin.data))


def _second_unturned(right: Callable[..., Any]) -> Callable[..., Any]:
    def rotate(a: Any, b: Any, cos: Any, sin: Any) -> Any:
        first, second = right(a, b, cos, sin)
        return first, T.Tile(second.data - 2 * first.data * sin.data)

    return rotate


def _changed_codes(change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """What replaces `store_tile`: int8 codes are made of changed numbers."""

    def replacement(right: Callable[..., Any]) -> Callable[..., Any]:
        def store_tile(x: Any, index: Any, col0: int, tile: Any, valid: Any) -> None:
            right(x, index, col0, T.Tile(change(tile.data)) if x.dtype == np.int8 else tile, valid)

        return store_tile

    return replacement


_truncated = _changed_codes(np.trunc)
_half_up = _changed_codes(lambda numbers: np.floor(numbers + np.float32(0.5)))
_wrapped = _changed_codes(lambda numbers: (np.rint(np.clip(numbers, -1e4, 1e4)) + 128) % 256 - 128)


FAULTS = (
    Fault("rope_float32_angles", "angles are products in float32", ROTARY, replace={"rotations": _angles_in_float32}),
    Fault("rope_backwards", "pairs turn the wrong way", ROTARY, replace={"rotate": _turned_back}),
    Fault("rope_second_sign", "the second of a pair has the wrong sign", ROTARY, replace={"rotate": _second_unturned}),
    Fault(
        "rope_without_factor",
        "cosine is not multiplied by the attention factor",
        ("rope",),
        edits=(
            Edit(
                "rope",
                "return cos * factor, sin * (factor * direction)",
                "return cos * 1.0, sin * (factor * direction)",
            ),
        ),
    ),
    Fault(
        "rope_frequencies_of_first_pair",
        "all pairs turn as the first one does",
        ROTARY,
        replace={"rotations": _of_first_pair},
    ),
    Fault(
        "rope_inverse_ignored",
        "the inverse turns forwards",
        ("rope",),
        edits=(Edit("rope", "sin * (factor * direction)", "sin * factor"),),
    ),
    Fault(
        "rope_first_batch",
        "every sequence has the positions of the first one",
        ("rope",),
        edits=(Edit("rope", "positions[batch]", "positions[batch * 0]"),),
    ),
    Fault(
        "rope_rest_left",
        "what is not rotated is not copied",
        ("rope",),
        edits=(Edit("repeat_kv", "range(0, x.shape[3], cfg.block_n)", "range(0, 0, cfg.block_n)"),),
    ),
    Fault(
        "append_padding_written",
        "padding is written to the first slot",
        ("rope_append_kv",),
        edits=(
            Edit(
                "rope_append_kv",
                "T.load_integers(slots, (row,), valid)",
                "T.maximum(T.load_integers(slots, (row,), valid), 0)",
            ),
        ),
    ),
    Fault(
        "append_slot_swapped",
        "page and line of a slot are exchanged",
        ("rope_append_kv",),
        edits=(
            Edit(
                "rope_append_kv",
                "T.store_tile(values, (page, line, head), ...)",
                "T.store_tile(values, (page * 0, line, head), ...)",
            ),
        ),
    ),
    Fault(
        "append_key_scale_left_out",
        "one half of the keys is stored without their scale",
        APPENDED_CODES,
        edits=(Edit("rope_append_kv", "b = b * inverse(key_scale, head, valid)", "b = b * 1.0"),),
    ),
    Fault(
        "append_value_scale_of_first_head",
        "values of every head are divided by the scale of the first one",
        APPENDED_CODES,
        edits=(Edit("rope_append_kv", "inverse(value_scale, head, valid)", "inverse(value_scale, 0, valid)"),),
    ),
    Fault("append_truncated", "codes are rounded to zero", APPENDED_CODES, replace={"store_tile": _truncated}),
    Fault("append_half_up", "int8 ties are rounded upwards", APPENDED_CODES, replace={"store_tile": _half_up}),
    Fault("append_wraps", "int8 codes wrap around", APPENDED_CODES, replace={"store_tile": _wrapped}),
)
