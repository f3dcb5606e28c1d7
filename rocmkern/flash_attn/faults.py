"""Faults of rows that are rotated and appended to a cache."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _appending(name: str, description: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("flash_attn_with_kvcache",), edits=(Edit("rope_by_table", old, new),))


FAULTS = (
    _appending(
        "appended_one_further",
        "new rows go one row behind the end of their sequence",
        "line, length = token + start * behind, out_rest.shape[1]",
        "line, length = token + (start + 1) * behind, out_rest.shape[1]",
    ),
    _appending(
        "table_from_its_first_row",
        "rows are rotated as if their sequence began with them",
        "position = token * advance + start",
        "position = token * advance",
    ),
    _appending(
        "all_queries_advance",
        "queries turn by positions of their own though nothing is causal",
        "position = token * advance + start",
        "position = token + start",
    ),
    _appending(
        "pages_of_first_sequence",
        "new rows of every sequence go into the pages of the first one",
        "table, entry = block_table[sequence], line // length",
        "table, entry = block_table[0], line // length",
    ),
    _appending(
        "rest_is_rotated_away",
        "what is not rotated is not copied where something is rotated",
        "copy(cfg, rest[sequence], out_rest, token, page, line, head, written)",
        "copy(cfg, rest[sequence], out_rest, token, page, line, head, written & (position < 0))",
    ),
)
