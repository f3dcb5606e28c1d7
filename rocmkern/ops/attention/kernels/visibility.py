"""Which rows a block of attention has, and which columns they see: for the forward and for its gradients.

Causal masks, windows and sequence ends are one rule: key j is visible to query i iff ``max(first, i + o - left) <= j <=
min(last, i + o + right)``, where o aligns the diagonal (Sk - Sq at the bottom right, the first key at the top left).
The other way round it is the same rule: query i sees key j iff ``max(0, j - o - right) <= i <= min(Sq - 1, j - o +
left)``. So rows and columns may be queries and keys, or keys and queries.
"""

from rocmkern import tile as T


@T.device
def rows_of_sequence(cu_seqlens, sequence, length):
    """Batch index, first row and number of rows of a sequence: a packed one, or a batch element with `length` rows."""
    batch, start = sequence, 0
    if cu_seqlens.shape[0] > 0:
        batch, start = 0, int(cu_seqlens[sequence])
        length = int(cu_seqlens[sequence + 1]) - start
    return batch, start, length


@T.device
def keys_among_rows(seqlens_k, leftpad_k, appended, sequence, rows, paged):
    """The first key of a sequence and the end of its keys, counted from the first of its rows."""
    first, end = 0, rows
    if seqlens_k.shape[0] > 0:
        end = int(seqlens_k[sequence]) + appended
        if not paged:
            end = min(end, rows)  # numbers in device memory are as nobody has seen them
    if leftpad_k.shape[0] > 0:
        first = max(0, int(leftpad_k[sequence]))
    return first, end


@T.device
def diagonal_shift(q_len, k_first, k_len, bottom_right):
    """The diagonal key of a query less it."""
    return k_first + (k_len - q_len - k_first) * bottom_right


@T.device
def columns_of_block(cfg, first, last, shift, left, right, begin, end, origin, split, splits):
    """Columns ``begin .. end`` that a block visits, and ``all_begin .. all_end`` that all of its rows see.

    ``first`` and ``last`` are its first and its last row, ``shift`` is the diagonal column of a row less it; given are
    the columns that there are. What it visits is its share of the steps in which there is a column that some row sees.
    Steps are counted from ``origin``.
    """
    first, last = first + shift, last + shift
    block_n = cfg.block_n
    any_begin, any_end = max(begin, first - left), min(end, last + right + 1)
    all_begin, all_end = max(begin, last - left), min(end, first + right + 1)
    begin = origin + (any_begin - origin) // block_n * block_n
    tiles = (max(any_end - begin, 0) + block_n - 1) // block_n
    share = (tiles + splits - 1) // splits * block_n
    begin += split * share
    return begin, max(0, min(any_end, begin + share)), all_begin, all_end
