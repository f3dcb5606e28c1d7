"""Faults of the operations that move elements."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

FAULTS = (
    Fault(
        "embedding_row_before",
        "the row before the one that was asked for",
        ("embedding",),
        edits=(
            Edit(
                "embedding",
                "T.load_tile(cfg, table, (index,), ...)",
                "T.load_tile(cfg, table, (T.maximum(index - 1, 0),), ...)",
            ),
        ),
    ),
    Fault(
        "embedding_last_row_out",
        "the last row of the table counts as outside",
        ("embedding",),
        edits=(Edit("embedding", "index < table.shape[0]", "index < table.shape[0] - 1"),),
    ),
    Fault(
        "transpose_first_tile",
        "every tile is read from the first columns",
        ("transpose",),
        edits=(
            Edit(
                "copy_rows", "T.load_tile(cfg, x[a, b], (row,), n0, ...)", "T.load_tile(cfg, x[a, b], (row,), 0, ...)"
            ),
        ),
    ),
)
