"""In which order blocks take the parts of a matrix product."""

from rocmkern import tile as T

#: Row blocks of a group.
GROUP = 16


@T.device
def product_block(index, row_blocks, column_blocks):
    """Row block and column block of the block of an index.

    Blocks side by side share what they read: `GROUP` row blocks with all their columns come one after another, and
    within them the rows of a column, which share columns of the right side, the weights of a model.
    """
    first = index // (GROUP * column_blocks) * GROUP
    rows = min(row_blocks - first, GROUP)
    inside = index % (GROUP * column_blocks)
    return first + inside % rows, inside // rows
