"""Faults of attention and of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern import tile as T
from rocmkern.matrix.faults.engine import Edit, Fault

ATTENTION = ("flash_attention", "flash_attention_packed", "decode_attention")


def _attention(name: str, description: str, old: str, new: str) -> Fault:
    return Fault(name, description, ATTENTION, edits=(Edit("flash_attention", old, new),))


def _mask_one_further(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tile, col0, low, high: right(tile, col0, low, high + 1)


def _mask_finite(right: Callable[..., Any]) -> Callable[..., Any]:
    def mask_outside(tile: Any, col0: int, low: Any, high: Any) -> Any:
        masked = right(tile, col0, low, high).data
        return T.Tile(np.where(np.isneginf(masked), np.float32(-1e9), masked))

    return mask_outside


def _mask_by_adding(right: Callable[..., Any]) -> Callable[..., Any]:
    def mask_outside(tile: Any, col0: int, low: Any, high: Any) -> Any:
        scores = tile.data.copy()
        with np.errstate(invalid="ignore"):
            return T.Tile(scores + right(T.Tile(np.zeros_like(scores)), col0, low, high).data)

    return mask_outside


def _without_last_column(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tile: right(T.Tile(tile.data[:, :-1]))


def _last_weight_not_summed(right: Callable[..., Any]) -> Callable[..., Any]:
    def softmax_step(s: Any, scale: float, m: Any, l: Any, acc: Any) -> Any:
        p, m, l, acc = right(s, scale, m, l, acc)
        return p, m, l - p.data[:, -1], acc

    return softmax_step


def _no_rescale(right: Callable[..., Any]) -> Callable[..., Any]:
    def softmax_step(s: Any, scale: float, m: Any, l: Any, acc: Any) -> Any:
        before = T.Tile(acc.data.copy())
        p, new, l, rescaled = right(s, scale, m, l, acc)
        return p, new, l, before if np.isfinite(m).all() else rescaled

    return softmax_step


def _truncated(right: Callable[..., Any]) -> Callable[..., Any]:
    """Rounding of half results towards zero instead of to nearest."""

    def store_tile(x: Any, index: Any, col0: int, tile: Any, valid: Any) -> None:
        values = tile.data
        if x.dtype.itemsize == 2:
            with np.errstate(over="ignore", invalid="ignore"):
                rounded = values.astype(x.dtype)
                away = np.abs(rounded.astype(np.float32)) > np.abs(values)
            values = np.where(away, (rounded.view(np.uint16) - away).view(x.dtype).astype(np.float32), values)
        right(x, index, col0, T.Tile(values.astype(np.float32)), valid)

    return store_tile


def _last_row_left(right: Callable[..., Any]) -> Callable[..., Any]:
    def store_tile(x: Any, index: Any, col0: int, tile: Any, valid: Any) -> None:
        last = np.flatnonzero(valid)[-1:]
        written = valid.copy()
        written[last] = last == 0
        right(x, index, col0, tile, written)

    return store_tile


FAULTS = (
    _attention(
        "steps_from_the_first_seen_key",
        "steps of keys begin where the first key is that a row of the block sees: rows depend on their block",
        "begin = origin + (any_begin - origin) // block_n * block_n",
        "begin = any_begin",
    ),
    _attention(
        "last_partial_tile_dropped",
        "keys behind the last whole tile are left out",
        "tiles = (max(any_end - begin, 0) + block_n - 1) // block_n",
        "tiles = max(1, max(any_end - begin, 0) // block_n)",
    ),
    Fault(
        "last_weight_not_summed",
        "the denominator leaves the last key of a tile out",
        ATTENTION,
        replace={"softmax_step": _last_weight_not_summed},
    ),
    Fault(
        "accumulator_not_rescaled",
        "the numerator keeps its old scale when the running maximum grows",
        ATTENTION,
        replace={"softmax_step": _no_rescale},
    ),
    Fault(
        "mask_off_by_one",
        "a row sees one key more than the mask allows",
        (*ATTENTION, "causal_mask", "softmax"),
        replace={"mask_outside": _mask_one_further},
    ),
    Fault(
        "mask_is_finite",
        "masked scores are -1e9, so a row that sees nothing gives the mean of the values",
        (*ATTENTION, "causal_mask"),
        replace={"mask_outside": _mask_finite},
    ),
    Fault(
        "mask_by_adding",
        "minus infinity is added to masked scores, so a NaN behind the mask stays NaN",
        ATTENTION,
        replace={"mask_outside": _mask_by_adding},
    ),
    Fault(
        "masked_values_multiplied",
        "values of weight 0 are multiplied, so a NaN behind the mask reaches the output",
        ATTENTION,
        edits=(
            Edit(
                "flash_attention",
                "acc = T.dot_nn_where(weights, values, acc)",
                "acc = T.dot_nn(weights, values, acc)",
            ),
        ),
    ),
    _attention(
        "heads_by_modulo",
        "query head h reads key-value head h % Hkv",
        "if pack * kv_heads != heads:\n        kv_head = first_head * kv_heads // heads",
        "kv_head = first_head % kv_heads",
    ),
    _attention("scale_missing", "scores are not scaled", "np.float32(scale * LOG2_E)", "np.float32(LOG2_E)"),
    _attention(
        "scale_twice",
        "modified scores are scaled twice",
        "        exponent_scale = np.float32(LOG2_E)\n",
        "        exponent_scale = np.float32(scale * LOG2_E)\n",
    ),
    _attention(
        "window_counts_diagonal",
        "the left window counts the diagonal key, so a row sees one key too few",
        "T.maximum(diagonal - left, k_first)",
        "T.maximum(diagonal - left + 1, k_first)",
    ),
    _attention(
        "alignment_swapped",
        "bottom right and top left are exchanged",
        "k_first + (k_len - q_len - k_first) * bottom_right",
        "k_first + (k_len - q_len - k_first) * (1 - bottom_right)",
    ),
    Fault(
        "padding_is_seen",
        "rows before the first key of a sequence are seen where they share a tile with it, which they do in pages",
        ("paged_attention",),
        edits=(Edit("flash_attention", "T.maximum(diagonal - left, k_first)", "T.maximum(diagonal - left, 0)"),),
    ),
    _attention(
        "top_left_of_the_padding",
        "the diagonal starts at the first row of k, whether it is a key or padding",
        "k_first + (k_len - q_len - k_first) * bottom_right",
        "(k_len - q_len) * bottom_right",
    ),
    _attention(
        "all_rows_are_keys",
        "rows behind the last key of a sequence are keys",
        "end = min(end, rows)",
        "end = rows",
    ),
    _attention(
        "sinks_in_numerator",
        "a sink also adds to the numerator",
        "acc = T.zeros(cfg, cfg.block_m, cfg.value_dim)",
        "acc = T.zeros(cfg, cfg.block_m, cfg.value_dim) + l",
    ),
    _attention(
        "sink_in_every_split",
        "the sink is counted once a split instead of once",
        "sinks.shape[0] > 0 and split == 0",
        "sinks.shape[0] > 0",
    ),
    _attention(
        "lse_in_base_two",
        "the log-sum-exp is a base-2 logarithm",
        "LN_2 = 0.6931471805599453",
        "LN_2 = 1.0",
    ),
    _attention(
        "lse_without_maximum",
        "the log-sum-exp leaves the maximum out",
        "m * (exponent_scale * LN_2)",
        "m * 0.0",
    ),
    _attention(
        "softcap_not_divided",
        "scores are not divided by the cap, so only its height is right",
        "T.tanh(s * (1.0 / softcap)) * softcap",
        "T.tanh(s) * softcap",
    ),
    _attention("alibi_sign", "distant keys are favoured", "s - T.absolute(...) * slope", "s + T.absolute(...) * slope"),
    _attention(
        "alibi_from_top_left",
        "ALiBi measures distances from the top-left diagonal",
        "T.distance(cfg, diagonal, n0, cfg.block_n)",
        "T.distance(cfg, row, n0, cfg.block_n)",
    ),
    _attention(
        "bias_of_first_head",
        "every head takes the bias of the first one",
        "T.load_tile(cfg, bias, (head, row), ...)",
        "T.load_tile(cfg, bias, (head * 0, row), ...)",
    ),
    _attention(
        "mask_of_first_query",
        "every query takes the mask of the first one",
        "T.load_tile(cfg, mask, (head, row), ...)",
        "T.load_tile(cfg, mask, (head, row * 0), ...)",
    ),
    _attention(
        "packed_keys_from_query_offsets",
        "keys of packed sequences start where the queries do",
        "k_batch, k_start, k_first, k_len = keys_of_sequence(...)",
        "k_batch, k_start, k_first, k_len = "
        "keys_of_sequence(...)[0], q_start, keys_of_sequence(...)[2], keys_of_sequence(...)[3]",
    ),
    Fault(
        "split_left_out",
        "the last split of the keys is not merged",
        ("decode_attention",),
        edits=(
            Edit(
                "flash_attention",
                "join_parts(cfg.join, parts, at, step, splits, ...)",
                "join_parts(cfg.join, parts, at, step, splits - 1, ...)",
            ),
        ),
    ),
    Fault(
        "split_left_out_by_a_launch",
        "the last split of the keys is not merged where a launch of its own does so",
        ("decode_attention",),
        edits=(
            Edit(
                "combine_splits",
                "join_parts(cfg, T.scratch_rows(parts, cfg.pitch), place, step, splits, ...)",
                "join_parts(cfg, T.scratch_rows(parts, cfg.pitch), place, step, splits - 1, ...)",
            ),
        ),
    ),
    Fault(
        "merge_without_weights",
        "two partial results are averaged whatever their log-sum-exps are",
        ("merge_attention",),
        edits=(Edit("merge_attention", "w2 = T.exp2((x2 - base) * LOG2_E)", "w2 = w1"),),
    ),
    Fault(
        "merge_reads_first_without_weight",
        "what the first part holds reaches the result though it saw no key",
        ("merge_attention",),
        edits=(Edit("merge_attention", "read1 = valid & (x1 != T.NEG_INF)", "read1 = valid"),),
    ),
    Fault(
        "merge_reads_second_without_weight",
        "what the second part holds reaches the result though it saw no key",
        ("merge_attention",),
        edits=(Edit("merge_attention", "read2 = valid & (x2 != T.NEG_INF)", "read2 = valid"),),
    ),
    Fault(
        "softmax_last_partial_sum",
        "a row sum leaves out the last column of each tile",
        ("softmax",),
        replace={"rowsum": _without_last_column},
    ),
    Fault(
        "softmax_without_maximum",
        "the maximum is not subtracted",
        ("softmax",),
        edits=(
            Edit("softmax", "m = T.full_rows(cfg, cfg.block_m, T.NEG_INF)", "m = T.full_rows(cfg, cfg.block_m, 1.0e9)"),
        ),
    ),
    Fault(
        "repeat_in_turns",
        "heads repeat in turns instead of one after another",
        ("repeat_kv",),
        edits=(Edit("repeat_kv", "head // n_rep", "head % x.shape[1]"),),
    ),
    Fault(
        "scores_heads_by_modulo",
        "query head h reads key head h % Hkv",
        ("qk_scores",),
        edits=(Edit("qk_scores", "kv_head = head // (q.shape[1] // k.shape[1])", "kv_head = head % k.shape[1]"),),
    ),
    Fault(
        "weighted_values_last_tile",
        "keys behind the last whole tile are left out",
        ("weighted_values",),
        edits=(
            Edit(
                "weighted_values",
                "range(0, v.shape[2], cfg.block_n)",
                "range(0, max(v.shape[2] // cfg.block_n, 1) * cfg.block_n, cfg.block_n)",
            ),
        ),
    ),
    Fault(
        "mask_inverted",
        "True hides instead of showing",
        ("apply_mask",),
        edits=(Edit("apply_mask", "t = T.mask_where(t, seen)", "t = T.mask_where(t, seen * -1.0 + 1.0)"),),
    ),
    Fault(
        "halves_truncated",
        "half results are rounded towards zero",
        (*ATTENTION, "softmax", "scale"),
        replace={"store_tile": _truncated},
    ),
    Fault(
        "last_row_not_written",
        "the last row of a block is not stored",
        (*ATTENTION, "softmax", "scale", "repeat_kv", "causal_mask"),
        replace={"store_tile": _last_row_left},
    ),
)
