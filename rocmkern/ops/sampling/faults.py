"""Faults of sampling."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _sample(name: str, description: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("sample",), edits=(Edit("sample", old, new),))


FAULTS = (
    _sample("sample_nine_rounds", "the generator has a round too few", "range(10)", "range(9)"),
    _sample(
        "sample_rows_count",
        "the row is part of the counter",
        "uniform(seed, offset)\n    if",
        "uniform(seed, offset + b)\n    if",
    ),
    _sample("sample_offset_ignored", "every step draws the same number", "philox(offset & WORD,", "philox(0,"),
    _sample(
        "sample_high_offset_ignored", "offsets that differ in the high word are alike", "(offset >> 32) & WORD", "0"
    ),
    _sample("sample_high_seed_ignored", "seeds that differ in the high word are alike", "(seed >> 32) & WORD", "0"),
    _sample("sample_seed_of_first_row", "every row has the seed of the first one", "seeds[b]", "seeds[0]"),
    _sample("sample_offset_of_first_row", "every row has the offset of the first one", "offsets[b]", "offsets[0]"),
    _sample(
        "sample_temperature_of_first_row",
        "every row has the temperature of the first one",
        "temperatures[b]",
        "temperatures[0]",
    ),
    _sample("sample_top_k_of_first_row", "every row has the top-k of the first one", "limits[b]", "limits[0]"),
    _sample("sample_top_p_of_first_row", "every row has the top-p of the first one", "shares[b]", "shares[0]"),
    _sample("sample_one_too_many", "top-k keeps k + 1 tokens", "if kept >= top_k:", "if kept > top_k:"),
    _sample(
        "sample_top_p_after_all",
        "top-p takes its share of all tokens instead of those that top-k left",
        "T.ordered_float(low), peak, scale)) * top_p",
        "T.ordered_float(LOWEST), peak, scale)) * top_p",
    ),
    _sample(
        "sample_top_p_from_below",
        "top-p keeps only the tokens before the share is reached",
        "                high = middle\n\n    bound =",
        "                high = middle\n        low = high\n\n    bound =",
    ),
    _sample(
        "sample_last_part_short",
        "the last column is left out",
        "row * 0 + (columns - 1))\n",
        "row * 0 + max(columns - 2, 0))\n",
    ),
    _sample(
        "sample_parts_overlap",
        "the last columns of a part count twice",
        "row * 0 + (own - 1), row",
        "row * 0 + (columns - 1), row",
    ),
    _sample(
        "sample_next_token",
        "the token behind the chosen one is returned",
        "return part * own + start + high",
        "return part * own + start + high + 1",
    ),
    _sample(
        "sample_greedy_last", "among equal logits the last one is taken", "        u = 0.0\n", "        u = 0.9999999\n"
    ),
    _sample(
        "sample_temperature_missing", "weights do not know the temperature", "(t - peak) * scale", "(t - peak) * LOG2_E"
    ),
)
