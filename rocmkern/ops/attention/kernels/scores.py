"""What becomes of a product of a query and a key before its softmax: scale, softcap, ALiBi, bias, boolean mask.

They are applied in this order; empty tensors switch off. Rows of a tile are queries and its columns keys, or, with
``bias`` and ``mask`` transposed, the other way round.
"""

from rocmkern import tile as T


@T.device
def cap_scores(s, scale, softcap):
    """Scores of raw products: scale, softcap."""
    s = s * scale
    if softcap > 0.0:
        s = T.tanh(s * (1.0 / softcap)) * softcap
    return s


@T.device
def bias_scores(cfg, s, alibi_slopes, bias, head, row, diagonal, n0, valid):
    """Scores with ALiBi and bias added. The diagonal is the column from which a row's distances count."""
    if alibi_slopes.shape[0] > 0:
        slope = T.load_rows(alibi_slopes, (head,), valid)
        s = s - T.absolute(T.distance(cfg, diagonal, n0, cfg.block_n)) * slope
    if bias.shape[0] > 0:
        s = s + T.load_tile(cfg, bias, (head, row), n0, cfg.block_n, valid)
    return s


@T.device
def hide_scores(cfg, s, mask, head, row, n0, valid):
    """Scores of minus infinity where the mask hides them."""
    if mask.shape[0] > 0:
        s = T.mask_where(s, T.load_tile(cfg, mask, (head, row), n0, cfg.block_n, valid))
    return s


@T.device
def modify_scores(cfg, s, scale, softcap, alibi_slopes, bias, mask, head, row, diagonal, n0, valid):
    """All of it."""
    s = bias_scores(cfg, cap_scores(s, scale, softcap), alibi_slopes, bias, head, row, diagonal, n0, valid)
    return hide_scores(cfg, s, mask, head, row, n0, valid)
