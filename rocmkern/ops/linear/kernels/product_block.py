"""In which order blocks take the parts of a matrix product."""

from rocmkern import tile as T


@T.device
def product_block(cfg, index, row_blocks, column_blocks):
    """Row block and column block of the block of an index.

    Rows come first, so that blocks side by side share the columns of the right side, which is the weights of a model.
    With ``cfg.group_m`` only so many row blocks come one after another, then the same ones with the next columns: then
    the blocks that run at the same time share what they read of both sides.
    """
    if cfg.group_m == 0:
        return index % row_blocks, index // row_blocks
    first = index // (cfg.group_m * column_blocks) * cfg.group_m
    rows = min(row_blocks - first, cfg.group_m)
    inside = index % (cfg.group_m * column_blocks)
    return first + inside % rows, inside // rows
